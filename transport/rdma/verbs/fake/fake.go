//go:build verbs && cgo && linux

// Package fake is a stand-in for libibverbs and librdmacm, with a device whose queue pairs reach one another
// through the memory of this process. Package verbs runs over it on machines without RDMA, for its tests: what is posted
// is done at once, or when the test wants, and each call can be made to fail.
package fake

// #cgo CFLAGS: -O2 -Wall
// #include "fake.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"oneshot/transport/rdma/verbs/internal/finder"
)

// Config says how the device is to be.
type Config struct {
	Node  string // where sysfs would have it; the device is there as long as the file is
	IWARP bool   // rather than InfiniBand
	Siw   bool   // with what siw does differently
	// LateReads: Reads are answered when the queue is polled that would have nothing else; what was posted
	// behind them is done before, unless it has a fence.
	LateReads bool
	// LateFlush: a queue pair in the error state completes nothing.
	LateFlush bool
	// Clean: what a queue pair has completed and nobody has polled is thrown away when it is destroyed, the receives of
	// shared queues among it.
	Clean bool
}

// Name is what the device is called.
const Name = "fake0"

// Install has package verbs run over this package. It is called before the first device is opened.
func Install() { finder.Function = C.fake_find }

func boolean(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Begin makes the device what c says, and ends what was said before of failures.
func Begin(c Config) {
	node := C.CString(c.Node)
	defer C.free(unsafe.Pointer(node))
	f := C.struct_fake_config{
		node: node, iwarp: boolean(c.IWARP), siw: boolean(c.Siw), late_reads: boolean(c.LateReads), late_flush: boolean(c.LateFlush),
		clean:    boolean(c.Clean),
		max_work: 4096, max_sge: 6, max_inline: 80,
	}
	C.fake_begin(&f)
}

// Fail has the calls of a function fail, after so many that succeed; nil: they succeed again. Beside the libraries' there are
// "error", for the error state that a queue pair is to go into, "doorbell", for the call with which a library tells the
// kernel of work that it has taken (siw, rxe), and "address", "route" and "silence", for
// what the connection manager says of the way to a peer, or does not say. With ESTALE one call fails, and says no reason.
func Fail(function string, err error, after int) {
	e := C.int(0)
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		e = C.int(no)
	}
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.fake_fail(name, e, C.int(after))
}

// Hold has posted work wait until Release.
func Hold() { C.fake_hold(1) }

// HoldReads has the answers to Reads wait until Release.
func HoldReads() { C.fake_hold(2) }

// Mute has the events of the connection manager come without making its descriptor readable, so that only who asks for them
// gets them, until Unmute.
func Mute() { C.fake_mute(1) }

// Unmute is the end of Mute.
func Unmute() { C.fake_mute(0) }

// Release is the end of Hold.
func Release() { C.fake_hold(0) }

// Break has the next work request of an opcode of libibverbs end with one of its statuses.
func Break(opcode, status int) { C.fake_break(C.int(opcode), C.int(status)) }

// Async has an asynchronous event happen, to the queue pair made last if it concerns one.
func Async(event int) { C.fake_async(C.int(event)) }

// LoseQueuePair has the queue pair made last complete nothing any more.
func LoseQueuePair() { C.fake_lose_queue_pair() }

// Part has the queue pair made last take a receive of its shared queue, as for the first part of a message whose rest
// never comes. The device completes it, as flushed, some time after the queue pair has gone into the error state, and before
// it says that it was the last. Part reports whether there was a receive.
func Part() bool { return C.fake_part() != 0 }

// Removal tells all who have identifiers of the connection manager that the device goes.
func Removal() { C.fake_removal() }

// End waits until no objects of the libraries are left: threads that were told to end may still hold some. It returns how
// many stay after some seconds.
func End() int { return int(C.fake_end(5)) }
