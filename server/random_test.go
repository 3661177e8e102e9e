package server

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"oneshot/config"
	"oneshot/initiator"
)

// randomConfig returns a configuration. LUN 0 of target a is the same in all of them; the rest is random.
func randomConfig(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("stores:\n  fixed: {type: file, path: fixed.img, size: 1MiB}\n")
	for _, name := range []string{"x", "y", "z"} {
		fmt.Fprintf(&b, "  %s: {type: memory, size: 1MiB}\n", name)
	}
	shows := []string{"x", "y", "z"}
	if r.IntN(3) > 0 {
		b.WriteString("  r: {type: memory, size: 4MiB, partitioned: true, partitions: {p: {size: 1MiB}, q: {size: 1MiB}}}\n")
		shows = append(shows, "r/p", "r/q")
	}
	b.WriteString("targets:\n")
	for _, target := range []string{"a", "b"} {
		if target == "b" && r.IntN(3) == 0 {
			continue
		}
		luns := []string{"0: fixed"}
		for n := 1; n < 5; n++ {
			if r.IntN(2) == 0 {
				luns = append(luns, fmt.Sprintf("%d: {store: %s, readonly: %v}", n, shows[r.IntN(len(shows))], r.IntN(2) == 0))
			}
		}
		alias := ""
		if r.IntN(2) == 0 {
			alias = ", alias: x"
		}
		fmt.Fprintf(&b, "  - {iqn: \"%s%s\", luns: {%s}%s}\n", iqn, target, strings.Join(luns, ", "), alias)
	}
	b.WriteString("portals: [{listen: \"127.0.0.1:0\"}")
	if r.IntN(2) == 0 {
		b.WriteString(", {listen: \"[::1]:0\"}")
	}
	b.WriteString("]\n")
	return b.String()
}

// Configurations follow one another at random. A session that none of them concerns goes on
// reading what it wrote, and other sessions see the LUNs of the last one.
func TestApplyAtRandom(t *testing.T) {
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %#x", seed)
		}
	}()
	random := rand.New(rand.NewPCG(seed, 0))
	r := serve(t, randomConfig(random))
	stop, load := make(chan struct{}), new(sync.WaitGroup)
	disk := unit(t, r.login("a"), 0)
	load.Go(func() {
		want, got := make([]byte, 4096), make([]byte, 4096)
		for n := byte(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			want[0] = n
			off := int64(n%8) * 4096
			if err := retryAttention(func() error { _, err := disk.WriteAt(want, off); return err }); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			if err := retryAttention(func() error { _, err := disk.ReadAt(got, off); return err }); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read: %v", err)
				return
			}
		}
	})
	s := r.login("a")
	for range 40 {
		c := r.parse(randomConfig(random))
		if _, err := r.Apply(c); err != nil {
			t.Fatal(err)
		}
		checkLUNs(t, s, c)
	}
	close(stop)
	load.Wait()
}

// retryAttention repeats f as long as it fails with a unit attention.
func retryAttention(f func() error) error {
	for {
		err := f()
		if failed, ok := errors.AsType[*initiator.StatusError](err); !ok || failed.Key != 6 {
			return err
		}
	}
}

func checkLUNs(t *testing.T, s *initiator.Session, c *config.Config) {
	t.Helper()
	luns, err := s.ReportLUNs(t.Context())
	var want []int
	for _, l := range c.Targets[0].LUNs {
		want = append(want, int(l.Number))
	}
	if err != nil || !slices.Equal(luns, want) {
		t.Fatalf("LUNs %v, want %v: %v", luns, want, err)
	}
	for _, l := range c.Targets[0].LUNs {
		attentions(t, s, int(l.Number))
		lu := unit(t, s, int(l.Number))
		if _, err := lu.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatalf("LUN %d: %v", l.Number, err)
		}
		if l.Number != 0 { // LUN 0 has another session's bytes
			if _, err := lu.WriteAt(make([]byte, 512), 0); (err != nil) != l.ReadOnly {
				t.Fatalf("LUN %d, readonly %v: %v", l.Number, l.ReadOnly, err)
			}
		}
	}
}

// A configuration with a thousand LUNs applies, and one more LUN is one change.
func TestThousandLUNs(t *testing.T) {
	text := func(n int) string {
		var stores, luns strings.Builder
		for i := range n {
			fmt.Fprintf(&stores, "  s%d: {type: memory, size: 1MiB}\n", i)
			fmt.Fprintf(&luns, "%d: s%d, ", i, i)
		}
		return "stores:\n" + stores.String() + "targets: [{iqn: \"" + iqn + "a\", luns: {" + strings.TrimSuffix(luns.String(), ", ") + "}}]\nportals: [{listen: \"127.0.0.1:0\"}]\n"
	}
	r := serve(t, text(1000))
	s := r.login("a")
	done := r.apply(text(1001))
	if len(done.Done) != 1 {
		t.Errorf("%d changes", len(done.Done))
	}
	luns, err := s.ReportLUNs(t.Context())
	if err != nil || len(luns) != 1001 {
		t.Errorf("%d LUNs: %v", len(luns), err)
	}
	attentions(t, s, 1000)
	if _, err := unit(t, s, 1000).WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
	status := r.Status()
	if n := len(status.Targets[0].LUNs); n != 1001 {
		t.Errorf("the status has %d LUNs", n)
	}
}
