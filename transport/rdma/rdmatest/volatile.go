package rdmatest

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"oneshot/backend"
)

// Volatile is a store in memory with a cache that a power cut loses. It does operations one at a time, in an
// order that the seed chooses, and completes them in a goroutine of its own. It lends nothing.
type Volatile struct {
	info backend.Info

	mu      sync.Mutex // not held over completions
	change  *sync.Cond
	rand    *rand.Rand
	data    []byte
	medium  []byte   // what is durable
	dirty   [2]int64 // from, to: where data may differ from medium; empty if to is 0
	pending []*backend.Op
	held    []*backend.Op
	fault   func(*backend.Op) error // nil: none
	tears   bool                    // what fails is done in part
	gate    func(*backend.Op) bool  // nil: nothing hangs
	closed  bool
	over    chan struct{}
}

var _ backend.Store = (*Volatile)(nil)

// NewVolatile returns a store of size bytes, in blocks of 512.
func NewVolatile(size int64, seed uint64) *Volatile {
	s := &Volatile{
		info: backend.Info{Size: size, BlockSize: 512, DiscardGranularity: 4096, VolatileCache: true},
		rand: rand.New(rand.NewPCG(seed, seed)), data: make([]byte, size), medium: make([]byte, size),
		over: make(chan struct{}),
	}
	s.change = sync.NewCond(&s.mu)
	go s.run()
	return s
}

// Info implements backend.Store.
func (s *Volatile) Info() backend.Info { return s.info }

// Submit implements backend.Store.
func (s *Volatile) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.info.Size); op.Err != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil && s.gate(op) {
		s.held = append(s.held, op)
	} else {
		s.pending = append(s.pending, op)
	}
	s.change.Broadcast()
	return false
}

// run does what is pending.
func (s *Volatile) run() {
	defer close(s.over)
	for {
		runtime.Gosched() // lets who submits submit more
		s.mu.Lock()
		for len(s.pending) == 0 && !s.closed {
			s.change.Wait()
		}
		if len(s.pending) == 0 {
			s.mu.Unlock()
			return
		}
		i := s.rand.IntN(len(s.pending))
		op := s.pending[i]
		s.pending = slices.Delete(s.pending, i, i+1)
		s.do(op)
		s.mu.Unlock()
		op.Done.OpDone(op)
	}
}

// do does op. The lock is held.
func (s *Volatile) do(op *backend.Op) {
	if s.fault != nil {
		if op.Err = s.fault(op); op.Err != nil {
			if s.tears {
				s.tear(op)
			}
			return
		}
	}
	at := s.data[op.Off : op.Off+op.Len]
	switch op.Kind {
	case backend.Read:
		for _, seg := range op.Segs {
			at = at[copy(seg, at):]
		}
	case backend.Write:
		for _, seg := range op.Segs {
			at = at[copy(at, seg):]
		}
	case backend.Discard, backend.WriteZeroes:
		clear(at)
	case backend.Flush:
		copy(s.medium[s.dirty[0]:s.dirty[1]], s.data[s.dirty[0]:])
		s.dirty = [2]int64{}
		return
	}
	s.soil(op)
	if op.Flags&backend.FUA != 0 && op.Kind != backend.Read {
		copy(s.medium[op.Off:], s.data[op.Off:op.Off+op.Len])
	}
}

// soil notes that op may have changed octets. The lock is held.
func (s *Volatile) soil(op *backend.Op) {
	if op.Kind == backend.Read || op.Len == 0 {
		return
	}
	if s.dirty[1] == 0 {
		s.dirty[0] = op.Off
	}
	s.dirty = [2]int64{min(s.dirty[0], op.Off), max(s.dirty[1], op.Off+op.Len)}
}

// tear does some of the blocks of an operation that fails. The lock is held.
func (s *Volatile) tear(op *backend.Op) {
	from := make([]byte, op.Len) // of a Discard
	switch op.Kind {
	case backend.Write:
		from = slices.Concat(op.Segs...)
	case backend.Discard, backend.WriteZeroes:
	default:
		return
	}
	s.soil(op)
	for at := range slices.Chunk(s.data[op.Off:op.Off+op.Len], s.info.BlockSize) {
		if s.rand.IntN(2) == 0 {
			copy(at, from)
		}
		from = from[len(at):]
	}
}

// Crash returns what a power cut would leave now of the first n bytes: what is durable, and nothing else.
func (s *Volatile) Crash(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.medium[:n])
}

// Fail has f say how operations fail from now on; nil: they do not. Of what fails nothing is done.
func (s *Volatile) Fail(f func(*backend.Op) error) { s.fail(f, false) }

// FailTorn is Fail, but of a write that fails some blocks are written, which the seed chooses.
func (s *Volatile) FailTorn(f func(*backend.Op) error) { s.fail(f, true) }

func (s *Volatile) fail(f func(*backend.Op) error, tears bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.tears = f, tears
}

// Hold has operations hang from now on of which hangs says so. await waits until n of them do; release lets
// them go on, and none hangs afterwards.
func (s *Volatile) Hold(hangs func(*backend.Op) bool) (await func(n int), release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = hangs
	await = func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.held) < n {
			s.change.Wait()
		}
	}
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		s.pending = append(s.pending, s.held...)
		s.held = nil
		s.change.Broadcast()
	}
	return await, release
}

// Close implements backend.Store. Nothing is outstanding.
func (s *Volatile) Close() error {
	s.mu.Lock()
	s.closed = true
	s.change.Broadcast()
	s.mu.Unlock()
	<-s.over
	return nil
}
