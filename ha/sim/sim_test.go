package sim

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"oneshot/internal/rounds"
)

// number reads one from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// shrinkLimit is how long TestRuns looks for smaller worlds that fail.
const shrinkLimit = time.Minute

// TestRuns runs as many worlds as ONESHOT_SIM_RUNS says, from the seed ONESHOT_SEED on. With ONESHOT_SIM_THEME all of
// them have that theme, with ONESHOT_SIM_LOG all that happens is printed.
func TestRuns(t *testing.T) {
	first, n := number(t, "ONESHOT_SEED", 1), number(t, "ONESHOT_SIM_RUNS", uint64(rounds.Of(200, 20)))
	var all Result
	failed := 0
	for seed := first; seed < first+n && failed < 10; seed++ {
		o := Options{Seed: seed, Theme: os.Getenv("ONESHOT_SIM_THEME"), Length: 60 * time.Second}
		if s := os.Getenv("ONESHOT_SIM_WITHOUT"); s != "" {
			var err error
			if o.Without, err = ParseList(s); err != nil {
				t.Fatalf("ONESHOT_SIM_WITHOUT: %v", err)
			}
		}
		if os.Getenv("ONESHOT_SIM_LOG") != "" {
			o.Log = t.Output()
		}
		res := Run(o)
		if res.Violation != nil {
			failed++
			t.Errorf("ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1: %v (%s)", seed, res.Violation, res.Setup)
			if o.Without == nil {
				s := Shrink(o, res.Violation, shrinkLimit/10) // at most ten worlds fail
				t.Logf("ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1 %v", seed, &s)
			}
		}
		all.Steps += res.Steps
		all.Commands += res.Commands
		all.Completed += res.Completed
		all.AtOnce += res.AtOnce
		all.Flushes += res.Flushes
		all.Takeovers += res.Takeovers
		all.Returns += res.Returns
		all.Switched += res.Switched
		all.Losses += res.Losses
		all.SwapsKept += res.SwapsKept
		all.Fences += res.Fences
		all.Corrupted += res.Corrupted
		all.Conflicts += res.Conflicts
		all.Lost += res.Lost
		all.Verified += res.Verified
		all.Found += res.Found
		all.Yielded += res.Yielded
	}
	t.Logf("%d runs: %d steps, %d commands, %d reads at once, %d flushes, %d takeovers, %d by order, %d returns into S, %d blocks set back by power cuts of a quorum, %d COMPARE AND WRITE found done after a takeover, %d comparisons, %d ranges repaired, %d blocks that nobody could read, %d changes of reservations, %d writes that these forbade, %d times that bytes changed on their way",
		n, all.Steps, all.Completed, all.AtOnce, all.Flushes, all.Takeovers, all.Switched, all.Returns, all.Losses, all.SwapsKept, all.Verified, all.Found, all.Lost, all.Fences, all.Conflicts, all.Corrupted)
	if n >= 20 {
		all.checkMet(t, os.Getenv("ONESHOT_SIM_THEME"))
	}
}

// checkMet fails if many runs have not seen what they are for. A theme without a fault does not see what follows from that.
func (r *Result) checkMet(t *testing.T, name string) {
	t.Helper()
	var kinds []int
	for i := range themes {
		if themes[i].name == name {
			kinds = themes[i].kinds
		}
	}
	has := func(faults ...int) bool {
		return kinds == nil || slices.ContainsFunc(faults, func(k int) bool { return slices.Contains(kinds, k) })
	}
	for _, x := range []struct {
		what    string
		n       int
		expects bool
	}{
		{"takeover", r.Takeovers, true},
		{"return into S", r.Returns, true},
		{"flush", r.Flushes, true},
		{"read at once", r.AtOnce, true},
		{"range that differs", r.Found, true},
		{"byte that has changed on its way", r.Corrupted, true},
		{"write that a reservation forbids", r.Conflicts, !has(faultForce) || kinds == nil},
		{"switch", r.Switched, has(faultSwitch)},
		{"copy that gave way to hosts", r.Yielded, true},
		{"COMPARE AND WRITE found done after a takeover", r.SwapsKept, has(faultKill, faultPause, faultIsolate)},
		{"block set back by power cuts of a quorum", r.Losses, has(faultPower, faultPowerAll)},
		{"block that nobody could read", r.Lost, kinds != nil && has(faultBad, faultStuck)},
	} {
		if x.expects && x.n == 0 {
			t.Errorf("the runs did not meet what they are for: no %s", x.what)
		}
	}
}

// TestForced: worlds in which a copy is made go on without the others, which come back and give up what it does not have.
func TestForced(t *testing.T) {
	first, n := number(t, "ONESHOT_SEED", 1), number(t, "ONESHOT_SIM_RUNS", uint64(rounds.Of(20, 5)))
	forced, partly := 0, 0
	for seed := first; seed < first+n; seed++ {
		res := Run(Options{Seed: seed, Theme: "forced", Length: 60 * time.Second})
		if res.Violation != nil {
			t.Errorf("ONESHOT_SIM_THEME=forced ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1: %v (%s)", seed, res.Violation, res.Setup)
		}
		forced, partly = forced+res.Forced, partly+res.GivenUp
	}
	t.Logf("%d runs: %d copies were forced, %d brought level in part", n, forced, partly)
	if n >= 5 && (forced == 0 || partly == 0) {
		t.Error("the runs did not meet what they are for")
	}
}

// TestRepeat: the same number gives the same run.
func TestRepeat(t *testing.T) {
	seeds := uint64(rounds.Of(5, 2)) // the fourth has reservations
	different := false
	for seed := uint64(1); seed <= seeds; seed++ {
		o := Options{Seed: seed, Length: 10 * time.Second}
		a, b := Run(o), Run(o)
		if a.Trace != b.Trace {
			t.Errorf("seed %d runs in two ways: %x and %x", seed, a.Trace, b.Trace)
		}
		o.Seed++
		different = different || Run(o).Trace != a.Trace
	}
	if !different {
		t.Error("all seeds run in the same way")
	}
}
