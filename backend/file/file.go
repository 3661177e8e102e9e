// Package file is a block store in a regular file: sparse or preallocated, through the page
// cache or around it.
//
//	Submit ──► sequencer ──► inline: what the page cache answers without blocking
//	              │    └───► queue ──► workers: at most maxWorkers goroutines
//	              ▼
//	           fences wait here
//
// Durability. In Writeback a write is complete when the page cache (or, with Direct, the
// drive) has it, and durable after a Flush or when it has FUA. In Writethrough every write
// is durable when it completes. Linux reports a failed write-back once and then forgets the
// bytes, so after the first failure of fdatasync the store refuses every promise of
// durability (Flush, FUA, Barrier, any change in Writethrough) until it is opened again:
// what the medium lost is reported, however often somebody asks.
package file

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/mem"
)

// Store is a store in a file.
type Store struct {
	fd      int
	path    string
	sparse  bool // discards may punch holes
	through bool // Writethrough
	direct  *alignment
	bounce  *mem.Pool    // pieces of bounceSize, one per worker, when direct is set
	info    backend.Info // but for the size
	size    atomic.Int64 // bytes
	resize  sync.Mutex   // held while the size changes
	log     *reporter

	seq     *backend.Sequencer
	workers workers
	sync    syncer

	// What the file system refused to do without blocking, and is not asked for again.
	noInlineRead, noInlineWrite atomic.Bool
}

var _ backend.Store = (*Store)(nil)

// Info describes the store.
func (s *Store) Info() backend.Info {
	info := s.info
	info.Size = s.size.Load()
	return info
}

// Path returns the path that the store was opened with.
func (s *Store) Path() string { return s.path }

// Submit starts op; see backend.Store.
func (s *Store) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.size.Load()); op.Err != nil {
		return true
	}
	if !s.seq.Enter(op) {
		return false
	}
	if s.inline(op) {
		s.seq.Leave(op.Private)
		return true
	}
	s.workers.put(op)
	return false
}

// inline does op if that takes no waiting, and reports whether it did.
func (s *Store) inline(op *backend.Op) bool {
	if s.direct != nil || op.Flags&(backend.FUA|backend.Barrier) != 0 {
		return false
	}
	switch op.Kind {
	case backend.Read:
		return s.tryInline(preadv2, op, &s.noInlineRead)
	case backend.Write:
		return !s.through && s.tryInline(pwritev2, op, &s.noInlineWrite)
	}
	return false
}

// tryInline asks the page cache. Not every file system takes RWF_NOWAIT: ext4 does for
// reads only, tmpfs not at all. Writes there go to a worker, although a plain write here
// would take 6 µs and the worker takes 8 to 10: when dirty pages pile up the kernel holds
// the writer for tenths of a second, and with it everything else on its connection.
func (s *Store) tryInline(call vectorCall, op *backend.Op, refused *atomic.Bool) bool {
	if refused.Load() {
		return false
	}
	_, err := transfer(call, s.fd, op.Segs, op.Off, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP {
		refused.Store(true)
	}
	return err == nil // a worker finds out what else there is to say
}

// finish does op to its end, in a worker.
func (s *Store) finish(op *backend.Op, w *worker) {
	op.Err = s.do(op, w)
	token := op.Private
	op.Done.OpDone(op) // op is the caller's again
	s.seq.Leave(token)
}

// do does op and returns its error.
func (s *Store) do(op *backend.Op, w *worker) error {
	if err := s.settle(op); err != nil {
		return s.failed(op, op.Off, err)
	}
	switch op.Kind {
	case backend.Read:
		return s.read(op, w)
	case backend.Write:
		return s.write(op, w)
	case backend.Discard:
		return s.change(op, s.discard)
	case backend.WriteZeroes:
		return s.change(op, s.writeZeroes)
	case backend.Status:
		return s.status(op)
	}
	return nil
}

// settle makes durable what has to be so before op starts. In Writethrough all that has
// completed is.
func (s *Store) settle(op *backend.Op) error {
	fuaRead := op.Kind == backend.Read && op.Flags&backend.FUA != 0
	switch {
	case op.Kind == backend.Flush:
		return s.sync.sync()
	case (fuaRead || op.Flags&backend.Barrier != 0) && !s.through:
		return s.sync.sync()
	}
	return nil
}

// durable reports whether op, a change, has to be durable when it completes.
func (s *Store) durable(op *backend.Op) bool {
	return s.through || op.Flags&(backend.FUA|backend.Barrier) != 0
}

func (s *Store) read(op *backend.Op, w *worker) error {
	n, err := s.move(preadv2, op, 0, w)
	if err != nil {
		return s.failed(op, op.Off+n, err)
	}
	return nil
}

func (s *Store) write(op *backend.Op, w *worker) error {
	if !s.durable(op) {
		n, err := s.move(pwritev2, op, 0, w)
		if err != nil {
			return s.failed(op, op.Off+n, err)
		}
		return nil
	}
	if err := s.sync.failure(); err != nil {
		return s.failed(op, op.Off, err)
	}
	_, err := s.move(pwritev2, op, unix.RWF_DSYNC, w)
	if err == nil {
		return nil
	}
	// Did the write fail, or making it durable? A failure of the latter may be about any
	// byte of the file, and is not told again.
	n, err2 := s.move(pwritev2, op, 0, w)
	if err2 == nil {
		err2 = s.sync.fail(err)
	}
	return s.failed(op, op.Off+n, err2)
}

// change does op, a change of a range, with f and makes it durable if it has to be.
func (s *Store) change(op *backend.Op, f func(off, n int64) error) error {
	if op.Len == 0 {
		return nil
	}
	err := f(op.Off, op.Len)
	if err == nil && s.durable(op) {
		err = s.sync.sync()
	}
	if err != nil {
		return s.failed(op, op.Off, err)
	}
	return nil
}

// Close waits for the workers, makes durable what was written and gives the file free for
// others. An error means that bytes which were written are not safe.
func (s *Store) Close() error {
	s.workers.close()
	err := s.sync.sync()
	if s.bounce != nil {
		s.bounce.Close()
	}
	err = errors.Join(err, unix.Close(s.fd))
	if err != nil {
		return fmt.Errorf("close file store %s: %w", s.path, err)
	}
	return nil
}

// failed makes err the answer to op, and logs it. off is the first byte not done.
func (s *Store) failed(op *backend.Op, off int64, err error) error {
	if op.Kind == backend.Flush {
		off = 0
	}
	var answer error = &backend.MediumError{Kind: op.Kind, Off: off, Err: err}
	if isChange(op.Kind) && isFull(err) {
		answer = &backend.SpaceError{Off: off, Err: err}
	}
	s.log.report(op.Kind, answer, slog.Int64("offset", off), slog.Int64("length", op.Len))
	return answer
}

func isChange(k backend.Kind) bool {
	return k == backend.Write || k == backend.Discard || k == backend.WriteZeroes
}

// isFull says whether err means that there is no room: in the file system, in a quota, or
// below the file size limit of the process. Bytes that were lost for that reason are lost
// all the same.
func isFull(err error) bool {
	if _, lost := errors.AsType[*lostError](err); lost {
		return false
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
