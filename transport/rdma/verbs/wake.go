//go:build verbs && cgo && linux

package verbs

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Looking for completions instead of sleeping takes a processor, and saves falling asleep and being
// woken on both sides of an initiator that waits for each answer: over soft-RoCE in an emulated
// machine, where a wake-up is dear, it doubles what depth 1 gives, for half the processor time per
// I/O. It is done as long as completions come within some tens of times what a wake-up takes on
// this machine: some hundred microseconds on a processor, milliseconds on an emulated one. Who is
// idle sleeps.
const (
	spinWakes        = 40
	minSpin, maxSpin = 20 * time.Microsecond, 4 * time.Millisecond
	wakeSamples      = 9
)

// defaultSpin is measured once, in some milliseconds.
var defaultSpin = sync.OnceValue(func() time.Duration {
	return min(max(spinWakes*wakeTime(), minSpin), maxSpin)
})

// wakeTime is the median of the times from the moment in which something happens at a descriptor
// to that in which the goroutine runs that has slept in Go's poller for it. 0: it cannot be
// measured.
func wakeTime() time.Duration {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(fd) }()
	p, err := newPoller(fd, "wake-up time")
	if err != nil {
		return 0
	}
	woken := make(chan time.Time)
	go func() {
		defer close(woken)
		var buf [8]byte
		for p.wait(func(uintptr) bool { n, _ := unix.Read(fd, buf[:]); return n == len(buf) }) {
			woken <- time.Now()
		}
	}()
	samples := make([]time.Duration, wakeSamples)
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for i := range samples {
		time.Sleep(300 * time.Microsecond) // processors have gone to sleep
		began := time.Now()
		if _, err := unix.Write(fd, one); err != nil {
			break
		}
		samples[i] = (<-woken).Sub(began)
	}
	_ = p.close()
	<-woken
	slices.Sort(samples)
	return samples[wakeSamples/2]
}
