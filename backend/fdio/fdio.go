// Package fdio is what block stores behind a file descriptor have in common. Packages file and
// device add how each is opened, sized and cleared.
//
//	Submit ──► sequencer ──► inline: what the page cache answers without blocking
//	              │    ├───► ring: reads and writes through io_uring
//	              │    │       │ whatever did not go as usual
//	              │    └───────┴─► queue ──► workers: at most maxWorkers goroutines
//	              ▼
//	           fences wait here
//
// Durability. Without Through a write is complete when the page cache (or, with O_DIRECT, the
// drive) has it, and durable after a Flush or when it has FUA. With Through every write is
// durable when it completes.
//
// Linux reports a failed write-back once and then forgets the bytes: to the first caller of
// fdatasync, fsync or a write with RWF_DSYNC on the descriptor, whichever bytes it asks about
// (sync_file_range and close, too, which nothing here relies on). All of these go through one
// door (package durable). After the first failure the store refuses every promise of durability
// (Flush, FUA, Barrier, any change with Through) until it is opened again. Other calls, such as
// write and fallocate, may show a failed write-back as well, but leave it to fsync to report
// (write(2), EIO); their errors are those of their operation alone.
//
// Through the page cache a durable write is a plain write and then a sync of its range: an error of
// the former says nothing about other bytes, an error of the latter is a loss. Around the page cache
// it is one write with RWF_DSYNC, which the drive may do in one piece.
package fdio

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/mem"
)

// Config says what a store is made of.
type Config struct {
	FD   int    // open for reading and writing; the store's once New has returned without error
	Kind string // what the user calls such a store, in messages: "file store"
	Path string // in messages
	Info backend.Info
	// Through makes every write durable before it completes.
	Through bool
	// Direct is what the descriptor asks for because it was opened with O_DIRECT; nil: it was
	// not.
	Direct *Alignment
	IO     IO
	Medium Medium
	Log    *slog.Logger // told why operations fail; nil means slog.Default()
	Faults Faults       // nil, but in tests
	// Resident says that the file's pages are always in memory, so that reads do not wait for a medium.
	Resident bool
}

// Medium is what descriptors differ in. Its methods are called from several goroutines, for
// ranges within the store that are not empty, and may block. Errors are those of the kernel.
type Medium interface {
	// Discard gives the space of a range back, which reads as zeroes afterwards.
	Discard(off, n int64) error
	// WriteZeroes makes a range read as zeroes.
	WriteZeroes(off, n int64) error
	// Status says whether the byte at off is mapped, and how far within n bytes, 1 or more,
	// that state extends.
	Status(off, n int64) (mapped bool, extent int64, err error)
}

// Store does the operations.
type Store struct {
	fd     int
	kind   string
	path   string
	medium Medium

	through  bool
	resident bool
	direct   *Alignment
	bounce   *mem.Pool    // pieces of bounceSize, one per worker, when direct is set
	info     backend.Info // except the size
	size     atomic.Int64 // bytes
	log      *reporter

	seq     *backend.Sequencer
	ring    *ring // nil: without io_uring
	workers workers
	door    *durable.Door
	doubts  atomic.Int32 // durable writes that have failed, of which judge does not know yet what that means
	faults  Faults       // nil, but in tests

	// What the file system refused to do without blocking, and is not asked for again.
	noInlineRead, noInlineWrite atomic.Bool
	noRangeSync                 atomic.Bool // it has no mappings

	syncs descriptors
}

var (
	_ backend.Batcher = (*Store)(nil)
	_ backend.Awaiter = (*Store)(nil)
)

// New returns the store that cfg describes.
func New(cfg Config) (*Store, error) {
	s := &Store{
		fd: cfg.FD, kind: cfg.Kind, path: cfg.Path, medium: cfg.Medium,
		through: cfg.Through, resident: cfg.Resident, direct: cfg.Direct, info: cfg.Info, faults: cfg.Faults,
	}
	s.door = durable.NewDoor(s.fdatasync)
	s.info.VolatileCache = !cfg.Through
	s.size.Store(cfg.Info.Size)
	if s.direct != nil {
		if err := s.direct.probe(s.fd, s.info.BlockSize); err != nil {
			return nil, err
		}
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	if cfg.IO.wantsRing(s.direct != nil) {
		var err error
		if s.ring, err = newRing(s); err != nil && cfg.IO == Uring {
			return nil, fmt.Errorf("%w; set io to auto or threads", err)
		} else if err != nil {
			log.Debug(cfg.Kind+": a thread pool does the work", slog.String("path", cfg.Path), slog.Any("reason", err))
		}
	}
	if s.direct != nil {
		s.bounce = mem.NewPool(maxWorkers * bounceSize)
	} else {
		s.syncs.open(maxWorkers)
	}
	s.log = newReporter(log, cfg.Kind, cfg.Path)
	s.workers.init(s.finish, s.workerEnded)
	s.seq = backend.NewSequencer(s.workers.put)
	if s.ring != nil {
		s.ring.serve()
	}
	return s, nil
}

// Info describes the store.
func (s *Store) Info() backend.Info {
	info := s.info
	info.Size = s.size.Load()
	return info
}

// Path returns the path that the store was opened with.
func (s *Store) Path() string { return s.path }

// SetSize makes the store end at size bytes from now on.
func (s *Store) SetSize(size int64) { s.size.Store(size) }

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
	if s.ring == nil || !s.ring.takes(op) {
		s.workers.put(op)
	} else {
		s.ring.start(op)
	}
	return false
}

// Kick starts what was submitted with backend.More; see backend.Batcher.
func (s *Store) Kick() {
	if s.ring != nil {
		s.ring.kick()
	}
}

// Await waits for what the kernel's ring has; see backend.Awaiter.
func (s *Store) Await() bool { return s.ring != nil && s.ring.await() }

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

// ReadNow implements backend.Prompt: it reads what the page cache has. Nothing without a fence waits for its turn, so it needs none.
func (s *Store) ReadNow(op *backend.Op) bool {
	if s.direct != nil || op.Check(s.size.Load()) != nil {
		return false
	}
	return s.tryInline(preadv2, op, &s.noInlineRead)
}

// tryInline asks the page cache. Not every file system takes RWF_NOWAIT: ext4 does for
// reads only, tmpfs not at all. Writes there go to a worker, although a plain write here
// would take 6 µs and the worker takes 8 to 10: when dirty pages pile up the kernel holds
// the writer for tenths of a second, and with it everything else on its connection. Reads of
// files that are always in memory need no flag.
func (s *Store) tryInline(call vectorCall, op *backend.Op, refused *atomic.Bool) bool {
	if refused.Load() {
		return false
	}
	flags := unix.RWF_NOWAIT
	if s.resident && call == preadv2 {
		flags = 0
	}
	_, err := s.transfer(call, op.Segs, op.Off, flags, true)
	if err == unix.EOPNOTSUPP {
		refused.Store(true)
	}
	return err == nil // a worker finds out what else there is to say
}

// finish does op to its end, in a worker.
func (s *Store) finish(op *backend.Op, w *worker) {
	op.Err = s.do(op, w)
	s.complete(op)
}

// complete gives op back to the caller.
func (s *Store) complete(op *backend.Op) {
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
		if s.info.DiscardGranularity == 0 {
			return s.change(op, s.medium.WriteZeroes)
		}
		return s.change(op, s.medium.Discard)
	case backend.WriteZeroes:
		return s.change(op, s.medium.WriteZeroes)
	case backend.Status:
		return s.status(op)
	}
	return nil
}

// Durably calls sync, which makes more of the descriptor durable than operations do, by the same
// door: if it fails the store promises nothing more, and the error says so.
func (s *Store) Durably(sync func() error) error {
	return s.door.Do(func() error {
		if err := s.before(Call{Name: "fsync"}); err != nil {
			return err
		}
		return sync()
	})
}

// fdatasync is what the door does.
func (s *Store) fdatasync() error {
	for {
		err := s.before(Call{Name: "fdatasync"})
		if err == nil {
			err = unix.Fdatasync(s.fd)
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// settle makes durable what has to be durable before op starts. With through, all that has
// completed is durable already.
func (s *Store) settle(op *backend.Op) error {
	fuaRead := op.Kind == backend.Read && op.Flags&backend.FUA != 0
	switch {
	case op.Kind == backend.Flush:
		return s.door.Sync()
	case (fuaRead || op.Flags&backend.Barrier != 0) && !s.through:
		return s.door.Sync()
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
	if err := s.door.Failure(); err != nil {
		return s.failed(op, op.Off, err)
	}
	if s.direct != nil {
		return s.writeDirect(op, w)
	}
	fd := w.descriptor(s) // before the write: it is told of what is lost from now on
	n, err := s.move(pwritev2, op, 0, w)
	if err == nil {
		n, err = 0, s.syncRange(fd, op.Off, op.Len)
	}
	if err != nil {
		return s.failed(op, op.Off+n, err)
	}
	return nil
}

// writeDirect does op, a write that has to be durable, around the page cache.
func (s *Store) writeDirect(op *backend.Op, w *worker) error {
	token := s.door.Enter()
	n, err := s.move(pwritev2, op, unix.RWF_DSYNC, w)
	if err != nil {
		s.doubts.Add(1)
		n, err = s.judge(op, n, err, w)
	}
	s.door.Leave(token)
	if err == nil && s.doubts.Load() != 0 {
		err = s.door.Sync()
	} else if err == nil {
		err = s.door.Failure()
	}
	if err != nil {
		return s.failed(op, op.Off+n, err)
	}
	return nil
}

// judge says what it means that a write with RWF_DSYNC of op has failed with err after n bytes:
// the write may have failed, or making it durable, which may be about any byte of the file and
// is not told again. Most errors count as the latter. Those that a write can have without
// anything being wrong with the medium, such as a full disk, are tried without RWF_DSYNC: if it
// then goes well, durability was what failed. Called between Enter and Leave, and counted in doubts, which it
// ends: a write beside it that goes well meanwhile may be what was lost, and waits for it as a flush does.
func (s *Store) judge(op *backend.Op, n int64, err error, w *worker) (int64, error) {
	defer s.doubts.Add(-1)
	if !doubtful(err) {
		return n, s.door.Fail(err)
	}
	if n, again := s.move(pwritev2, op, 0, w); again != nil {
		return n, again
	}
	return 0, s.door.Fail(err)
}

// doubtful says whether err may be about the call alone.
func doubtful(err error) bool {
	switch err {
	case unix.EAGAIN, unix.ENOMEM, unix.EINVAL, unix.EOPNOTSUPP, unix.EBADF, unix.EPERM, unix.EFAULT:
		return true
	}
	return isFull(err)
}

// notBegun says whether err means that the kernel has not done what it was asked, and that this
// says nothing about the medium.
func notBegun(err error) bool {
	return err == unix.EAGAIN || err == unix.EINTR || err == unix.ECANCELED
}

// change does op, a change of a range, with f and makes it durable if it has to be.
func (s *Store) change(op *backend.Op, f func(off, n int64) error) error {
	if op.Len == 0 {
		return nil
	}
	err := s.before(Call{Name: op.Kind.String(), Off: op.Off, Len: op.Len})
	if err == nil {
		err = f(op.Off, op.Len)
	}
	if err == nil && s.durable(op) {
		err = s.door.Sync()
	}
	if err != nil {
		return s.failed(op, op.Off, err)
	}
	return nil
}

func (s *Store) status(op *backend.Op) (err error) {
	n := min(max(op.Len, int64(s.info.BlockSize)), s.size.Load()-op.Off)
	if op.Mapped, op.Extent = true, max(n, 0); n <= 0 || s.info.DiscardGranularity == 0 {
		return nil
	}
	if op.Mapped, op.Extent, err = s.medium.Status(op.Off, n); err != nil {
		return s.failed(op, op.Off, err)
	}
	return nil
}

// Abandon gives up a store that nobody has used, and leaves the descriptor to the caller.
func (s *Store) Abandon() {
	if s.ring != nil {
		_ = s.ring.close()
	}
	s.workers.close()
	s.syncs.close()
	if s.bounce != nil {
		s.bounce.Close()
	}
}

// Close waits for the workers, makes durable what was written and closes the descriptor. An
// error means that bytes which were written are not safe.
func (s *Store) Close() error {
	var errs [3]error
	if s.ring != nil {
		errs[0] = s.ring.close()
	}
	s.workers.close()
	s.syncs.close()
	errs[1] = s.door.Sync()
	// Who asks by mistake for more has it beyond the end, and flushes fail: the descriptor will be another file's.
	s.size.Store(-1)
	_ = s.door.Fail(unix.EBADF)
	if s.bounce != nil {
		s.bounce.Close()
	}
	// A lock that the owner took on the descriptor ends here, and not when the kernel has let
	// go of the last request that completed through the ring.
	_ = unix.Flock(s.fd, unix.LOCK_UN)
	errs[2] = unix.Close(s.fd)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("close %s %s: %w", s.kind, s.path, err)
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
	if _, lost := errors.AsType[*durable.LostError](err); lost {
		return false
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
