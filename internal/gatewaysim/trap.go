package gatewaysim

import (
	"net/http"
	"strings"
)

// trapPath is where redirects lead: nobody who is careful ever comes here.
const trapPath = "/trap/"

// serveTrap answers a client that followed a redirect to another host, and counts it, and whether it brought the key.
func (s *Simulator) serveTrap(w http.ResponseWriter, r *http.Request) {
	s.trapped.Add(1)
	for _, values := range r.Header {
		for _, v := range values {
			if strings.Contains(v, s.cfg.APIKey) {
				s.leaked.Add(1)
				writeError(w, http.StatusTeapot, "key_leaked", "You followed a redirect to another host and sent it your key.")
				return
			}
		}
	}
	writeError(w, http.StatusTeapot, "redirect_followed", "You followed a redirect to another host.")
}
