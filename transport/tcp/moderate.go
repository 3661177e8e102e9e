package tcp

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/stream"
)

// Moderation. An initiator with many commands outstanding sends them one by one, and reading
// after each costs both ends more than the command: us a read and a write, it a wake-up per
// answer. So a connection whose initiator keeps many outstanding is looked at a moment later,
// and then holds several at once, as a network card does that moderates its interrupts.
//
// How many are outstanding only the initiator knows, but it stops sending when all are. Now
// and then a census withholds the answers until that is so, and counts. From then on there
// are pauses before each look, not so long that more than half of that number come on average:
// the initiator would be left without work while the answers are made. With few outstanding
// there are none.
const (
	// A census is taken after censusFirst commands without pauses, and every censusEvery.
	censusFirst = 1024
	censusEvery = 4096
	// It is over when nothing has come in censusStill steps, or after censusSteps, or when
	// there are censusMost commands.
	censusStep  = 25 * time.Microsecond
	censusStill = 3
	censusSteps = 24
	censusMost  = 64

	pauseMin = 5 * time.Microsecond
	pauseMax = 45 * time.Microsecond
	// pauseDepth is the number of commands outstanding from which pauses pay.
	pauseDepth = 6
	// meanOver is over how many looks their mean is taken.
	meanOver = 16
	// poorMost is how many pauses in a row may bring one command or none.
	poorMost = 4
	// spinMost is the longest pause in which the processor is kept: to stop it and have a
	// timer start it again costs more than that.
	spinMost = 20 * time.Microsecond
)

// moderator is what a connection knows of its initiator's pace. It belongs to the reader.
type moderator struct {
	depth   int           // commands outstanding at the initiator; 0: pauses do not pay
	pause   time.Duration // between the last answers and the next look
	answers time.Duration // when the last answers were given
	count   int           // commands since the last census
	mean    int           // commands per look of late, times meanOver
	poor    int           // pauses in a row that were not worth it

	off      bool      // no moderation
	counters *Counters // where the following is added, or nil
	censuses uint64
	pauses   uint64
	paused   time.Duration
}

// tell adds to the counters what was counted since the last call.
func (d *moderator) tell() {
	if d.counters != nil {
		d.counters.Censuses.Add(d.censuses)
		d.counters.Pauses.Add(d.pauses)
		d.counters.PausedNS.Add(uint64(d.paused))
	}
	d.censuses, d.pauses, d.paused = 0, 0, 0
}

// longest returns the longest pause for a depth. Measured: at 8 outstanding none of more than
// a few µs pays, at 16 none above 10, at 32 all up to 40.
func longest(depth int) time.Duration {
	return min(max(time.Duration(depth*depth)*time.Microsecond/24, pauseMin), pauseMax)
}

// due reports whether it is time for a census.
func (d *moderator) due() bool {
	return !d.off && (d.count >= censusEvery || d.depth == 0 && d.count >= censusFirst)
}

// counted tells how many commands the census has found.
func (d *moderator) counted(commands int) {
	d.censuses++
	d.tell()
	d.count, d.poor = 0, 0
	switch {
	case commands < pauseDepth:
		d.depth = 0
		return
	case d.depth == 0:
		d.mean = 0
		d.pause = pauseMin
	}
	d.depth = commands
	d.answers = clock()
}

// wait pauses until the input is worth a look.
func (d *moderator) wait() {
	if d.depth == 0 {
		return
	}
	until := d.answers + d.pause
	left := until - clock()
	if left > 0 {
		d.pauses++
		d.paused += left
	}
	if left > spinMost {
		sleep(left)
		return
	}
	for clock() < until {
	}
}

// looked tells how many commands a look has brought, after they have been answered as far as
// they could.
func (d *moderator) looked(commands int) {
	d.count += commands
	if d.depth == 0 {
		return
	}
	if commands > 1 {
		d.poor = 0
	} else if d.poor++; d.poor == poorMost {
		d.depth, d.count = 0, 0
		return
	}
	if d.mean += commands - d.mean/meanOver; d.mean > meanOver*d.depth/2 {
		d.pause = max(d.pause-d.pause/16, pauseMin)
	} else {
		d.pause = min(d.pause+d.pause/16, longest(d.depth))
	}
	d.answers = clock()
}

// census withholds answers until the initiator sends no more, and counts its commands. It returns
// what its last look has come to.
func (m *Mover) census() (r stream.Round, err error) {
	found, still := 0, 0
	m.conn.Lock()
	m.Withhold = true
	m.conn.Unlock()
	for step := 0; step < censusSteps && still < censusStill && found < censusMost && r != stream.Pause && err == nil; step++ {
		sleep(censusStep)
		r, err = m.look()
		found += m.commands
		if still++; m.commands > 0 {
			still = 0
		}
	}
	m.conn.Lock()
	m.Withhold = false
	m.conn.Unlock()
	m.pace.counted(found)
	return r, err
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
