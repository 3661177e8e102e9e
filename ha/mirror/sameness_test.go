package mirror

import (
	"slices"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// TestSameness: which nodes take each other for ones with the same mirror. The number is that of former versions: nodes with another one do not reach
// each other, and in an upgrade there are both. So a new field of replica.Config has to stay out of it.
func TestSameness(t *testing.T) {
	has := func(change func(o *Options, c *replica.Config)) *Mirror {
		c := Usual(1 << 30)
		c.Copies = replica.NodesOf(1, 2)
		o := Options{Name: "lab"}
		change(&o, &c)
		m := &Mirror{opts: o, cfg: c, info: backend.Info{BlockSize: 4096}}
		m.sameness, m.alike = m.hash(c), m.likeness()
		return m
	}
	one := has(func(*Options, *replica.Config) {})
	const former = 0x1ab5b1ce849de62d
	if one.sameness != former {
		t.Errorf("it is %#x, and was %#x", one.sameness, uint64(former))
	}
	for what, x := range map[string]struct {
		same   bool
		change func(o *Options, c *replica.Config)
	}{
		"another node, in another life": {true, func(_ *Options, c *replica.Config) { c.Self, c.Incarnation = 2, 7 }},
		"clocks that stop":              {true, func(_ *Options, c *replica.Config) { c.Confirm = false }},
		"min_copies":                    {true, func(_ *Options, c *replica.Config) { c.MinCopies = 2 }},
		"grown": {true, func(o *Options, c *replica.Config) {
			o.Began, c.Stores[0].Size = 1<<30, 2<<30
		}},
		"cache":     {false, func(_ *Options, c *replica.Config) { c.Stores[0].Through = true }},
		"size":      {false, func(_ *Options, c *replica.Config) { c.Stores[0].Size = 2 << 30 }},
		"copies":    {false, func(_ *Options, c *replica.Config) { c.Copies = replica.NodesOf(1, 2, 3) }},
		"heartbeat": {false, func(_ *Options, c *replica.Config) { c.Heartbeat = time.Second }},
		"name":      {false, func(o *Options, _ *replica.Config) { o.Name = "other" }},
	} {
		other := has(x.change)
		if is := slices.Contains(one.alike, other.sameness); is != x.same || is != slices.Contains(other.alike, one.sameness) {
			t.Errorf("%s: taken for the same: %v", what, is)
		}
	}
}
