// Package soft has the parts of a device in user space that are the same whatever its wire: completion queues,
// registered memory, receives and counters. It is for providers of transport/rdma.
//
//	complete.go  completion queues, and who calls their events
//	memory.go    protection domains and regions
//	receive.go   queues of receives, own and shared
//	counters.go  what crosses a queue pair; the queue pairs of a device
package soft

import "errors"

// Errors that calls of a provider return, or wrap.
var (
	ErrInUse     = errors.New("rdma: still in use")
	ErrGone      = errors.New("rdma: memory is no longer registered")
	ErrForeign   = errors.New("rdma: object of another device")
	ErrNoMemory  = errors.New("rdma: no memory to register")
	ErrBadAccess = errors.New("rdma: access rights that do not exist")
)
