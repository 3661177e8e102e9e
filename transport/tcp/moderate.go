package tcp

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Moderation. An initiator with many commands outstanding sends them one by one, and reading
// after each costs both ends more than the command: us a read and a write, it a wake-up per
// answer. So a connection whose initiator keeps many outstanding is looked at a moment later,
// and then holds several at once, as a network card does that moderates its interrupts.
//
// How many are outstanding only the initiator knows, but it stops sending when all are. Now
// and then a census waits for that and counts. From then on naps before each look are as long
// as it takes a third to a half of that number to come: a longer nap would leave the
// initiator without work while the answers are made. With few outstanding there are no naps.
const (
	// A census is taken after censusFirst commands without naps, and every censusEvery.
	censusFirst = 1024
	censusEvery = 4096
	// It is over when nothing has come in censusStill steps, or after censusSteps, or when
	// there is more than one read takes.
	censusStep  = 25 * time.Microsecond
	censusStill = 4
	censusSteps = 16

	napFirst = 10 * time.Microsecond
	napMin   = 5 * time.Microsecond
	napMax   = 40 * time.Microsecond
	// napDepth is the number of commands outstanding from which naps pay.
	napDepth = 6
	// napsPoor is how many naps in a row may bring one command or none.
	napsPoor = 4
)

// moderator is what a connection knows of its initiator's pace. It belongs to the reader.
type moderator struct {
	depth    int           // commands outstanding at the initiator; 0: naps do not pay
	nap      time.Duration // between the last answers and the next look
	answers  time.Duration // when the last answers were given
	count    int           // commands since the last census
	counting bool          // the next look ends a census
	poor     int           // naps in a row that were not worth it
}

// wait sleeps until the input is worth a look.
func (d *moderator) wait(fd int) {
	switch {
	case d.count >= censusEvery || d.depth == 0 && d.count >= censusFirst:
		d.counting = true
		census(fd)
	case d.depth > 0:
		if left := d.nap - (clock() - d.answers); left > 0 {
			sleep(left)
		}
	}
}

// looked tells how many commands a look has brought, after they have been answered as far as
// they could.
func (d *moderator) looked(commands int) {
	d.count += commands
	switch {
	case d.counting:
		d.counting = false
		d.count, d.poor = 0, 0
		if commands < napDepth {
			d.depth = 0
			return
		}
		if d.depth == 0 {
			d.nap = napFirst
		}
		d.depth = commands
	case d.depth == 0:
		return
	case commands <= 1:
		if d.poor++; d.poor == napsPoor {
			d.depth, d.count = 0, 0
			return
		}
		d.nap = min(d.nap+d.nap/8, napMax)
	case commands*3 < d.depth:
		d.poor = 0
		d.nap = min(d.nap+d.nap/8, napMax)
	case commands*2 > d.depth:
		d.poor = 0
		d.nap = max(d.nap-d.nap/8, napMin)
	default:
		d.poor = 0
	}
	d.answers = clock()
}

// census waits until the initiator sends no more.
func census(fd int) {
	have, still := pending(fd), 0
	for range censusSteps {
		sleep(censusStep)
		n := pending(fd)
		switch {
		case n > readLen:
			return
		case n > have:
			have, still = n, 0
		default:
			if still++; still == censusStill {
				return
			}
		}
	}
}

// pending returns the number of bytes that the socket holds.
func pending(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return n
}

var epoch = time.Now()

// clock returns the time since some moment.
func clock() time.Duration { return time.Since(epoch) }

// sleep stops the thread, not the goroutine: the runtime's timers are a hundred times coarser.
// By default Linux adds 50 µs to any sleep.
func sleep(d time.Duration) {
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0)
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}
