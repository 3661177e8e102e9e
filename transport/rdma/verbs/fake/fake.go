//go:build verbs && cgo && linux

// Package fake replaces libibverbs and librdmacm in tests. It has one device, whose queue pairs reach one another
// through the memory of this process. With it the tests of package verbs run on machines without RDMA: posted work
// is done at once, or when the test wants, and each call can be made to fail.
package fake

// #cgo CFLAGS: -O2 -Wall
// #include "fake.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"oneshot/transport/rdma/verbs/internal/finder"
)

// Config configures the device.
type Config struct {
	Node  string // its path in the place of sysfs; the device exists as long as this file
	IWARP bool   // the device is iWARP instead of InfiniBand
	Siw   bool   // the device has siw's peculiarities
	Rxe   bool   // the device says that it is rxe, and does not report the last receive of a queue pair
	// LateReads: Reads are answered when a queue is polled that has nothing else. Work after them is done before,
	// unless it has a fence.
	LateReads bool
	// LateFlush: a queue pair in the error state completes nothing.
	LateFlush bool
	// Clean: when a queue pair is destroyed, completions that nobody has polled are thrown away, also those of receives
	// of shared queues.
	Clean bool
	// Blames: when a connection ends, the queue pair that has sent a Read Response last is said to have failed at that.
	Blames bool
	// Windows: an iWARP device has memory windows. Those of InfiniBand have them in any case.
	Windows bool
	// NoInvalidate: the device has neither Send with Invalidate nor Local Invalidate.
	NoInvalidate bool
}

// Name is the name of the device.
const Name = "fake0"

// Install makes package verbs use this package. Call it before the first device is opened.
func Install() { finder.Function = C.fake_find }

func boolean(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Begin configures the device, and ends all failures that were set before.
func Begin(c Config) {
	node := C.CString(c.Node)
	defer C.free(unsafe.Pointer(node))
	f := C.struct_fake_config{
		node: node, iwarp: boolean(c.IWARP), siw: boolean(c.Siw), rxe: boolean(c.Rxe), late_reads: boolean(c.LateReads), late_flush: boolean(c.LateFlush),
		clean: boolean(c.Clean), blames: boolean(c.Blames),
		windows: boolean(c.Windows), no_invalidate: boolean(c.NoInvalidate),
		max_work: 4096, max_sge: 6, max_inline: 80,
	}
	C.fake_begin(&f)
}

// BeginTest is Begin for a test, with a Node of its own. When the test is over no object of the libraries may be left.
func BeginTest(t testing.TB, c Config) {
	t.Helper()
	c.Node = filepath.Join(t.TempDir(), "node")
	if err := os.Mkdir(c.Node, 0o700); err != nil {
		t.Fatal(err)
	}
	Begin(c)
	t.Cleanup(func() {
		if n := End(); n != 0 {
			t.Errorf("%d objects of the libraries are left", n)
		}
	})
}

// Fail makes the calls of a function fail, after some calls that succeed; with a nil err they succeed again. Besides the
// functions of the libraries there are "error", which is the change of a queue pair to the error state, "doorbell", the
// call with which a library tells the kernel of work that it has taken (siw, rxe), and "address", "route" and "silence":
// the connection manager finds no address or no route, or reports nothing. With ESTALE and EADDRINUSE one
// call fails; with ESTALE it does not set errno.
func Fail(function string, err error, after int) {
	e := C.int(0)
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		e = C.int(no)
	}
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.fake_fail(name, e, C.int(after))
}

// Hold makes posted work wait until Release.
func Hold() { C.fake_hold(1) }

// HoldReads makes the answers to Reads wait until Release.
func HoldReads() { C.fake_hold(2) }

// Keep makes the destruction of identifiers that listen wait, until Forget.
func Keep() { C.fake_keep(1) }

// KeepQueuePairs makes queue pairs stay connected, and what ends them wait, until Forget.
func KeepQueuePairs() { C.fake_keep(2) }

// AwaitKept waits until a call waits because of Keep or KeepQueuePairs.
func AwaitKept() { C.fake_await_kept() }

// Forget ends Keep and KeepQueuePairs.
func Forget() { C.fake_keep(0) }

// Sink is memory that a Read goes to.
type Sink struct {
	STag   uint32 // over iWARP the Read Request names it
	Memory []byte // its tagged offset is its address
}

// Sinks waits until Reads of that many octets are under way, and returns their sinks. HoldReads keeps them there.
func Sinks(octets int) []Sink {
	var list [64]C.struct_fake_sink
	n := int(C.fake_sinks(&list[0], C.int(len(list)), C.uint64_t(octets)))
	sinks := make([]Sink, min(n, len(list)))
	for i := range sinks {
		sinks[i] = Sink{uint32(list[i].stag), unsafe.Slice((*byte)(list[i].at), int(list[i].length))}
	}
	return sinks
}

// Mute makes the connection manager report events without making its descriptor readable, until Unmute. So only a
// caller that asks for events gets them.
func Mute() { C.fake_mute(1) }

// Unmute ends Mute.
func Unmute() { C.fake_mute(0) }

// Release ends Hold and HoldReads.
func Release() { C.fake_hold(0) }

// Break makes the next work request with an opcode of libibverbs complete with a status of libibverbs.
func Break(opcode, status int) { C.fake_break(C.int(opcode), C.int(status)) }

// Async raises an asynchronous event: for the queue pair made last, if the event concerns a queue pair.
func Async(event int) { C.fake_async(C.int(event)) }

// LoseQueuePair makes the queue pair made last complete nothing any more.
func LoseQueuePair() { C.fake_lose_queue_pair() }

// Part makes the queue pair made last take a receive of its shared queue, as for the first part of a message whose rest
// never comes. The device completes the receive as flushed some time after the queue pair has gone into the error state,
// and before it reports that the last receive is complete. Part reports whether there was a receive.
func Part() bool { return C.fake_part() != 0 }

// Removal reports the removal of the device to all identifiers of the connection manager.
func Removal() { C.fake_removal() }

// End waits until no objects of the libraries are left, because threads that are ending may still hold some. It returns
// how many are left after a minute.
func End() int { return int(C.fake_end(60)) }
