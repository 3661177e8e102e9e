package uring

// The kernel's side of io_uring, as io_uring_setup(2), io_uring_enter(2) and
// io_uring_register(2) have it. All in host byte order.

// Operations of a submission queue entry.
const (
	OpReadv  = 1
	OpWritev = 2
	OpRead   = 22
	OpWrite  = 23
)

// flagFixedFile: SQE.FD is an index into the registered files.
const flagFixedFile = 1 << 0

// Flags of io_uring_setup.
const (
	setupCQSize    = 1 << 3
	setupSubmitAll = 1 << 7 // an entry that cannot be does not end the batch; Linux 5.18
)

// Flags of io_uring_enter.
const (
	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3 // its argument is an extArg
)

// extArg is struct io_uring_getevents_arg.
type extArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	timeout   uint64 // of a unix.Timespec
}

// Features that io_uring_setup reports.
const (
	featSingleMmap    = 1 << 0
	featNoDrop        = 1 << 1
	featSubmitStable  = 1 << 2
	featExtArg        = 1 << 8
	featNativeWorkers = 1 << 9 // Linux 5.12

	featNeeded = featSingleMmap | featNoDrop | featSubmitStable | featExtArg | featNativeWorkers
)

// Offsets for mmap.
const (
	offRings = 0
	offSQEs  = 0x10000000
)

// Operations of io_uring_register.
const (
	registerFiles   = 2
	unregisterFiles = 3
	registerEventFD = 4
)

// cqEventFDDisabled, in the flags of the completion queue, which the application writes, keeps the kernel from writing
// to the event descriptor (Linux 5.8).
const cqEventFDDisabled = 1 << 0

// SQE is an entry of the submission queue.
type SQE struct {
	Op       uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	Off      uint64 // bytes into the file
	Addr     uint64 // of the memory, or of an array of unix.Iovec
	Len      uint32 // bytes at Addr, or elements there
	RWFlags  uint32 // RWF_…, as preadv2(2)
	UserData uint64 // comes back in the CQE
	_        [3]uint64
}

// CQE is an entry of the completion queue.
type CQE struct {
	UserData uint64
	Res      int32 // as the system call would return: bytes, or -errno
	flags    uint32
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
		userAddr                                                    uint64
	}
	cq struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
		userAddr                                                    uint64
	}
}
