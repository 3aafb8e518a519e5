package adyen_test

import (
	"context"
	"strings"
	"testing"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/gatewaytest"
)

var _ consumer.Gateway = adyen.Adapter{}

func TestNobodyIsAsked(t *testing.T) {
	if c := (adyen.Adapter{}).Capabilities(); c.Polling != gateway.Never || c.MinInterval != 0 || c.ByMerchantRef {
		t.Errorf("capabilities %+v", c)
	}
	if c := new(adyen.Config); c.Client() != nil {
		t.Error("it has a client")
	}
	ans := adyen.Adapter{}.Poll(context.Background(), gateway.Query{Reference: "8836"})
	gatewaytest.Check(t, ans)
	if ans.Class != gateway.Local {
		t.Errorf("got %+v", ans)
	}
}

func TestConfig(t *testing.T) {
	for mode, want := range map[string]string{"": "", "live": "", "test": "", "sandbox": `mode: "sandbox" is not known; live or test`} {
		err := adyen.Config{Mode: mode}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", mode, err)
		}
	}
}
