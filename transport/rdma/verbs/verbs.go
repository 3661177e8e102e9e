// Package verbs is the provider of transport/rdma for the kernel's RDMA devices: soft-RoCE (rxe),
// siw, RoCE, InfiniBand and iWARP cards. It uses rdma-core's libibverbs and librdmacm.
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
//	connect.go   connections that this end makes
//	listen.go    connections that peers make
//	end.go       how connections end
//	lost.go      devices that are removed
//	relisten.go  siw's listening sockets, which go
//	poller.go    descriptors of the libraries in Go's poller
//	fake/        a stand-in for the libraries, for tests on machines without RDMA
//
// It is built with the tag verbs, which needs the headers of rdma-core and a C compiler. The first
// call of Open loads the libraries, so that the program starts on machines without them, too.
//
// # What the kernel's devices do differently
//
// The queues of work and completions belong to the device. This package keeps what the device does
// not report: to which work request a completion belongs, and the ID that its owner has given it.
// When a connection has ended, for whatever reason, its queue pair is destroyed at once, and work that
// the device has not completed by then completes as flushed. So no end depends on how well a device
// flushes.
//
// No device accepts a Send with Invalidate for memory that was registered by its owner, so Register
// refuses AccessRemoteInvalidate. rdma.Limits says what a device can do.
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
	// ConnectTimeout bounds each step of Connect, 0: 5 s. AcceptTimeout bounds the time until the
	// owner of a listener accepts, 0: 10 s. LingerTime bounds the orderly end of a connection,
	// 0: 3 s.
	ConnectTimeout, AcceptTimeout, LingerTime time.Duration
	// Spin is how long a completion queue is polled before its goroutine sleeps, if the last
	// completion did not take longer to come. 0: a few dozen times the duration of a wake-up on this
	// machine; below 0: no polling, whatever SetPolling says.
	Spin time.Duration
	// Lost, if set, is called once after the device was removed, or is broken for good. Its connections and
	// listeners end by themselves. The owner should then call Close: until that, the kernel may block the
	// program that removes the device. Lost is called in a goroutine of the device, for which Close waits.
	Lost func(error)
}
