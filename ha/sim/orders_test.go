package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"oneshot/internal/rounds"
)

// TestOrders: whatever comes first, two nodes keep two blocks. With ONESHOT_SIM_DEPTH orders have that depth; ONESHOT_SIM_ORDER repeats one of its worlds, and
// prints all that happens.
func TestOrders(t *testing.T) {
	for _, x := range []struct {
		name           string
		depth          int
		faults, passes int
	}{
		{"steady", rounds.Of(10, 6), 0, 0},
		{"faults", rounds.Of(5, 3), 1, 1},
		{"two faults", rounds.Of(5, 3), 2, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := OrderOptions{Depth: int(number(t, "ONESHOT_SIM_DEPTH", uint64(x.depth))), Faults: x.faults, Passes: x.passes}
			if s := os.Getenv("ONESHOT_SIM_ORDER"); s != "" {
				var err error
				if o.Only, err = orderOf(s); err != nil {
					t.Fatalf("ONESHOT_SIM_ORDER: %v", err)
				}
				o.Depth, o.Log = len(o.Only), t.Output()
			}
			res := EachOrder(o)
			if res.Violation != nil {
				at := strings.Trim(strings.ReplaceAll(fmt.Sprint(res.Order), " ", "."), "[]")
				t.Errorf("ONESHOT_SIM_ORDER=%s go test -run 'TestOrders/%s': %v, after %s", at, x.name, res.Violation, strings.Join(res.Names, ", "))
			}
			t.Logf("%d orders of depth %d, %d others were left because they end as another one, %d steps, %d takeovers", res.Orders, o.Depth, res.Same, res.Steps, res.Takeovers)
			if o.Only == nil && x.passes > 0 && o.Depth >= 3 && res.Takeovers == 0 {
				t.Error("the orders did not meet what they are for: no takeover")
			}
		})
	}
}

// TestOrdersThatAreTheSame: what is left of the orders leads to the same states as all of them do, and they are fewer.
func TestOrdersThatAreTheSame(t *testing.T) {
	for _, o := range []OrderOptions{{Depth: rounds.Of(6, 4)}, {Depth: rounds.Of(3, 2), Faults: 1, Passes: 1}} {
		some, all := map[string]bool{}, map[string]bool{}
		o.ended = func(state string) { some[state] = true }
		few := EachOrder(o)
		o.All = true
		o.ended = func(state string) { all[state] = true }
		many := EachOrder(o)
		for state := range all {
			if !some[state] {
				t.Fatalf("depth %d: no order that was tried ends in\n%s", o.Depth, state)
			}
		}
		t.Logf("depth %d: %d of %d orders, %d states", o.Depth, few.Orders, many.Orders, len(all))
		if few.Orders >= many.Orders && o.Depth > 3 {
			t.Errorf("depth %d: %d of %d orders were tried", o.Depth, few.Orders, many.Orders)
		}
	}
}

// TestWithout: a world of which nothing is left out is what it is, and the faults that are left happen when and where they do.
func TestWithout(t *testing.T) {
	for seed := uint64(1); seed <= uint64(rounds.Of(3, 1)); seed++ {
		o := Options{Seed: seed, Theme: "disks", Length: 20 * time.Second}
		whole := Run(o)
		o.Without = []int{len(whole.Happened) + 1}
		if again := Run(o); again.Trace != whole.Trace {
			t.Errorf("seed %d: another world when nothing was left out", seed)
		}
		o.Without = []int{Moments, 2, 3}
		some := Run(o)
		for i, f := range some.Happened {
			if f != whole.Happened[i] {
				t.Errorf("seed %d: a fault is %v, and was %v", seed, f, whole.Happened[i])
			}
		}
		if some.Trace == whole.Trace {
			t.Errorf("seed %d: nothing was left out", seed)
		}
	}
}

// TestList: numbers are read as they are written.
func TestList(t *testing.T) {
	for _, list := range [][]int{{0}, {0, 1, 2, 5}, {3, 5, 6, 7}, {10, 12}} {
		got, err := ParseList(ListOf(list))
		if fmt.Sprint(got) != fmt.Sprint(list) || err != nil {
			t.Errorf("%v becomes %s, and that %v, %v", list, ListOf(list), got, err)
		}
	}
	for _, s := range []string{"", "x", "4-2", "1,,2"} {
		if list, err := ParseList(s); err == nil {
			t.Errorf("%q is read as %v", s, list)
		}
	}
}
