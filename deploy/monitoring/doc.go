// Package monitoring has no code: it is the home of the tests that hold rules and dashboards to the metrics that there are, to the runbook, and to each other.
package monitoring
