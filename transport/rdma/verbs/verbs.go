// Package verbs is the provider of transport/rdma for what the kernel drives: soft-RoCE (rxe),
// siw, RoCE, InfiniBand and iWARP cards, through rdma-core's libibverbs and librdmacm.
//
//	verbs.go     Config, and which devices there are
//	shim.c       small C functions: one crossing posts or polls a batch
//	device.go    Device, its limits, counters and asynchronous events
//	memory.go    protection domains and regions
//	window.go    memory windows
//	complete.go  completion queues: the goroutine that serves one
//	queuepair.go the queue pair
//	work.go      Post
//	receive.go   queues of receives, own and shared
//	manage.go    the connection manager's events
//	connect.go   connections that we want
//	listen.go    connections that peers want
//	end.go       how connections end
//	lost.go      devices that are removed
//	poller.go    descriptors of the libraries in Go's poller
//	fake/        a stand-in for the libraries, for tests on machines without RDMA
//
// It is built with the tag verbs, which takes the headers of rdma-core and a C compiler. The
// libraries themselves are loaded when Open is first called, so that the program starts on
// machines without them, too.
//
// # What the kernel's devices do differently
//
// Work, completions and the memory for them are the device's; what it does not tell is kept
// beside it: which work request a completion is of, and what the owner called it. When a
// connection has ended, for whatever reason, its queue pair is destroyed at once, and what
// the device has not completed by then completes as flushed, so that no end depends on how
// well a device flushes.
//
// Devices that can take no Send with Invalidate for memory that was registered by its owner,
// and that is all of them, refuse AccessRemoteInvalidate: rdma.Limits says what there is.
package verbs

import (
	"log/slog"
	"time"
)

// Config says which device to open, and how it is to be used.
type Config struct {
	// Name is the kernel's name of the device, for example rxe0.
	Name   string
	Logger *slog.Logger // nil: silence
	// ConnectTimeout bounds each step of Connect, 0: 5 s; AcceptTimeout how long the owner of a
	// listener may take to accept, 0: 10 s; LingerTime how long a connection may take to end
	// in good order, 0: 3 s.
	ConnectTimeout, AcceptTimeout, LingerTime time.Duration
	// Spin is how long a completion queue is polled before its goroutine sleeps, if the last
	// completion did not take longer to come. 0: some times what a wake-up takes on this machine;
	// below 0: never, whatever SetPolling says.
	Spin time.Duration
	// Lost, if set, is called once after the device has been removed, or is broken for good. Its
	// connections and listeners end by themselves. Close is due then: until it is called, the kernel may
	// hold back whoever removes the device. It is called in a goroutine of the device, which Close waits for.
	Lost func(error)
}
