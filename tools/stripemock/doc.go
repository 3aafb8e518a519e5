// Package stripemock holds the Stripe adapter to Stripe's own mock server and to the description of the API that it is made from. It is a module of
// its own, so that Pollux does not depend on the mock.
package stripemock
