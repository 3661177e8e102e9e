package tcp

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Moderation. An initiator with many commands outstanding sends them one by one, and waking
// for each costs both ends more than the command: the initiator an interrupt of our core per
// send, us a read and a write per command, and it in turn a wake-up per answer. So a
// connection that is known to have many commands outstanding looks a moment later, and then
// finds several at once, as a network card does that moderates its interrupts. One with few
// is never held up, nor is one whose neighbours want the thread.
const (
	// moderateFrom is the number of commands that must have come in one batch lately.
	moderateFrom = 8
	// moderateNS is how long to wait: less than such an initiator needs to send its burst.
	moderateNS = 30_000
)

// lastServed is the connection that handled the last batch of input in this process. It is
// a hint: whether it is the same as before tells whether others are busy.
var lastServed atomic.Pointer[Mover]

// moderate waits for more input if that is worth it.
func (m *Mover) moderate() {
	if lastServed.Load() != m {
		lastServed.Store(m)
		return
	}
	if m.depth < moderateFrom {
		return
	}
	// The thread sleeps, not the goroutine: the runtime's timers are a hundred times coarser.
	// By default Linux adds 50 µs to any sleep.
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0)
	ts := unix.Timespec{Nsec: moderateNS}
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// estimate keeps the number of commands outstanding at the initiator, as far as batches of
// input show it: the largest of late.
func (m *Mover) estimate(batch int) { m.depth = max(batch, m.depth-1) }
