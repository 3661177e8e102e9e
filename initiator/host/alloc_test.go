//go:build !race

package host_test

import (
	"testing"

	"oneshot/initiator/host"
)

// A command of the hot path allocates nothing in the host, and commands that are started together cost one system call each way.
func TestAllocations(t *testing.T) {
	addr := serve(t)
	for _, u := range []host.URL{{Address: addr}, {Address: addr, HeaderDigest: true, DataDigest: true}} {
		c := dial(t, u, host.Options{Depth: 32})
		n, err := c.Namespace(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{}, 32)
		batch := func(k, size int, write bool) []*host.Command {
			var list []*host.Command
			for i := range k {
				x := &host.Command{Done: func(*host.Command) { ended <- struct{}{} }}
				if b := pattern(size, i); write {
					x.Out = b
				} else {
					x.In = b
				}
				if err := n.Prepare(x, int64(i*size)); err != nil {
					t.Fatal(err)
				}
				list = append(list, x)
			}
			return list
		}
		for _, tt := range []struct {
			name  string
			size  int
			write bool
		}{{"Read", 4096, false}, {"Write in a capsule", 4096, true}, {"Write in a long capsule", 64 << 10, true}, {"Write with R2T", 260 << 10, true}, {"long Read", 64 << 10, false}} {
			list := batch(32, tt.size, tt.write)
			once := func() {
				c.Start(0, list...)
				for range list {
					<-ended
				}
			}
			once()
			before := c.Counters()
			const runs = 200
			if got := testing.AllocsPerRun(runs, once) / 32; got > 0.05 {
				t.Errorf("%s allocates %.2f times", tt.name, got)
			}
			after := c.Counters()
			calls := float64(after.Reads-before.Reads+after.Writes-before.Writes) / float64(after.Commands-before.Commands)
			if tt.size == 4096 && calls > 0.5 {
				t.Errorf("%s: %.2f system calls for each command of 32", tt.name, calls)
			}
		}
	}
}
