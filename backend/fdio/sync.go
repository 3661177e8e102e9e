package fdio

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// syncer makes a file durable. Several who ask while fdatasync runs are served by the next
// one together.
type syncer struct {
	fdatasync func() error
	wanted    atomic.Uint64 // how many have asked

	mu      sync.Mutex // held over fdatasync: who waits for it wants one too
	started uint64     // wanted when the last fdatasync started

	lost atomic.Pointer[lostError] // why the store can promise nothing more; written with mu held
}

func newSyncer(fd int) syncer {
	return syncer{fdatasync: func() error {
		for {
			if err := unix.Fdatasync(fd); err != unix.EINTR {
				return err
			}
		}
	}}
}

// lostError says that written bytes could not be made durable.
type lostError struct{ err error }

func (e *lostError) Error() string {
	return "written bytes could not be made durable and may be lost (flushes are refused until the store is opened again; check the medium and the data first): " + e.err.Error()
}

func (e *lostError) Unwrap() error { return e.err }

// sync makes all that has completed durable. It fails for ever once it has failed.
func (y *syncer) sync() error {
	turn := y.wanted.Add(1)
	y.mu.Lock()
	defer y.mu.Unlock()
	if err := y.failure(); err != nil {
		return err
	}
	if y.started >= turn {
		return nil // it started after we had asked, and so after what we ask about
	}
	y.started = y.wanted.Load()
	if err := y.fdatasync(); err != nil {
		return y.failLocked(err)
	}
	return nil
}

// fail records that bytes could not be made durable, and returns what to tell from now on.
func (y *syncer) fail(err error) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.failLocked(err)
}

func (y *syncer) failLocked(err error) error {
	if y.lost.Load() == nil {
		y.lost.Store(&lostError{err})
	}
	return y.lost.Load()
}

// failure returns why nothing can be promised any more, or nil. It does not wait.
func (y *syncer) failure() error {
	if err := y.lost.Load(); err != nil {
		return err
	}
	return nil
}
