package httpclient

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Exchange is one request and its answer as a person may see them: values of headers that could be secrets, what a redactor recognises and
// whatever is long are left out. Nothing in it has control characters.
type Exchange struct {
	Method  string
	URL     string
	Header  []Line
	Body    string
	Status  int // 0 when no answer came
	Answer  []Line
	Content string // the beginning of the answer's body
	Error   string // how the call failed; empty when an answer came whole
	Took    time.Duration
}

// Line is a header.
type Line struct{ Name, Value string }

// open are the headers whose values are shown, of requests and of answers. Of all others only the names are.
var open = []string{
	"Accept", "Accept-Encoding", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Retry-After", "Server", "User-Agent",
	"Stripe-Version", "Stripe-Account", "Stripe-Should-Retry", "Request-Id", "X-Request-Id", "Paypal-Debug-Id",
}

func (c *Client) watched(r Request, resp Response, err *Error) {
	if c.cfg.Watch == nil {
		return
	}
	hide := r.Hide
	if hide == nil {
		hide = plain
	}
	x := Exchange{
		Method: r.Method, URL: hide.Name(r.URL, MaxSnippet), Header: lines(hide, r.Header), Body: hide.Text(string(r.Body), MaxSnippet),
		Status: resp.Status, Answer: lines(hide, resp.Header), Content: hide.Snippet(resp.Body, MaxSnippet), Took: resp.Took,
	}
	if err != nil {
		x.Error = hide.Name(err.Error(), MaxSnippet)
	}
	c.cfg.Watch(x)
}

func lines(hide *Redactor, h http.Header) []Line {
	var all []Line
	for name, values := range h {
		for _, v := range values {
			shown := "[hidden]"
			if slices.Contains(open, name) {
				shown = hide.Name(v, 200)
			}
			all = append(all, Line{hide.Name(name, 100), shown})
		}
	}
	slices.SortFunc(all, func(a, b Line) int { return strings.Compare(a.Name+a.Value, b.Name+b.Value) })
	return all
}
