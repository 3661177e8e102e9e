// Package quorum keeps the few records on which all nodes of a cluster agree: who is primary of a set, which copies
// are in sync, reservations of units, who is a member. It drives the library go.etcd.io/raft/v3.
//
//	             Change, Read                Watch
//	                  │                        ▲
//	             ┌────▼────────────────────────┴───┐
//	Tick ───────►│ Core: a step function           │
//	Receive ────►│   raft.RawNode    State         │──► messages, only after what they promise is on the disk
//	             │          Log                    │
//	             └───────────┬─────────────────────┘
//	                    FS: WriteAt, Sync, Rename, SyncDir
//
// Core has no clock, goroutine, random number or socket: a simulation drives it as Node does, which is the edge with
// a ticker, and TLS to the other members.
//
// # Promises
//
// A change is answered when a majority of the voters has it on its disks. All nodes apply the same changes in the
// same order. A change names the version of the record that it replaces, and fails if that is not the newest; sent
// twice, it takes effect once.
//
// A vote and an acknowledgement are given once. A node whose state directory was lost, set back to an older state
// (a snapshot of its machine) or cloned is refused by the others, who remember how far its log had come: see Hello.
package quorum
