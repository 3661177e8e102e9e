//go:build verbs && cgo && linux

package verbs

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Looking for completions instead of sleeping pays as long as it takes no longer than falling
// asleep and being woken, and more than once that, for the peer that is answered late has to be
// woken, too. So the default of Config.Spin is a multiple of what a wake-up takes on this machine:
// some 10 µs on a processor, hundreds where processors are emulated.
const (
	spinWakes        = 4
	minSpin, maxSpin = 20 * time.Microsecond, 2 * time.Millisecond
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
