package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

const iqn = "iqn.2026-11.example.oneshot:t"

const config = `
stores:
  disk: {type: memory, size: 64MiB}
  large: {type: memory, size: 64MiB}
targets:
  - {iqn: ` + iqn + `, luns: {0: disk, 300: {store: large, block_size: 4096}}}
  - iqn: iqn.2026-11.example.oneshot:chap
    luns: {0: disk}
    auth: {chap: {user: alice, secret: wonderland-looking}, mutual: {user: bob, secret: another-secret-12}}
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, one_shot: {header: validated}}
  - {transport: iwarp, listen: $PORTAL3, one_shot: {header: every}}
`

// way is one of the ways to a target.
type way struct {
	name string
	rdma bool
	url  string // scheme and query
	port int    // of the target's portals, if it is not the first of its kind
	opt  initiator.Options
}

var ways = []way{
	{name: "TCP", url: "iscsi://%s%s"},
	{name: "TCP with digests", url: "iscsi://%s%s?header_digest=crc32c&data_digest=crc32c"},
	{name: "TCP without immediate data", url: "iscsi://%s%s", opt: initiator.Options{Immediate: -1}},
	{name: "window", rdma: true, url: "iser+iwarp://%s%s"},
	{name: "conventional", rdma: true, url: "iser+iwarp://%s%s", opt: initiator.Options{Flow: initiator.FlowConventional}},
	{name: "register", rdma: true, url: "iser+iwarp://%s%s", opt: initiator.Options{Flow: initiator.FlowRegister, Immediate: -1}},
	{name: "static", rdma: true, url: "iser+iwarp://%s%s", opt: initiator.Options{Flow: initiator.FlowStatic}},
	{name: "one-shot", rdma: true, url: "oneshot+iwarp://%s%s", port: 1},
	{name: "one-shot, STag only where it is valid", rdma: true, url: "oneshot+iwarp://%s%s"},
	{name: "the same with opcodes", rdma: true, url: "oneshot+iwarp://%s%s", opt: initiator.Options{Opcodes: true}},
	{name: "one-shot with opcodes", rdma: true, url: "oneshot+iwarp://%s%s", opt: initiator.Options{Opcodes: true, Immediate: -1, Depth: 3}},
}

func (w way) at(t testing.TB, tg *targettest.Target, path string) initiator.URL {
	t.Helper()
	portal := tg.Portals[0]
	if w.rdma {
		portal = tg.Portals[1+w.port]
	}
	u, err := initiator.ParseURL(fmt.Sprintf(w.url, portal, path))
	check(t, err)
	return u
}

func (w way) dial(t testing.TB, tg *targettest.Target) *initiator.Session {
	t.Helper()
	s, err := initiator.Dial(t.Context(), w.at(t, tg, "/"+iqn), w.opt)
	check(t, err)
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// each runs f over each of the ways to one target.
func each(t *testing.T, f func(*testing.T, *initiator.Session)) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			s := w.dial(t, tg)
			f(t, s)
			check(t, s.Close())
		})
	}
}

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// What is written comes back, in one command or in many, in memory of the session or not.
func TestReadAndWrite(t *testing.T) {
	sizes := []int{4096, 8192, 12288, 64 << 10, 256<<10 + 4096, 1 << 20, 5<<20 + 8192}
	patterns := make([][]byte, len(sizes))
	for i, n := range sizes {
		patterns[i] = pattern(n, uint64(i))
	}
	room := make([]byte, slices.Max(sizes)) // made once: fresh memory costs the race detector more than what is done with it
	each(t, func(t *testing.T, s *initiator.Session) {
		for _, lun := range []int{0, 300} {
			l, err := s.LU(t.Context(), lun)
			check(t, err)
			if l.Size() != 64<<20 {
				t.Fatalf("LUN %d has %d bytes", lun, l.Size())
			}
			for i, n := range sizes {
				want, off := patterns[i], int64(i)<<22
				_, err := l.WriteAt(want, off)
				check(t, err)
				got := room[:n:n]
				clear(got)
				_, err = l.ReadAt(got, off)
				check(t, err)
				if !bytes.Equal(got, want) {
					t.Fatalf("LUN %d: %d bytes came back otherwise", lun, n)
				}
			}
			check(t, l.Flush(t.Context()))
			inMemory(t, s, l)
		}
	})
}

func inMemory(t *testing.T, s *initiator.Session, l *initiator.LU) {
	t.Helper()
	m, err := s.Alloc(1 << 20)
	check(t, err)
	defer m.Free()
	want := pattern(len(m.Bytes())/2, 77)
	copy(m.Bytes(), want)
	half := m.Bytes()[1<<19:]
	w := &initiator.Command{Out: m.Bytes()[: 1<<19 : 1<<19], Memory: m}
	check(t, l.Prepare(w, 8192))
	check(t, s.Do(t.Context(), w))
	r := &initiator.Command{In: half, Memory: m}
	check(t, l.Prepare(r, 8192))
	check(t, s.Do(t.Context(), r))
	if !bytes.Equal(half, want) || r.Transferred != len(half) {
		t.Fatalf("%d bytes came back otherwise", r.Transferred)
	}
}

// Streams of any length: what does not fill the last block stays.
func TestCopy(t *testing.T) {
	const most = 3<<20 + 17
	const room = 3<<20 + 3*4096
	first, old := pattern(room, 1), make([]byte, room) // whole blocks, and more than is read
	patterns := map[int][]byte{}
	for i, n := range []int{0, 1, 4095, 4096, 4097, most} {
		patterns[n] = pattern(n, uint64(10+i))
	}
	var back bytes.Buffer
	back.Grow(len(old))
	each(t, func(t *testing.T, s *initiator.Session) {
		l, err := s.LU(t.Context(), 300)
		check(t, err)
		copy(old, first)
		_, err = l.WriteAt(old, 4096)
		check(t, err)
		for _, n := range []int{0, 1, 4095, 4096, 4097, most} {
			want := patterns[n]
			told := int64(0)
			got, err := l.CopyFrom(t.Context(), bytes.NewReader(want), 4096, func(n int64) { told = n })
			check(t, err)
			if got != int64(n) || told != int64(n) {
				t.Fatalf("copied %d and told %d of %d", got, told, n)
			}
			copy(old, want)
			back.Reset()
			check(t, l.CopyTo(t.Context(), &back, 4096, int64(n+5000), nil))
			if !bytes.Equal(back.Bytes(), old[:n+5000]) {
				t.Fatalf("%d bytes came back otherwise", n)
			}
		}
		if _, err := l.CopyFrom(t.Context(), io.LimitReader(zeroes{}, 2<<20), l.Size()-1<<20, nil); err == nil {
			t.Error("2 MiB fit into the last MiB")
		}
		if err := l.CopyTo(t.Context(), failing{}, 0, 4<<20, nil); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("a writer that fails: %v", err)
		}
	})
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// What the target refuses comes back as its sense data, short data with its length, and what
// makes no sense is not sent.
func TestRefusals(t *testing.T) {
	each(t, func(t *testing.T, s *initiator.Session) {
		l, err := s.LU(t.Context(), 0)
		check(t, err)
		beyond := &initiator.Command{CDB: []byte{0x28, 0, 0x7f, 0, 0, 0, 0, 0, 1, 0}, In: make([]byte, 512)}
		err = s.Do(t.Context(), beyond)
		if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != 5 || e.ASC != 0x21 {
			t.Errorf("READ beyond the end: %v", err)
		}
		inquiry := &initiator.Command{CDB: []byte{0x12, 0, 0, 1, 0, 0}, In: make([]byte, 256)}
		if err := s.Do(t.Context(), inquiry); err != nil || inquiry.Transferred >= 256 || inquiry.Transferred < 36 {
			t.Errorf("INQUIRY: %v, %d bytes", err, inquiry.Transferred)
		}
		for what, c := range map[string]*initiator.Command{
			"no CDB":    {},
			"both ways": {CDB: make([]byte, 6), In: make([]byte, 1), Out: make([]byte, 1)},
			"LUN":       {CDB: make([]byte, 6), LUN: 1 << 14},
			"long CDB":  {CDB: make([]byte, 32)},
		} {
			if err := s.Do(t.Context(), c); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		for _, off := range []int64{-512, 1, l.Size(), 1 << 60} {
			if _, err := l.ReadAt(make([]byte, 512), off); err == nil {
				t.Errorf("ReadAt %d: no error", off)
			}
		}
		if n, err := l.ReadAt(make([]byte, 1024), l.Size()-512); n != 512 || !errors.Is(err, io.EOF) {
			t.Errorf("ReadAt over the end: %d, %v", n, err)
		}
		if err := s.Do(t.Context(), &initiator.Command{LUN: 7, CDB: make([]byte, 6)}); err == nil {
			t.Error("a LUN that is not there is ready")
		}
		luns, err := s.ReportLUNs(t.Context())
		if err != nil || fmt.Sprint(luns) != "[0 300]" {
			t.Errorf("LUNs %v, %v", luns, err)
		}
		id, err := s.Identify(t.Context(), 0)
		if err != nil || id.Vendor != "ONESHOT" || id.Serial == "" || len(id.Designators) == 0 {
			t.Errorf("identity %+v, %v", id, err)
		}
	})
}

// Many goroutines, more commands than the session holds at a time.
func TestManyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *initiator.Session) {
		l, err := s.LU(t.Context(), 0)
		check(t, err)
		var wg sync.WaitGroup
		for g := range 200 {
			wg.Go(func() {
				want := pattern(16<<10, uint64(g))
				off := int64(g) << 16
				if _, err := l.WriteAt(want, off); err != nil {
					t.Error(err)
				}
				got := make([]byte, len(want))
				if _, err := l.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
					t.Errorf("goroutine %d: %v, or other bytes", g, err)
				}
			})
		}
		wg.Wait()
	})
}

// A target that dies under load: every command ends, with an error, and so does Close.
func TestTargetDies(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			tg := targettest.Start(t, config)
			s := w.dial(t, tg)
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			var wg sync.WaitGroup
			killed := make(chan struct{})
			for g := range 8 {
				wg.Go(func() {
					b := pattern(256<<10, uint64(g))
					for n := 0; ; n++ {
						if _, err := l.WriteAt(b, int64(g)<<20); err != nil {
							return
						}
						if n == 3 && g == 0 {
							close(killed)
						}
					}
				})
			}
			<-killed
			tg.Kill()
			wg.Wait()
			if _, err := l.ReadAt(make([]byte, 512), 0); err == nil {
				t.Error("a command on a session that has ended")
			}
			_ = s.Close()
		})
	}
}

// A session is closed while commands are under way: they end.
func TestCloseUnderLoad(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			s := w.dial(t, tg)
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			var wg sync.WaitGroup
			for g := range 4 {
				c := &initiator.Command{Out: pattern(1<<20, uint64(g))}
				check(t, l.Prepare(c, int64(g)<<20))
				wg.Add(1)
				c.Done = func(*initiator.Command) { wg.Done() }
				s.Start(c)
			}
			_ = s.Close()
			wg.Wait()
			late := &initiator.Command{CDB: make([]byte, 6)}
			if err := s.Do(t.Context(), late); err == nil {
				t.Error("a command after Close")
			}
			if _, err := s.Alloc(4096); err == nil && w.rdma {
				t.Error("memory after Close")
			}
		})
	}
}

// Commands whose context ends are aborted or have ended; the session goes on either way.
func TestContextEnds(t *testing.T) {
	each(t, func(t *testing.T, s *initiator.Session) {
		l, err := s.LU(t.Context(), 0)
		check(t, err)
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			c := &initiator.Command{Out: pattern(1<<20, uint64(i))}
			check(t, l.Prepare(c, 0))
			done := make(chan error)
			go func() { done <- s.Do(ctx, c) }()
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		_, err = l.ReadAt(make([]byte, 4096), 0)
		check(t, err)
	})
}

func TestCHAP(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			good := initiator.Credentials{Name: "alice", Secret: []byte("wonderland-looking")}
			bob := initiator.Credentials{Name: "bob", Secret: []byte("another-secret-12")}
			bad := initiator.Credentials{Name: "alice", Secret: []byte("wonderland-lookinG")}
			for _, c := range []struct {
				chap, mutual *initiator.Credentials
				ok           bool
			}{{&good, nil, true}, {&good, &bob, true}, {nil, nil, false}, {&bad, nil, false}, {&good, &bad, false}} {
				u := w.at(t, tg, "/iqn.2026-11.example.oneshot:chap/0")
				u.CHAP, u.Mutual = c.chap, c.mutual
				s, err := initiator.Dial(t.Context(), u, w.opt)
				if c.ok != (err == nil) {
					t.Fatalf("%v: %v", c, err)
				}
				if err == nil {
					_, err = s.LU(t.Context(), 0)
					check(t, err)
					check(t, s.Close())
				} else if strings.Contains(err.Error(), "wonderland") {
					t.Errorf("the error tells the secret: %v", err)
				}
			}
			// A target that asks for nothing cannot prove anything either.
			u := w.at(t, tg, "/"+iqn)
			u.CHAP, u.Mutual = &good, &bob
			if _, err := initiator.Dial(t.Context(), u, w.opt); err == nil {
				t.Error("mutual CHAP with a target that has none")
			}
		})
	}
}

func TestDiscover(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			u := w.at(t, tg, "")
			found, err := initiator.Discover(t.Context(), u, w.opt)
			if err != nil || len(found) != 2 || found[0].Name != iqn || found[0].Portals[0].Address != u.Address {
				t.Fatalf("%+v, %v", found, err)
			}
			if _, err := initiator.Dial(t.Context(), u, w.opt); err == nil {
				t.Error("a session with no target")
			}
			u.Target = "iqn.2026-11.example.oneshot:none"
			_, err = initiator.Dial(t.Context(), u, w.opt)
			if e, ok := errors.AsType[*initiator.LoginError](err); !ok || e.Status != pdu.LoginNotFound {
				t.Errorf("a target that is not there: %v", err)
			}
		})
	}
}

// What is counted as a crossing, and what is not: RDMA Reads are messages on the wire.
func TestCrossingsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		counters initiator.Counters
		want     initiator.Crossings
	}{
		"RDMA": {
			initiator.Counters{{"posts", 2}, {"works", 9}, {"polls", 3}, {"completions", 8}, {"read_requests", 5}, {"receive_posts", 1}, {"doorbells", 4}, {"events", 2}},
			initiator.Crossings{Out: 2, In: 3},
		},
		"registering": {
			initiator.Counters{{"posts", 3}, {"polls", 3}, {"registrations", 1}, {"deregistrations", 1}},
			initiator.Crossings{Out: 5, In: 5},
		},
		"TCP": {
			initiator.Counters{{"writes", 4}, {"reads", 7}, {"messages_out", 20}, {"messages_in", 30}},
			initiator.Crossings{Out: 4, In: 7},
		},
	} {
		if got := c.counters.Crossings(); got != c.want || got.Sum() != c.want.Out+c.want.In {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The crossings per I/O of one-shot.md §7, where a command is alone, of a storage write that is pulled
// (FIG 3 and 4 of the source) and of a read. At the target the completion of the answer comes on top.
func TestCrossings(t *testing.T) {
	tg := targettest.Start(t, config)
	for flow, want := range map[initiator.Flow]uint64{ // each way
		initiator.FlowConventional: 5, initiator.FlowRegister: 3, initiator.FlowWindow: 1, initiator.FlowStatic: 1, initiator.FlowOneShot: 1,
	} {
		for _, o := range []struct {
			write   bool
			size    int
			out, in uint64 // at the target
		}{{false, 64 << 10, 1, 2}, {true, 64 << 10, 2, 3}, {false, 1 << 20, 1, 2}, {true, 1 << 20, 2, 3}} {
			t.Run(fmt.Sprintf("%v, write %v, %d bytes", flow, o.write, o.size), func(t *testing.T) {
				w := way{rdma: true, url: "iser+iwarp://%s%s", opt: initiator.Options{Flow: flow}}
				if flow == initiator.FlowOneShot {
					w.url = "oneshot+iwarp://%s%s"
				}
				s := w.dial(t, tg)
				defer s.Close()
				l, err := s.LU(t.Context(), 0)
				check(t, err)
				m, err := s.Alloc(o.size)
				check(t, err)
				c := &initiator.Command{In: m.Bytes(), Memory: m}
				if o.write {
					c.In, c.Out = nil, m.Bytes()
				}
				check(t, l.Prepare(c, 0))
				before, told := s.Counters(), targetCounters(t, s)
				const n = 48
				for range n {
					check(t, s.Do(t.Context(), c))
				}
				d := s.Counters().Sub(before)
				// One Send of 16 is signalled, whose completion is a crossing if it comes alone;
				// the question for the target's counters is one post and one completion.
				got := d.Crossings()
				if got.Out != want*n+1 || got.In < want*n+1 || got.In > want*n+1+n/16 {
					t.Errorf("%+v for %d commands, want %d each way: %v", got, n, want, d)
				}
				// Completions that come together are one crossing, so that there may be fewer; work that did not
				// fit into one post is another.
				target := targetCounters(t, s).Sub(told)
				got = target.Crossings()
				if got.Out != o.out*n+1 || got.In > o.in*n+3 || got.In < (o.in-1)*n {
					t.Errorf("target: %+v for %d commands, want %d and %d each: %v", got, n, o.out, o.in, target)
				}
			})
		}
	}
}

func targetCounters(t *testing.T, s *initiator.Session) initiator.Counters {
	t.Helper()
	c, err := s.TargetCounters(t.Context())
	check(t, err)
	return c
}

// A READ and a WRITE allocate nothing over TCP and one-shot RDMA. Registering memory and binding
// windows is what the other flows are about, and does.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		return // the race detector's own
	}
	tg := targettest.Start(t, config)
	for _, w := range ways {
		if w.rdma && w.url != "oneshot+iwarp://%s%s" {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			w.opt.Depth = 4
			s := w.dial(t, tg)
			defer s.Close()
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			m, err := s.Alloc(64 << 10)
			check(t, err)
			for _, n := range []int{4096, 64 << 10} {
				for _, write := range []bool{false, true} {
					c := &initiator.Command{In: m.Bytes()[:n:n], Memory: m}
					if write {
						c.In, c.Out = nil, c.In
					}
					done := make(chan struct{}, 1)
					c.Done = func(*initiator.Command) { done <- struct{}{} }
					one := func() {
						if err := l.Prepare(c, 0); err != nil {
							t.Fatal(err)
						}
						s.Start(c)
						<-done
					}
					for range 300 { // the rings come to their sizes
						one()
					}
					got := testing.AllocsPerRun(200, one)
					check(t, c.Failure())
					if got >= 1 {
						t.Errorf("%d bytes, write %v: %v allocations", n, write, got)
					}
				}
			}
		})
	}
}

// Connecting to nobody, to somebody who says nothing, and for too short a time.
func TestNobody(t *testing.T) {
	noLeaks(t)
	silent := listen(t)
	for _, w := range ways {
		u, err := initiator.ParseURL(fmt.Sprintf(w.url, silent, "/"+iqn))
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err = initiator.Dial(ctx, u, w.opt); err == nil {
			t.Errorf("%s: a login with somebody who says nothing", w.name)
		}
		cancel()
		u.Address = "127.0.0.1:1"
		if _, err = initiator.Dial(t.Context(), u, w.opt); err == nil {
			t.Errorf("%s: a login with nobody", w.name)
		}
	}
}
