// Package nbd makes a block device of the kernel's out of a SCSI disk: Linux's driver nbd sends the requests
// of programs and file systems through a pair of sockets to this process, which has them done by
// [initiator.Lasting] sessions.
//
//	program, file system ─► nbd in the kernel ─► socket pair ─► Conn ─► Lasting ─► target
//	                            ▲                                 │
//	                            └─── netlink: connect, ───────────┘
//	                                 reconfigure, disconnect   Attachment
//
// [Attach] makes or takes over a device, [Conn] speaks the transmission phase of the NBD protocol
// (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md) with the kernel: simple replies only.
//
// # What survives what
//
// A session that is lost is begun again by Lasting: the device sees a pause. A process that dies leaves the
// device, whose requests wait; the next process finds in the kernel, as the identifier of the device's backend,
// which disk it is and under which ISIDs it was logged in. It logs in under the same, so that the target ends
// what is left of the dead one's commands first, and hands the kernel new sockets.
//
// # The way of a request
//
// One goroutine per socket is parked in RawConn.Read. One read brings what has come, into memory of the
// session: data of a WRITE is used where it lies. All requests of a read begin with one call of Start. What
// ends is collected, and one writev answers it. A request allocates nothing. The data of a long READ over TCP goes from
// socket to socket without a copy (pass.go).
package nbd
