// Package nic is an RDMA device in another process: the driver of it, for the process of the application. The queue pairs
// run in the process that serves Config.Socket (package card, the command "target nic"), as those of a real card run
// on the card. Queues, completions and registered memory are in memory that both processes map; what is posted costs a
// descriptor there, and a system call only if the card sleeps.
//
//	device.go     Device: the socket, what is asked over it, and its end
//	memory.go     memory that is shared, protection domains, regions, windows
//	command.go    registrations and the like: a command and its answer each, in shared memory
//	harvest.go    completions, and who sleeps until there are some
//	queuepair.go  the queue pair, its connection and its end
//	work.go       Post: checks, and descriptors
//	tags.go       STags, which are chosen here
//	receive.go    queues of receives, own and shared
//	connect.go    connections
//	lasting.go    Lasting: a device for one card after the other
//
// The device is an rdma.Allocator: only memory of Alloc can be registered or advertised.
//
// STags of windows and of one-shot are chosen here, out of those that the card has set aside for the queue pair: Post
// returns them without asking. The card binds them before it sends the message.
//
// If the card goes, all connections are lost: what was posted completes as flushed, and Disconnected is called with a
// *LostError.
package nic
