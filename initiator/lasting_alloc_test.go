//go:build !race

package initiator_test

import (
	"testing"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

// A command of a lasting session allocates nothing here, and Delivered follows Done.
func TestLastingAllocations(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range []way{ways[0], ways[7]} {
		over, done := false, make(chan struct{}, 1)
		w.opt.Delivered = func() {
			if over {
				over = false
				done <- struct{}{}
			}
		}
		l, err := initiator.DialLasting(t.Context(), w.at(t, tg, "/"+iqn), w.opt, initiator.Keeping{})
		check(t, err)
		lu, err := l.Current().LU(t.Context(), 0)
		check(t, err)
		m, err := l.Alloc(4096)
		check(t, err)
		c := &initiator.Command{In: m.Bytes(), Memory: m, Done: func(*initiator.Command) { over = true }}
		each := testing.AllocsPerRun(500, func() {
			_ = lu.Prepare(c, 0)
			l.Start(c)
			<-done
		})
		if each > 0 {
			t.Errorf("%s: %v allocations per command", w.name, each)
		}
		check(t, l.Close())
		check(t, m.Free())
	}
}
