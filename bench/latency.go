package main

import "context"

// latency measures how long a payment waits that need not: from its commit to its first poll, and of a held retry beyond its time.
func latency(ctx context.Context, b *bench) error {
	first50 := figure{name: "commit to first poll at 200/s, p50", unit: "ms"}
	first99 := figure{name: "commit to first poll at 200/s, p99", unit: "ms"}
	retry50 := figure{name: "lateness of held retries at 250/s, p50", unit: "ms"}
	retry99 := figure{name: "lateness of held retries at 250/s, p99", unit: "ms"}
	for range b.runs {
		s, err := b.dev(ctx, "--payments", "3000", "--rate", "200", "--latency", "5ms")
		if err != nil {
			return err
		}
		first50.runs = append(first50.runs, 1000*s["first_poll_lateness_p50_seconds"])
		first99.runs = append(first99.runs, 1000*s["first_poll_lateness_p99_seconds"])
		// two to five still-pending answers each: some 3.5 retries a payment
		s, err = b.dev(ctx, "--payments", "1500", "--rate", "71", "--scenario", "slow")
		if err != nil {
			return err
		}
		retry50.runs = append(retry50.runs, 1000*s["retry_lateness_p50_seconds"])
		retry99.runs = append(retry99.runs, 1000*s["retry_lateness_p99_seconds"])
	}
	for _, f := range []figure{first50, first99, retry50, retry99} {
		b.print(f)
	}
	return nil
}
