package mirror

import (
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clock is the time since some moment, which goes on while the machine sleeps. It belongs to the goroutine that owns the core.
//
// CLOCK_BOOTTIME is that time, and Go asks the kernel for it each time. What Go can read without the kernel, CLOCK_MONOTONIC,
// stands still while the machine sleeps. The difference of the two is noted with each tick, so about may be behind by
// what the machine has slept since, and is never ahead. So a primary counts a lease from earlier. Who relies on a lease, as its
// primary, has to be exact, and so has who gives one: a beat that seems older than it is would be followed by a promise too early.
type clock struct {
	given func() time.Duration // nil: the machine's
	began time.Time
	ahead time.Duration // of the time since began, at least
	most  time.Duration // the same, at most
	wall  time.Duration // how far the machine's time of day was ahead of the time since began, when these were noted
}

// slept is how far the time of day may move against the time since began before atMost asks the kernel.
const slept = time.Millisecond

func newClock(given func() time.Duration) clock { return clock{given: given, began: time.Now()} }

// exact asks the kernel.
func (c *clock) exact() time.Duration {
	if c.given != nil {
		return c.given()
	}
	before := time.Now() // the process may stand still on both sides of the call
	now := bootTime()
	c.ahead, c.most, c.wall = now-time.Since(c.began), now-before.Sub(c.began), c.wallOf(before)
	return now
}

// wallOf is how far the time of day is ahead of the time since began.
func (c *clock) wallOf(t time.Time) time.Duration {
	return time.Duration(t.UnixNano()-c.began.UnixNano()) - t.Sub(c.began)
}

// atMost returns a time that is not behind exact, without a system call in most cases, for a primary that relies on a lease. The time of day
// goes on while the machine sleeps, and the time since began does not. If the two have moved apart by slept or more since exact was called, the
// machine has slept, or somebody has set the time of day, and atMost asks the kernel. Otherwise it adds slept to what exact noted.
func (c *clock) atMost() time.Duration {
	if c.given != nil {
		return c.given()
	}
	today := time.Now()
	if moved := c.wallOf(today) - c.wall; moved >= slept || moved <= -slept {
		return c.exact()
	}
	return today.Sub(c.began) + c.most + slept
}

// bootTime asks without telling Go's scheduler. The call does not wait, and telling would wake the runtime's monitor thread if the
// process was idle, as one is that reads what a host asks for now and then.
func bootTime() time.Duration {
	var t unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&t)), 0) // cannot fail
	return time.Duration(t.Nano())
}

// about is exact less what the machine has slept since that was called last.
func (c *clock) about() time.Duration {
	if c.given != nil {
		return c.given()
	}
	return time.Since(c.began) + c.ahead
}

// ClocksGoOn says whether it is known that this machine's clocks go on while it is stopped: those of a virtual machine may stop
// with it, so that a lease seems fresh long after it was given.
func ClocksGoOn() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && isReal(string(text))
}

// isReal says whether processors are known to be no virtual ones: x86 has a flag for those, others say nothing.
func isReal(cpuinfo string) bool {
	known := false
	for line := range strings.Lines(cpuinfo) {
		if key, flags, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			known = true
			for flag := range strings.FieldsSeq(flags) {
				if flag == "hypervisor" {
					return false
				}
			}
		}
	}
	return known
}
