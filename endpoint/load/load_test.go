package load_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/endpoint/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted counts what reaches the store.
type counted struct {
	backend.Store
	reads, writes, fua, flushes int
	farthest                    int64
}

func (c *counted) Submit(op *backend.Op) bool {
	switch op.Kind {
	case backend.Read:
		c.reads++
	case backend.Flush:
		c.flushes++
	case backend.Write:
		if c.writes++; op.Flags&backend.FUA != 0 {
			c.fua++
		}
	}
	c.farthest = max(c.farthest, op.Off+op.Len)
	return c.Store.Submit(op)
}

// The result says what the store was asked to do, and that is within the range and has the flags that were wanted.
// (The store answers within Post, so counting needs no lock.)
func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   load.Config
		check func(s *counted, r *load.Result) bool
	}{
		"reads": {load.Config{Op: load.Read, Size: 4096, Random: true}, func(s *counted, r *load.Result) bool {
			return uint64(s.reads) == r.IOs && s.writes+s.flushes == 0 && r.Reads == r.IOs
		}},
		"a part": {load.Config{Op: load.Read, Size: 8192, Span: 20000}, func(s *counted, r *load.Result) bool {
			return s.farthest == 16384
		}},
		"durable writes": {load.Config{Op: load.Write, Size: 512, Durable: true}, func(s *counted, r *load.Result) bool {
			return uint64(s.fua) == r.IOs && s.reads == 0 && r.Reads == 0
		}},
		"flushes": {load.Config{Op: load.Mixed, Reads: 30, Size: 512, FlushEvery: 5, Options: endpoint.Options{Free: true}}, func(s *counted, r *load.Result) bool {
			return uint64(s.flushes) == r.Flushes && uint64(s.writes) == r.IOs-r.Reads && s.flushes >= s.writes/5-1 && s.flushes <= s.writes/5 && s.reads < s.writes && s.reads > 0 && s.fua == 0
		}},
		"swaps": {load.Config{Op: load.Swap, Size: 4096}, func(s *counted, r *load.Result) bool {
			return r.MBps < r.IOPS*8.1/1e6 && uint64(s.reads) == r.IOs
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &counted{Store: backendtest.NewDisk(1<<20, 512)}
			h := endpointtest.New(t, s)
			c.cfg.URL, c.cfg.Options.Device, c.cfg.Depth, c.cfg.Duration = endpointtest.URL, h.Device, 8, 5*time.Millisecond
			r, err := load.Run(t.Context(), c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.IOs < 8 || r.IOPS <= 0 || r.Max < r.P999 || r.P99 < r.P50 || r.Counts["works"] < 1 || r.Durability != "medium" || !c.check(s, r) {
				t.Errorf("%+v; the store: %d reads, %d writes, %d durable, %d flushes", r, s.reads, s.writes, s.fua, s.flushes)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	f := faulty.New(backendtest.NewDisk(1<<20, 512), 1)
	h := endpointtest.New(t, f)
	good := load.Config{URL: endpointtest.URL, Options: endpoint.Options{Device: h.Device}, Depth: 1, Size: 512, Duration: time.Millisecond}
	for want, change := range map[string]func(c *load.Config){
		"do not fit":              func(c *load.Config) { c.Size = 100 },
		"has a depth":             func(c *load.Config) { c.Depth = 0 },
		"nothing to make durable": func(c *load.Config) { c.Durable = true },
		`"w" is needed`:           func(c *load.Config) { c.Op, c.Options.Rights = load.Write, 1 },
		"Read of 512 bytes at 0":  func(*load.Config) { f.Fail(faulty.Match{Kinds: []backend.Kind{backend.Read}}, &backend.MediumError{}) },
	} {
		c := good
		change(&c)
		if _, err := load.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := load.ParseOp("trim"); err == nil {
		t.Error("trim is a kind of load")
	}
}
