// Package faulty makes a store misbehave on purpose, for tests: the store fails, fills up, ends
// too early, is slow, hangs until it is told to go on, or completes in another order.
//
// What chance decides comes from a seed, which Seed prints and takes back:
//
//	s := faulty.New(inner, faulty.Seed(t))
//	gate := s.Hold(faulty.Match{Kinds: faulty.Writes})
//	… submit …; gate.Await(1); … abort the task …; gate.Release()
package faulty

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
)

// Kinds of operation that faults are often asked for.
var (
	Reads  = []backend.Kind{backend.Read}
	Writes = []backend.Kind{backend.Write, backend.WriteZeroes}
)

// SeedVariable names the environment variable that repeats a run.
const SeedVariable = "ONESHOT_SEED"

// Seed returns a seed and logs it, so that a failed test tells how to repeat it.
func Seed(t testing.TB) uint64 {
	seed, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("repeat with %s=%d", SeedVariable, seed)
	return seed
}

// Ways are the ways in which stores answer: at once, and lending their memory if the inner one does; or later, in any order. Those of the second are *Store.
var Ways = map[string]func(t testing.TB, inner backend.Store) backend.Store{
	"lends": func(_ testing.TB, inner backend.Store) backend.Store { return inner },
	"later": func(t testing.TB, inner backend.Store) backend.Store {
		s := New(inner, Seed(t))
		s.Shuffle()
		return s
	},
}

// Match says which operations a fault meets. The zero value is every operation.
type Match struct {
	Kinds    []backend.Kind // nil: all
	Off, Len int64          // a range, bytes; Len 0: no matter where
	Chance   float64        // of those, this share; 0: all
	Times    int            // only the first Times of those fail; 0: all
}

func (m *Match) hits(op *backend.Op) bool {
	if m.Kinds != nil && !slices.Contains(m.Kinds, op.Kind) {
		return false
	}
	return m.Len == 0 || op.Kind != backend.Flush && op.Off < m.Off+m.Len && m.Off < op.Off+op.Len
}

// rule is one fault: exactly one of the last three is set.
type rule struct {
	match Match
	err   error
	delay time.Duration
	gate  *Gate
}

// Store is a store with faults. Its methods may be called from any number of goroutines.
// It honours fences, also around operations that hang. It lends nothing: what goes past
// Submit would go past the faults too.
type Store struct {
	inner backend.Store
	seq   *backend.Sequencer
	wg    sync.WaitGroup // operations under way outside Submit, and the shuffler

	mu     sync.Mutex // not held over calls to inner and to Completers
	rand   *rand.Rand
	rules  []*rule
	end    int64              // bytes; reads beyond it fail
	room   int64              // pages that may still be written for the first time; -1: any number
	pages  map[int64]struct{} // written, since room is counted
	spare  []*task
	mixed  []*task    // completed, in the hands of the shuffler
	change *sync.Cond // of mixed and closed; nil without shuffler
	closed bool
}

var _ backend.Store = (*Store)(nil)

// New returns a store that does what inner does, and owns it. seed decides what is left to
// chance.
func New(inner backend.Store, seed uint64) *Store {
	s := &Store{
		inner: inner,
		rand:  rand.New(rand.NewPCG(seed, seed)),
		end:   inner.Info().Size,
		room:  -1,
	}
	s.seq = backend.NewSequencer(func(op *backend.Op) { s.begin(op.Done.(*task), false) })
	return s
}

// Info is that of the inner store.
func (s *Store) Info() backend.Info { return s.inner.Info() }

// Fail makes operations that match fail with err; they do not reach the inner store. Faults
// are tried in the order in which they were asked for, and the first that hits counts.
func (s *Store) Fail(m Match, err error) (stop func()) { return s.add(&rule{match: m, err: err}) }

// Delay makes operations that match start d later.
func (s *Store) Delay(m Match, d time.Duration) (stop func()) {
	return s.add(&rule{match: m, delay: d})
}

// Hold makes operations that match hang until Gate.Release.
func (s *Store) Hold(m Match) *Gate {
	g := &Gate{store: s}
	g.arrived.L = &g.mu
	g.stop = s.add(&rule{match: m, gate: g})
	return g
}

func (s *Store) add(r *rule) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, r)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rules = slices.DeleteFunc(s.rules, func(o *rule) bool { return o == r })
	}
}

// pageSize is the unit in which a full disk counts.
const pageSize = 4096

// Fill leaves room for free bytes: pages of 4 KiB that are written for the first time from
// now on use it up, discarded ones give it back, and what does not fit fails with a
// *backend.SpaceError. A negative number ends this.
func (s *Store) Fill(free int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room, s.pages = -1, map[int64]struct{}{}
	if free >= 0 {
		s.room = free / pageSize
	}
}

// Truncate makes the medium end at size bytes: reads that reach beyond fail there with a
// *backend.MediumError.
func (s *Store) Truncate(size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = size
}

// Shuffle makes every operation from now on complete outside Submit, and in any order.
func (s *Store) Shuffle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.change == nil {
		s.change = sync.NewCond(&s.mu)
		s.wg.Go(s.shuffle)
	}
}

// Close closes the inner store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.change != nil {
		s.change.Signal()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return s.inner.Close()
}
