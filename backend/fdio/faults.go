package fdio

// Faults decides in tests how system calls end. It is asked from any goroutine.
type Faults interface {
	// Before is told of each call on the descriptor of a store before it is made. The error, an
	// errno, is the call's, which then is not made.
	Before(Call) error
	// After is told of reads and writes that went through a ring when they have ended; its error
	// takes the place of success.
	After(Call) error
}

// Call is a system call on the descriptor of a store.
type Call struct {
	Name     string // preadv2, pwritev2, fdatasync, fsync, or of a range: msync, discard, write-zeroes
	Off, Len int64  // bytes
	Flags    int    // of preadv2 and pwritev2: RWF_…
	FD       int    // of msync: the descriptor whose mapping it is
}

// before asks the faults, if there are any.
func (s *Store) before(c Call) error {
	if s.faults == nil {
		return nil
	}
	return s.faults.Before(c)
}
