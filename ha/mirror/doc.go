// Package mirror drives the core of ha/replica with what is real: a block store, a network, a clock, and a file for
// what has to outlive the process. To its host it is a block store.
//
//	Submit ──► ┌──────────────────────────────┐ ──► the copy: a store of backend/
//	           │ one goroutine: replica.Core  │ ◄── completions
//	peers ───► │ events in, actions out       │ ──► peers: one connection with each
//	views ───► └──────────────────────────────┘ ──► metadata
//
// The goroutine takes all events that are there, does what the core asks for, and then tells hosts and peers, so a
// burst costs one wake-up. Nothing in it blocks: stores complete later, each connection has a goroutine that writes
// what the owner of the core does not write without waiting and one that reads, and the metadata has one that syncs.
//
// # Connections
//
// Two nodes have one connection, which the one with the lower number makes. It carries frames (wire.go): what the
// core sends, in order, and beats, which overtake. Data have their place in the receiver's memory in the record, as
// an RDMA Write has; the goroutine of the core puts them there when the sender has the right to, so a [replica.Cut]
// is over when it has been done. Descriptors have a CRC32C, and the data of each record theirs, which was made when
// the bytes came from the host.
//
// A connection is as trusted as its Listener and Dial make it: they are where TLS belongs.
package mirror
