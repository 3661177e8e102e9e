// Package initiator is the client's side of iSCSI (RFC 7143), over TCP, over iSER (RFC 7145)
// and over one-shot RDMA, as a library. It depends on nothing of the target: RDMA is the
// iWARP of this module in user space, or any other rdma.Device.
//
//	URL, Options ─► Dial ─► Session ─┬─ Command: Start, Do       any SCSI command
//	                                 ├─ LU: ReadAt, WriteAt, …   a disk
//	                                 └─ mover ─┬─ TCP            PDUs on a byte stream
//	                                           └─ RDMA           in one of the flows of Flow
//	Discover ─► targets
//
// A Session is one connection. Any number of goroutines may use it; commands are numbered in
// the order of Start, and end in any order.
//
// # Wake-ups
//
// What ends commands is one goroutine, that of the socket or of the RDMA device. It calls Done
// of each command itself, and what Done starts leaves with the next batch: whoever keeps a
// number of commands outstanding needs no goroutine per command.
//
// # Memory
//
// A command's data may lie anywhere. RDMA moves it from there and to there: what lies in
// Memory of the Session is known to the device already, other memory is registered for the
// time of the command. Either belongs to the command until Done.
package initiator
