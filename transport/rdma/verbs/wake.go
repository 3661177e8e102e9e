//go:build verbs && cgo && linux

package verbs

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Polling for completions instead of sleeping occupies a processor. If an initiator waits for each answer,
// polling saves both sides a sleep and a wake-up: over soft-RoCE in an emulated machine, where a wake-up is
// expensive, it doubles the IOPS at depth 1, for half of the processor time per I/O. A goroutine polls as
// long as completions come within a few dozen times the duration of a wake-up on this machine: some hundred
// microseconds on a real processor, milliseconds on an emulated one. Idle goroutines sleep.
const (
	spinWakes        = 40
	minSpin, maxSpin = 20 * time.Microsecond, 4 * time.Millisecond
	wakeSamples      = 9
)

// defaultSpin is measured once, which takes some milliseconds.
var defaultSpin = sync.OnceValue(func() time.Duration {
	return min(max(spinWakes*wakeTime(), minSpin), maxSpin)
})

// wakeTime returns the median time from an event at a descriptor until the goroutine runs that slept
// in Go's poller for it. 0: it cannot be measured.
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
		time.Sleep(300 * time.Microsecond) // until the processors sleep
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
