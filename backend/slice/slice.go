// Package slice is a block store that is a part of another one: several logical units share a disk
// without volumes or files in between.
//
// Bytes take the same way as in the store below, by Submit and in lent memory. Fences, barriers and
// flushes are those of the whole store: more than was asked for.
package slice

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"oneshot/backend"
)

// Store is a part of a store. New returns it behind its interface, for it lends memory only if the
// store below does.
type Store struct {
	inner backend.Store
	off   int64        // bytes
	size  atomic.Int64 // bytes; changed with mu held
	info  backend.Info // except the size

	mu      sync.Mutex // taken before those of the store below
	follows bool       // the slice is to have all that is there; guarded by mu
}

// Claimer is a store below that hears which of its bytes a slice has. Claim, in the place of an earlier one, keeps size bytes from off on
// for the slice until it is closed. An error refuses them, and the earlier claim stays.
type Claimer interface {
	Claim(off, size int64) error
}

var (
	_ backend.Wrapper    = (*Store)(nil)
	_ backend.Resizer    = (*Store)(nil)
	_ backend.Identifier = (*Store)(nil)
	_ backend.Lender     = (*lender)(nil)
)

// New returns the size bytes of inner from off on, or with 0 all that are there. Both are multiples
// of inner's block size. The slice owns inner, which may be a Claimer, and closes it.
func New(inner backend.Store, off, size int64) (backend.Store, error) {
	info := inner.Info()
	if off < 0 || off%int64(info.BlockSize) != 0 {
		return nil, fmt.Errorf("the offset of %d bytes is not a multiple of the block size %d of the store below", off, info.BlockSize)
	}
	s := &Store{inner: inner, off: off, info: info, follows: size == 0}
	n, err := s.sizeOf(size)
	if err == nil {
		err = s.claim(n)
	}
	if err != nil {
		return nil, err
	}
	s.size.Store(n)
	if off%int64(max(info.PhysicalBlockSize, 1)) != 0 {
		s.info.PhysicalBlockSize = 0 // blocks here straddle those of the medium
	}
	if l, ok := backend.As[backend.Lender](inner); ok {
		return &lender{s, l}, nil
	}
	return s, nil
}

// sizeOf checks a size.
func (s *Store) sizeOf(size int64) (int64, error) {
	there := s.inner.Info().Size - s.off
	switch {
	case there <= 0:
		return 0, fmt.Errorf("the store below has %d bytes, and the slice begins at %d", s.inner.Info().Size, s.off)
	case size < 0 || size%int64(s.info.BlockSize) != 0:
		return 0, fmt.Errorf("the size of %d bytes is not a multiple of the block size %d of the store below", size, s.info.BlockSize)
	case size > there:
		return 0, fmt.Errorf("the store below has %d bytes from %d on, and the size is set to %d", there, s.off, size)
	case size == 0:
		return there, nil
	}
	return size, nil
}

// claim asks the store below for size bytes.
func (s *Store) claim(size int64) error {
	if c, ok := s.inner.(Claimer); ok {
		return c.Claim(s.off, size)
	}
	return nil
}

// Resize makes the slice larger, within the store below; see backend.Resizer. Of a slice that has got 0, by New or by the last Resize,
// Follow makes more when there is more.
func (s *Store) Resize(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.resize(size); err != nil {
		return err
	}
	s.follows = size == 0
	return nil
}

// Follow has the slice grow with the store below, unless it has a size of its own.
func (s *Store) Follow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.follows {
		return nil
	}
	return s.resize(0)
}

// resize is Resize with mu held.
func (s *Store) resize(size int64) error {
	n, err := s.sizeOf(size)
	if err == nil && n < s.size.Load() {
		err = fmt.Errorf("%d bytes are served and %d are left: initiators would lose what is beyond; take the LUN away first", s.size.Load(), n)
	}
	if err == nil {
		err = s.claim(n)
	}
	if err != nil {
		return fmt.Errorf("slice: %w", err)
	}
	s.size.Store(n)
	return nil
}

// Info describes the slice.
func (s *Store) Info() backend.Info {
	info := s.info
	info.Size = s.size.Load()
	return info
}

// Identities are those of the store below, and the offset.
func (s *Store) Identities() (ids []backend.Identity) {
	for _, id := range backend.IdentitiesOf(s.inner) {
		ids = append(ids, backend.Identity(fmt.Sprintf("%s@%d", id, s.off)))
	}
	return ids
}

// Pass says that batches are started in the store below, which also flushes by itself if it does. It passes no Metering: the space that the
// whole store takes says nothing of a part.
func (s *Store) Pass(a backend.Ability) backend.Store {
	if a == backend.Batching || a == backend.Aging {
		return s.inner
	}
	return nil
}

// Close closes the store below.
func (s *Store) Close() error { return s.inner.Close() }

// lender is a slice of a store that lends its memory.
type lender struct {
	*Store
	inner backend.Lender
}

// Lend panics if the range is not within the slice: the store below would lend what is beside it.
func (l *lender) Lend(segs [][]byte, off, n int64, write bool) [][]byte {
	l.check(off, n)
	return l.inner.Lend(segs, l.off+off, n, write)
}

func (l *lender) check(off, n int64) {
	if size := l.size.Load(); off < 0 || n < 0 || off > size || n > size-off {
		panic(fmt.Sprintf("slice: %d bytes at %d are not within %d bytes", n, off, size))
	}
}

func (l *lender) Commit(off, n int64) { l.inner.Commit(l.off+off, n) }

// Map panics as Lend does.
func (l *lender) Map(off, n int64) {
	l.check(off, n)
	l.inner.Map(l.off+off, n)
}

func (l *lender) Unmap(off, n int64) { l.inner.Unmap(l.off+off, n) }

// request is an operation in the store below, for one of ours.
type request struct {
	op     backend.Op
	caller *backend.Op
	s      *Store
}

var requests = sync.Pool{New: func() any { return new(request) }}

// Submit has the store below do op.
func (s *Store) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.size.Load()); op.Err != nil {
		return true
	}
	r := requests.Get().(*request)
	r.op, r.caller, r.s = *op, op, s
	r.op.Done = r
	if op.Kind != backend.Flush {
		r.op.Off += s.off
	}
	if !s.inner.Submit(&r.op) {
		return false
	}
	r.answer()
	return true
}

// OpDone is told by the store below.
func (r *request) OpDone(*backend.Op) {
	op := r.caller
	r.answer()
	op.Done.OpDone(op)
}

// Cork is for the store below.
func (r *request) Cork() backend.Uncorker { return backend.Cork(r.caller.Done) }

// answer gives the results to the caller's operation, and r back.
func (r *request) answer() {
	op := r.caller
	op.Err, op.Mapped, op.Extent, op.Did = r.op.Err, r.op.Mapped, r.op.Extent, r.op.Did
	if op.Err != nil {
		op.Err = r.s.place(op)
	} else if op.Kind == backend.Status {
		op.Extent = min(op.Extent, r.s.size.Load()-op.Off)
	}
	*r = request{}
	requests.Put(r)
}

// place says where in the slice the error of op was.
func (s *Store) place(op *backend.Op) error {
	if e, ok := errors.AsType[*backend.MediumError](op.Err); ok {
		at := e.Off - s.off
		if op.Kind == backend.Flush {
			at = e.Off
		}
		return &backend.MediumError{Kind: e.Kind, Off: at, Err: e.Err}
	}
	if e, ok := errors.AsType[*backend.SpaceError](op.Err); ok {
		return &backend.SpaceError{Off: e.Off - s.off, Err: e.Err}
	}
	if e, ok := errors.AsType[*backend.RangeError](op.Err); ok { // the store below has shrunk
		return &backend.RangeError{Kind: e.Kind, Off: op.Off, Len: op.Len, Max: max(e.Max-s.off, 0)}
	}
	return op.Err
}
