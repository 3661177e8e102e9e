package iscsi

import (
	"oneshot/internal/baton"
	"oneshot/internal/owed"
	"oneshot/internal/serial"
	"oneshot/iscsi/login"
	"oneshot/scsi"
)

// Datamover is what a session asks of its transport (after RFC 5047): it moves PDUs and the
// bytes of commands, and knows how; the session knows when and why. Every method is called
// with the Conn locked, none blocks, and what they queue leaves in the order of the calls,
// at the latest at Flush.
type Datamover interface {
	// FreeTask takes back a task that Conn.Command has taken over, after its Release.
	FreeTask(t *Task)

	// SendControl queues a PDU. bhs is one basic header segment without digests; data
	// follows it. Both are copied before SendControl returns. end says what is over with it.
	SendControl(bhs []byte, data []byte, end Ending)

	// GetData fetches the first t.OutLen bytes of the initiator's buffer into t.Out (RFC
	// 5047 Get_Data): from the immediate and unsolicited data that the initiator sends on
	// its own, the rest with R2Ts or RDMA Reads. It ends with Conn.GotData, Conn.DataFailed or,
	// when the connection ends, Conn.DataLost, perhaps before GetData returns. Conn.Lost may end
	// the task instead.
	GetData(t *Task)

	// Answer sends t.In to the initiator's buffer and ends the task with its status,
	// sense data and residual, phases collapsed where the transport can (Put_Data and Send_Control of
	// RFC 5047 in one). It ends with Conn.Sent, later.
	Answer(t *Task)

	// Forget drops what the mover knows of the data-out of an aborted task. What the
	// initiator still sends of it is received and thrown away. False: an RDMA Read is placing
	// bytes into t.Out; Conn.Forgotten follows when none is any more.
	Forget(t *Task) bool

	// Enable tells the mover that the full feature phase begins after what is queued has
	// left, with which parameters, and how long the data segments of the initiator's PDUs may
	// be (Enable_Datamover).
	Enable(p *login.Params, maxIn int)

	// Flush starts sending all that is queued.
	Flush()

	// Terminate ends the connection. Conn.Lost follows.
	Terminate(how Termination)

	// HungUp reports whether the initiator has closed its end, though Conn.Lost has not been
	// called: the network may know before the mover's goroutine has come to it.
	HungUp() bool

	// Count tells what has crossed between the mover and its network since the connection
	// began, each count with its name.
	Count(tell func(name string, n uint64))

	// Peer and Local are the addresses of the two ends, for people and for SendTargets.
	Peer() string
	Local() string

	// Transport is what portals of the mover's kind are called, Portal.Transport.
	Transport() string
}

// Ending says what is over with a PDU that the session sends: a mover may hold something of the
// initiator's until then. The zero value: nothing.
type Ending struct {
	// Command is a command that the PDU refuses: Conn.Command has not taken it, and will not.
	Command *Task
	// Abort: the PDU answers the ABORT TASK request with this ITT, which Task.AbortedBy has told.
	Abort bool
	ITT   uint32
}

// Termination is how a connection ends.
type Termination uint8

// How connections end.
const (
	// AtOnce: nothing is sent any more.
	AtOnce Termination = iota
	// WhenSent: after what is queued has left, for which the initiator has some time.
	WhenSent
	// WhenLoggedOut is WhenSent; but the initiator has logged out, and ends the connection itself
	// where it can tell that it has received the response.
	WhenLoggedOut
)

// Task is a SCSI command on an iSCSI connection. The datamover allocates it, mostly inside
// something larger of its own, and uses it for one command after the other.
type Task struct {
	scsi.Task
	// Set by the mover for good. TaskReady, which may be late, reads Conn without a lock.
	Conn  *Conn
	Mover any // the mover's own

	ITT       uint32
	Immediate bool // the I bit: the task holds no place in the command window
	Read      bool // R bit
	Write     bool // W bit
	Final     bool // F bit: no unsolicited Data-Out PDUs follow
	EDTL      uint32
	cmdSN     serial.SN
	arrived   int64 // when it came, as Conn.times has it

	cdb     [maxCDB]byte
	state   taskState
	slot    int        // in Conn.tasks, or -1
	ticks   uint8      // seconds there, at most scsi.OverdueTicks
	owed    owed.Item  // its data-out, as long as that is fetched
	leased  int        // bytes of I/O memory, as the pool counts them
	working int        // of these: with them the command goes on
	unsent  int        // of these: counted in Conn.unsent
	queued  baton.Mark // in Conn.ready
	wanted  int        // bytes of memory that it waits for; it is in Conn.hungry
	refused bool       // no memory for its unsolicited data
	aborted abortedBy
	aborter uint32 // with abortedByRequest: the ITT of the ABORT TASK
}

// Placing is what Task.BeginPlace returns.
type Placing = scsi.Placing

// abortedBy says which task management function was the first to concern a task.
type abortedBy uint8

const (
	abortedByNone    abortedBy = iota
	abortedByRequest           // ABORT TASK, on the connection of the task
	abortedByOther             // a function that aborts sets of tasks
)

// maxCDB is the longest CDB that is looked at: a variable length CDB (SPC-4 §4.2.3).
const maxCDB = 260

// taskState says who has the task.
type taskState uint8

const (
	taskPooled     taskState = iota // belongs to the mover's pool
	taskHeld                        // waits for earlier CmdSNs
	taskWaiting                     // in scsi
	taskPulling                     // the mover fetches its data-out
	taskAnswered                    // the mover sends its answer
	taskForgetting                  // aborted, while the mover still fetches its data-out
	taskGone                        // released, but still in Conn.ready
)

// Residual is the difference between what a command transfers and what the initiator
// expects (RFC 7143 §11.4.5).
type Residual struct {
	Overflow, Underflow bool
	Count               uint32
}
