// Package gatewaysim is a payment gateway to poll: a real HTTP server on loopback whose payments follow scripts, whose faults
// are seeded, and which knows afterwards what a correct client must have recorded.
//
// One payment is asked for with
//
//	GET /v1/payments/{reference}
//	Authorization: Bearer <key>
//
// and answered with
//
//	{"id":"demo_1999_EUR","status":"succeeded","amount":1999,"currency":"EUR","livemode":false,"updated_at":"2026-01-31T12:00:00Z"}
//
// where the amount is in the currency's minor unit and the status is processing, requires_action, authorized, succeeded, failed,
// canceled or expired. An error is {"error":{"code":"…","message":"…"}}.
//
// What goes wrong depends only on the seed, the payment's reference and the number of the call (chance.go), on the clock where
// a fault has a window (window.go), and on the request rate where it has a limit. So a run can be repeated.
//
// Config.Dialect has it speak as a vendor does instead, about the same payments with the same faults; package dialect has the vendors, and package notify sends their
// notifications.
//
// Everything under /sim/ is for the person or the test that runs the simulator, and answers to loopback alone (admin.go).
package gatewaysim
