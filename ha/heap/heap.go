package heap

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"oneshot/backend"
	"oneshot/ha/heap/wire"
)

// Heap is a heap in a store, open. Its methods may be called from any goroutine.
type Heap struct {
	store  backend.Store
	term   uint64 // of the store, for as long as this is the heap's only user; 0: the store has none
	size   int64
	block  int
	mapped *mapping
	wg     sync.WaitGroup
	wake   chan struct{} // holds one element if there may be something to do
	over   chan struct{} // closed by fail

	mu   sync.Mutex // not held over the store's operations
	core *Core
	err  error // why the heap has failed
}

// Open opens the heap that s has, or makes one in a store that has nothing. s stays open until Close has returned; if it is a
// backend.Termed it has to be served by this process, and the heap fails when that ends.
func Open(s backend.Store) (*Heap, error) {
	info := s.Info()
	size := min(info.Size, MaxSize) // a store may have grown beyond what its heap can use
	if err := CheckSize(size, info.BlockSize); err != nil {
		return nil, err
	}
	h := &Heap{store: s, size: size, block: max(info.BlockSize, sectorLen), wake: make(chan struct{}, 1), over: make(chan struct{})}
	if t, ok := backend.As[backend.Termed](s); ok {
		if h.term = t.Term(); h.term == 0 {
			return nil, &backend.MovedError{Name: "the heap"}
		}
	}
	if err := h.recover(); err != nil {
		if h.mapped != nil {
			err = errors.Join(err, h.mapped.free())
		}
		return nil, err
	}
	h.wg.Go(h.run)
	return h, nil
}

// sectorLen is the least that is written.
const sectorLen = 512

// recover makes the Core.
func (h *Heap) recover() error {
	fresh, err := isNew(h.read)
	if err != nil {
		return err
	}
	if fresh {
		if err := CheckSize(h.store.Info().Size, h.block); err != nil {
			return err
		}
		var random [24]byte
		_, _ = rand.Read(random[:]) // never fails
		for _, w := range format(h.size, random) {
			if err := h.do(w); err != nil {
				return err
			}
		}
	}
	first := make([]byte, tableOff)
	if err := h.read(first, 0); err != nil {
		return err
	}
	s, ok := decodeSuper(first)
	if !ok {
		s, _ = decodeSuper(first[superLen:])
	}
	if h.mapped, err = mapMemory(s.number, MemoryLen(h.size)); err != nil {
		return err
	}
	if h.core, err = recovered(h.read, h.size, h.block, h.mapped.bytes); err != nil {
		return err
	}
	for {
		w, ok := h.core.Next()
		if !ok {
			return nil
		}
		if err := h.do(w); err != nil {
			return err
		}
		h.core.Done()
	}
}

// finished is a backend.Completer that can be waited for.
type finished chan struct{}

func (f finished) OpDone(*backend.Op) { f <- struct{}{} }

// submit does an operation of the store, in the term of the heap.
func (h *Heap) submit(op *backend.Op) error {
	f := make(finished, 1)
	op.Term, op.Done = h.term, f
	if !h.store.Submit(op) {
		<-f
	}
	return op.Err
}

func (h *Heap) do(w Work) error {
	if w.Flush {
		return h.submit(&backend.Op{Kind: backend.Flush})
	}
	return h.submit(&backend.Op{Kind: backend.Write, Off: w.Off, Len: int64(len(w.Data)), Segs: [][]byte{w.Data}})
}

func (h *Heap) read(b []byte, off int64) error {
	return h.submit(&backend.Op{Kind: backend.Read, Off: off, Len: int64(len(b)), Segs: [][]byte{b}})
}

// prove says whether the heap was still this process's when it was called. A store that somebody else may serve does not
// read for one that does not.
func (h *Heap) prove() error {
	if h.term == 0 {
		return nil
	}
	return backend.Prove(h.store, h.term)
}

// Memory is where the objects are, for users to read. It changes as long as the heap is open.
func (h *Heap) Memory() []byte { return h.mapped.bytes }

// Base is the address that pointers have for the first octet of Memory, Key their STag. Both are the same wherever the heap is
// opened.
func (h *Heap) Base() uint64 { return h.core.Base() }

// Key is described with Base.
func (h *Heap) Key() uint32 { return h.core.Key() }

// Failed is closed when the heap is of no use any more: its store has failed, or somebody else serves it. Then every request ends
// as Moved.
func (h *Heap) Failed() <-chan struct{} { return h.over }

// Err says why the heap has failed.
func (h *Heap) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// errClosed is why a heap that was closed has failed.
var errClosed = errors.New("the heap is closed")

// Fail ends the heap, for a reason that Err then has: requests end as Moved, unless their end is known. Close has to follow.
func (h *Heap) Fail(err error) { h.fail(err) }

// Close ends the heap. What it was asked for and has not done may be done at the next Open, or not. Nobody may have Memory any more.
func (h *Heap) Close() error {
	h.fail(errClosed)
	h.wg.Wait()
	return h.mapped.free()
}

func (h *Heap) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
		close(h.over)
	}
}

// Do does a request, and returns the answer. The data of m is borrowed until then; those of the answer are the caller's.
func (h *Heap) Do(m wire.Message) wire.Message {
	answer := wire.Message{Op: m.Op, Client: m.Client, Number: m.Number}
	if m.Op == wire.Read {
		h.mu.Lock()
		answer.Data, answer.Status = h.core.Read(m.Pointer)
		h.mu.Unlock()
		answer.Pointer = m.Pointer
		if err := h.prove(); err != nil { // after it was read: what was true then was true in between
			h.fail(err)
		}
		if h.Err() != nil {
			answer.Status, answer.Data = wire.Moved, nil
		}
		return answer
	}
	r := &Request{Message: m, done: make(chan struct{})}
	h.mu.Lock()
	h.core.Submit(r)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	select {
	case <-r.done:
		answer.Status, answer.Pointer = r.Status, r.Pointer
	case <-h.over:
		h.wg.Wait() // it may be under way
		select {
		case <-r.done:
			answer.Status, answer.Pointer = r.Status, r.Pointer
		default:
			answer.Status = wire.Moved
		}
	}
	return answer
}

// run works on the store until the heap has failed.
func (h *Heap) run() {
	for {
		select {
		case <-h.over:
			return
		case <-h.wake:
		}
		if err := h.work(); err != nil {
			h.fail(err)
			return
		}
	}
}

// work does what there is to do.
func (h *Heap) work() error {
	for {
		h.mu.Lock()
		w, more := h.core.Next()
		answers := h.core.Answers() // without a change
		if h.err != nil {
			h.mu.Unlock()
			return nil
		}
		h.mu.Unlock()
		if len(answers) > 0 {
			if err := h.prove(); err != nil {
				return err
			}
			h.tell(answers)
		}
		if !more {
			return nil
		}
		if err := h.do(w); err != nil {
			return fmt.Errorf("the store of the heap: %w", err)
		}
		h.mu.Lock()
		h.core.Done()
		answers = h.core.Answers()
		h.mu.Unlock()
		h.tell(answers)
	}
}

// tell answers those who wait.
func (h *Heap) tell(list []Answer) {
	for _, a := range list {
		a.Request.Status, a.Request.Pointer = a.Status, a.Pointer
		close(a.Request.done)
	}
}
