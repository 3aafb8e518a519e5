package adyen_test

import (
	"context"
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
	if c := (adyen.Config{}); c.Client() != nil || c.Validate() != nil {
		t.Error("there is something to say")
	}
	ans := adyen.Adapter{}.Poll(context.Background(), gateway.Query{Reference: "8836"})
	gatewaytest.Check(t, ans)
	if ans.Class != gateway.Local {
		t.Errorf("got %+v", ans)
	}
}
