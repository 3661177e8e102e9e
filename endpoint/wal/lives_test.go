package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/internal/rounds"
)

// life is one of several lives of a program, of which only one should be there.
type life struct {
	l *Log
	e *endpoint.Endpoint
}

func begin(t *testing.T, use func(endpoint.Options) *endpoint.Endpoint, o Options) *life {
	t.Helper()
	return beginWith(t, use, endpoint.Options{Sole: true}, o)
}

func beginWith(t *testing.T, use func(endpoint.Options) *endpoint.Endpoint, eo endpoint.Options, o Options) *life {
	t.Helper()
	e := use(eo)
	l, err := Open(t.Context(), e, o)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return &life{l, e}
}

// add appends, and reports whether the record is durable. Otherwise another life has gone on with the log.
func (a *life) add(t *testing.T, p string) bool {
	t.Helper()
	_, w := a.l.Append([]byte(p))
	err := w.Wait()
	if err != nil && !errors.Is(err, ErrTaken) {
		t.Fatal(err)
	}
	return err == nil
}

// A log needs an endpoint that only one life has at a time.
func TestShared(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
	if _, err := Open(t.Context(), h.Use(endpoint.Options{}), Options{}); !errors.Is(err, ErrShared) {
		t.Error(err)
	}
}

// Of two lives that both run, each that is told that its record is durable finds it in the log; the other one is told that the
// log is not its own any more.
func TestTwoLives(t *testing.T) {
	nearAndFar(t, func(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint) {
		h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
		use := user(h)
		first := begin(t, use, Options{Segment: testSegment})
		var want []string
		add := func(who *life, p string, ok bool) {
			t.Helper()
			if who.add(t, p) != ok {
				t.Fatalf("%s is durable: %v", p, !ok)
			}
			if ok {
				want = append(want, p)
			}
		}
		add(first, "a", true)
		second := begin(t, use, Options{})
		add(first, "the second has not written", true)
		add(second, "the first has", false)
		third := begin(t, use, Options{})
		add(third, "b", true)
		add(first, "late", false)
		add(third, "c", true)
		if got := records(t, begin(t, use, Options{}).l); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A life whose user makes another connection, to read say, does not overwrite what the next life has written meanwhile.
func TestReconnected(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
	first := begin(t, h.Use, Options{Segment: testSegment})
	first.add(t, "a")
	second := begin(t, h.Use, Options{})
	if !second.add(t, "b") {
		t.Fatal("the second life writes nothing")
	}
	must(t, first.e.Reconnect(t.Context()))
	if first.add(t, "late") {
		t.Error("both lives have written the same record")
	}
	if got, want := records(t, begin(t, h.Use, Options{}).l), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The same with many lives in random turns, over the ends of segments and laps, and over power cuts. Some records are the same.
func TestManyLives(t *testing.T) {
	nearAndFar(t, func(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint) {
		first := faulty.Seed(t)
		for round := range uint64(rounds.Of(20, 10)) {
			seed := first + round
			m := &many{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), disk: backendtest.NewDisk(testSize, testBlock)}
			m.h = endpointtest.New(t, m.disk)
			m.use = user(m.h)
			m.lives = []*life{begin(t, m.use, Options{Segment: testSegment})}
			for range 80 {
				m.step()
			}
			l := begin(t, m.use, Options{}).l
			got := records(t, l)
			if first := int(l.First()); first > max(m.truncated, 1) || !slices.Equal(got, m.want[first-1:]) {
				t.Fatalf("seed %d: %d records from %d on, want those up to %d; truncated was below %d", seed, len(got), first, len(m.want), m.truncated)
			}
		}
	})
}

// many is the lives of TestManyLives, and the log as it should be.
type many struct {
	t         *testing.T
	seed      uint64
	r         *rand.Rand
	disk      *backendtest.Disk
	h         *endpointtest.Host
	use       func(endpoint.Options) *endpoint.Endpoint
	lives     []*life
	want      []string // by LSN-1
	truncated int      // LSN below which somebody was told that they are
}

// step has one of the lives do something, which goes well, or the log is full, or that life hears of another one.
func (m *many) step() {
	switch {
	case m.r.IntN(12) == 0:
		m.disk = backendtest.DiskOf(m.disk.Crash(m.r, 0.5), testBlock)
		m.h.Restart(m.disk)
	case m.r.IntN(10) == 0 && len(m.lives) < 5:
		m.lives = append(m.lives, begin(m.t, m.use, Options{}))
	}
	who := m.r.IntN(len(m.lives))
	l := m.lives[who].l
	var err error
	switch m.r.IntN(8) {
	case 0, 1:
		lsn := l.First() + uint64(m.r.IntN(int(l.next-l.First())+1))
		if err = l.Truncate(lsn); err == nil {
			m.truncated = max(m.truncated, int(lsn))
		}
	case 2:
		err = l.Replay(m.t.Context(), 0, func(lsn uint64, p []byte) error {
			if lsn > uint64(len(m.want)) || m.want[lsn-1] != string(p) {
				m.t.Fatalf("seed %d: record %d of %d is %.20q", m.seed, lsn, len(m.want), p)
			}
			return nil
		})
	default:
		p := strings.Repeat("x", 1+m.r.IntN(2)*testBlock)
		lsn, w := l.Append([]byte(p))
		if err = w.Wait(); err == nil {
			if m.want = append(m.want, p); lsn != uint64(len(m.want)) {
				m.t.Fatalf("seed %d: record %d is durable, %d is due", m.seed, lsn, len(m.want))
			}
		}
	}
	switch {
	case errors.Is(err, ErrTaken):
		_ = l.Close()
		must(m.t, m.lives[who].e.Close())
		m.lives[who] = begin(m.t, m.use, Options{})
	case err != nil && !errors.Is(err, ErrFull):
		m.t.Fatalf("seed %d: %v", m.seed, err)
	}
}

// Of two lives that have found the same, and write the same, each would find its own octets where the other has written. They are told apart all
// the same: each record whose Wait returns nil is there for itself.
func TestLivesThatWriteTheSame(t *testing.T) {
	for before := range 16 { // at any place of a segment, and at the end of one
		h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
		first := begin(t, h.Use, Options{Segment: testSegment})
		for range before {
			first.add(t, "old")
		}
		lives := []*life{begin(t, h.Use, Options{}), begin(t, h.Use, Options{})}
		for _, a := range lives { // if that frees a segment they write a mark, and nothing behind it
			if err := a.l.Truncate(uint64(before)); err != nil && !errors.Is(err, ErrTaken) {
				t.Fatal(err)
			}
		}
		want := 0
		for range 2 {
			for _, a := range lives {
				if a.add(t, "same") {
					want++
				}
			}
		}
		got := 0
		for _, p := range records(t, begin(t, h.Use, Options{}).l) {
			if p == "same" {
				got++
			}
		}
		if got != want || want == 0 {
			t.Errorf("behind %d records: %d records are durable, and %d are there", before, want, got)
		}
	}
}

// What an earlier life has sent, and what hangs in the store, is not written after the next life has opened the log.
func TestLate(t *testing.T) {
	nearAndFar(t, func(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint) {
		store := faulty.New(backendtest.NewDisk(testSize, testBlock), faulty.Seed(t))
		h := endpointtest.New(t, store)
		use := user(h)
		first := beginWith(t, use, endpoint.Options{Sole: true, Retry: -1}, Options{Segment: testSegment})
		first.add(t, "a")
		gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
		_, w := first.l.Append([]byte("hangs"))
		gate.Await(1)
		released := make(chan struct{})
		h.Told(func() {
			close(released)
			gate.Release()
		})
		second := begin(t, use, Options{})
		select {
		case <-released:
		default:
			t.Error("the log is open while a write of an earlier life hangs")
			gate.Release()
		}
		got := records(t, second.l)
		if w.Wait() == nil && !slices.Equal(got, []string{"a", "hangs"}) {
			t.Errorf("%q: a record that is durable is not there", got)
		}
	})
}

// A log whose connection has ended in favour of another one is read all the same, and can be opened again; and it looks whether
// that one has written, before it writes.
func TestReplayReplaced(t *testing.T) {
	nearAndFar(t, func(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint) {
		h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
		use := user(h)
		first := begin(t, use, Options{Segment: testSegment})
		first.add(t, "a")
		use(endpoint.Options{Sole: true}) // it does nothing
		if got := records(t, first.l); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q", got)
		}
		if !first.add(t, "b") {
			t.Fatal("nobody else has written, and the log has ended")
		}
		second := begin(t, use, Options{})
		second.add(t, "c")
		if got := records(t, first.l); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%q", got)
		}
		if first.add(t, "d") {
			t.Error("the log is written by two")
		}
		again, err := Open(t.Context(), second.e, Options{}) // whose connection has ended, too
		must(t, err)
		t.Cleanup(func() { _ = again.Close() })
		if got := records(t, again); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("%q", got)
		}
	})
}

// Who replays records that another life has truncated meanwhile, and written over, hears of that life, not of damage.
func TestReplayTaken(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
	first := begin(t, h.Use, Options{Segment: testSegment})
	first.add(t, "a")
	second := begin(t, h.Use, Options{})
	for range 5 * int(testSegment/testBlock) {
		lsn, w := second.l.Append([]byte("b"))
		must(t, w.Wait())
		must(t, second.l.Truncate(lsn))
	}
	if err := first.l.Replay(t.Context(), 0, func(uint64, []byte) error { return nil }); !errors.Is(err, ErrTaken) {
		t.Errorf("%v, want %v", err, ErrTaken)
	}
}

// A life whose log another one has replaced by a new log, of the same shape, does not write into that.
func TestCreatedAnew(t *testing.T) {
	for before := range 2 * int(testSegment/testBlock) {
		h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
		first := begin(t, h.Use, Options{Segment: testSegment})
		for range before {
			first.add(t, "old")
		}
		second := begin(t, h.Use, Options{Segment: testSegment, Create: true})
		var want []string
		for n := range 12 {
			want = append(want, fmt.Sprint("new ", n))
			second.add(t, want[n])
		}
		if first.add(t, "late") {
			t.Errorf("a log of %d records that is gone is written", before)
		}
		if got := records(t, begin(t, h.Use, Options{}).l); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
