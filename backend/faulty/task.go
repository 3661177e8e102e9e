package faulty

import (
	"errors"
	"sync"
	"time"

	"oneshot/backend"
)

// task is an operation on its way through: a copy of it goes to the inner store.
type task struct {
	store  *Store
	caller *backend.Op
	op     backend.Op
	token  uint64 // of the sequencer
}

// OpDone is told by the inner store.
func (t *task) OpDone(*backend.Op) { t.store.complete(t) }

// Submit starts op, with what faults it meets.
func (s *Store) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.Info().Size); op.Err != nil {
		return true
	}
	t := s.newTask(op)
	if !s.seq.Enter(&t.op) {
		return false
	}
	return s.begin(t, true)
}

func (s *Store) newTask(op *backend.Op) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t *task
	if n := len(s.spare); n > 0 {
		t, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		t = &task{store: s}
	}
	t.caller, t.op = op, *op
	t.op.Done = t
	return t
}

// begin meets the faults. It reports whether t has completed, which it does only within
// Submit.
func (s *Store) begin(t *task, submit bool) bool {
	t.token = t.op.Private
	r := s.fault(&t.op)
	switch {
	case r.gate != nil && r.gate.hold(t):
		return false
	case r.delay > 0:
		s.wg.Add(1)
		time.AfterFunc(r.delay, func() { s.proceed(t, false); s.wg.Done() })
		return false
	case r.err != nil:
		t.op.Err = r.err
		return s.completed(t, submit)
	}
	return s.proceed(t, submit)
}

// proceed goes past the faults.
func (s *Store) proceed(t *task, submit bool) bool {
	if !s.inner.Submit(&t.op) {
		return false
	}
	return s.completed(t, submit)
}

// completed ends t at once if that is wanted, and reports so.
func (s *Store) completed(t *task, submit bool) bool {
	s.mu.Lock()
	submit = submit && s.change == nil
	s.mu.Unlock()
	if !submit {
		s.complete(t)
		return false
	}
	t.answer()
	s.leave(t)
	return true
}

// complete ends t outside Submit.
func (s *Store) complete(t *task) {
	s.mu.Lock()
	if s.change != nil && !s.closed {
		s.mixed = append(s.mixed, t)
		s.change.Signal()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.finish(t)
}

func (s *Store) finish(t *task) {
	t.answer()
	op := t.caller
	op.Done.OpDone(op)
	s.leave(t)
}

// answer copies the results to the caller's operation.
func (t *task) answer() {
	t.caller.Err, t.caller.Mapped, t.caller.Extent, t.caller.Did = t.op.Err, t.op.Mapped, t.op.Extent, t.op.Did
}

func (s *Store) leave(t *task) {
	token := t.token
	*t = task{store: s}
	s.mu.Lock()
	s.spare = append(s.spare, t)
	s.mu.Unlock()
	s.seq.Leave(token)
}

// shuffle ends tasks in random order until the store is closed.
func (s *Store) shuffle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.mixed) == 0 {
			if s.closed {
				return
			}
			s.change.Wait()
		}
		i, last := s.rand.IntN(len(s.mixed)), len(s.mixed)-1
		t := s.mixed[i]
		s.mixed[i], s.mixed = s.mixed[last], s.mixed[:last]
		s.mu.Unlock()
		s.finish(t)
		s.mu.Lock()
	}
}

var (
	errFull  = errors.New("faulty: the disk is full")
	errShort = errors.New("faulty: the medium ends here")
)

// fault returns what op meets: a rule that does nothing if there is no fault.
func (s *Store) fault(op *backend.Op) rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rules {
		m := &r.match
		if !m.hits(op) || m.Times < 0 || m.Chance > 0 && s.rand.Float64() >= m.Chance {
			continue
		}
		if m.Times > 0 {
			if m.Times--; m.Times == 0 {
				m.Times = -1
			}
		}
		return *r
	}
	if op.Kind == backend.Read && op.Off+op.Len > s.end {
		return rule{err: &backend.MediumError{Kind: op.Kind, Off: max(op.Off, s.end), Err: errShort}}
	}
	if s.room >= 0 {
		return rule{err: s.use(op)}
	}
	return rule{}
}

// use counts the pages that op needs. Called with mu held.
func (s *Store) use(op *backend.Op) error {
	first, end := op.Off/pageSize, (op.Off+op.Len+pageSize-1)/pageSize
	switch op.Kind {
	case backend.Write, backend.WriteZeroes:
		for p := first; p < end && op.Len > 0; p++ {
			if _, ok := s.pages[p]; ok {
				continue
			}
			if s.room == 0 {
				return &backend.SpaceError{Off: max(op.Off, p*pageSize), Err: errFull}
			}
			s.room--
			s.pages[p] = struct{}{}
		}
	case backend.Discard:
		for p := (op.Off + pageSize - 1) / pageSize; p < (op.Off+op.Len)/pageSize; p++ {
			if _, ok := s.pages[p]; ok {
				s.room++
				delete(s.pages, p)
			}
		}
	}
	return nil
}

// Gate holds operations.
type Gate struct {
	store *Store
	stop  func()

	mu      sync.Mutex // not held over calls to the store
	held    []*task
	arrived sync.Cond
	open    bool
}

// hold keeps t unless the gate was opened in the meantime.
func (g *Gate) hold(t *task) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return false
	}
	g.held = append(g.held, t)
	g.arrived.Broadcast()
	return true
}

// Await returns once n operations hang.
func (g *Gate) Await(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.held) < n {
		g.arrived.Wait()
	}
}

// Held returns how many operations hang.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// Next lets the oldest operation that hangs go on; there has to be one.
func (g *Gate) Next() {
	g.mu.Lock()
	t := g.held[0]
	g.held = g.held[1:]
	g.mu.Unlock()
	g.store.proceed(t, false)
}

// Release lets the operations that hang go on, in the order in which they came, and holds
// no more.
func (g *Gate) Release() {
	g.stop()
	g.mu.Lock()
	g.open = true
	g.mu.Unlock()
	for g.Held() > 0 {
		g.Next()
	}
}
