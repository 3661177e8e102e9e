package load

import "testing"

// The figures of the source, per side and as sums.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		write                  bool
		name                   string
		initiator, target, sum int
	}{
		{true, "FIG 2, iSCSI offload", 2, 4, 6},
		{true, "FIG 3, RDMA", 10, 4, 14},
		{true, "FIG 3, no windows", 6, 4, 10},
		{true, "FIG 4, one-shot", 2, 4, 6},
		{false, "FIG 3, RDMA", 10, 2, 12},
		{false, "FIG 4, one-shot", 2, 2, 4},
	} {
		found := false
		for _, f := range Figures(c.write) {
			if f.Name != c.name {
				continue
			}
			found = true
			if f.Initiator() != c.initiator || f.Target() != c.target || f.Sum() != c.sum {
				t.Errorf("%s: %d and %d, %d in all", f.Name, f.Initiator(), f.Target(), f.Sum())
			}
		}
		if !found {
			t.Errorf("no %s", c.name)
		}
	}
}
