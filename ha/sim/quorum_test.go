package sim

import (
	"os"
	"testing"
	"testing/cryptotest"
	"time"

	"oneshot/internal/rounds"
)

// TestQuorum runs worlds whose consensus is that of package ha/quorum. Elections take some tenths of a second, so less
// happens than with the model.
func TestQuorum(t *testing.T) {
	runs := uint64(rounds.Of(10, 1))
	first, n := number(t, "ONESHOT_SEED", 1), number(t, "ONESHOT_SIM_RUNS", runs)
	var all Result
	for seed := first; seed < first+n; seed++ {
		o := Options{Seed: seed, Length: 20 * time.Second, Quorum: true}
		if os.Getenv("ONESHOT_SIM_LOG") != "" {
			o.Log = t.Output()
		}
		cryptotest.SetGlobalRandom(t, seed) // raft draws from it when elections begin
		res := Run(o)
		if seed == first {
			cryptotest.SetGlobalRandom(t, seed)
			if again := Run(o); again.Trace != res.Trace {
				t.Errorf("seed %d runs in two ways: %x and %x", seed, res.Trace, again.Trace)
			}
		}
		if res.Violation != nil {
			t.Fatalf("ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1: %v (%s)", seed, res.Violation, res.Setup)
		}
		all.Commands += res.Completed
		all.Takeovers += res.Takeovers
		all.Returns += res.Returns
	}
	t.Logf("%d runs: %d commands, %d takeovers, %d returns into S", n, all.Commands, all.Takeovers, all.Returns)
	if n >= 10 && (all.Commands == 0 || all.Takeovers == 0 || all.Returns == 0) {
		t.Error("the runs did not meet what they are for")
	}
}
