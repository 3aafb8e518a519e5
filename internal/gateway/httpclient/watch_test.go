package httpclient_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pollux/internal/gateway/httpclient"
)

// TestWhoLooksOnSeesNoSecret: a gateway sends back all that it got, and what is shown of both has neither the key nor a card.
func TestWhoLooksOnSeesNoSecret(t *testing.T) {
	const key, card = "hunter-two", "4111 1111 1111 1111"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Request-Id", "req_"+key)
		w.Header().Set("Set-Cookie", "session="+key)
		fmt.Fprintf(w, "%s %s %s \x1b[31m", r.URL, r.Header.Get("Authorization"), body)
	}))
	defer s.Close()
	var seen []httpclient.Exchange
	c, err := httpclient.New(httpclient.Config{
		Hosts: []string{strings.TrimPrefix(s.URL, "http://")}, AllowHTTP: true, AllowLoopback: true, Watch: func(x httpclient.Exchange) { seen = append(seen, x) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := httpclient.Request{
		Method: "POST", URL: s.URL + "/v1/x?k=" + key, Header: http.Header{"Authorization": {"Bearer " + key}, "X-Other": {"of no interest"}},
		Body: []byte("card=" + card + "&key=" + key), Hide: httpclient.NewRedactor(key),
	}
	if _, err := c.Do(context.Background(), r, nil); err != nil {
		t.Fatal(err)
	}
	r.URL = "https://elsewhere.example/" + key
	if _, err := c.Do(context.Background(), r, nil); err == nil {
		t.Fatal("a host that is not on the list was asked")
	}
	if len(seen) != 2 {
		t.Fatalf("%d calls were seen", len(seen))
	}
	if text := fmt.Sprintf("%+v", seen); strings.Contains(text, key) || strings.Contains(text, card) || strings.Contains(text, "\x1b") || strings.Contains(text, "of no interest") {
		t.Errorf("it shows %s", text)
	}
	x := seen[0]
	if x.Status != 200 || x.Method != "POST" || x.Error != "" || !strings.Contains(x.Content, "Bearer [secret]") || x.Took <= 0 {
		t.Errorf("got %+v", x)
	}
	if x := seen[1]; x.Status != 0 || !strings.Contains(x.Error, "not one that may be asked") {
		t.Errorf("got %+v", x)
	}
}
