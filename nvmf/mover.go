package nvmf

import "oneshot/nvme"

// Mover is what a queue asks of its transport: it moves capsules and the data of commands, and knows how; the queue
// knows when and why. Every method but the last three is called with the Queue locked, none blocks, and what they queue leaves in
// the order of the calls, at the latest at Flush.
type Mover interface {
	// FreeTask takes back a task that Queue.Command has taken over.
	FreeTask(t *Task)
	// GetData fetches the first t.OutLen bytes of the host's data into t.Out, or, with t.PlaceUnit, to where
	// Task.BeginPlace says. It ends with Queue.GotData or DataFailed, perhaps before GetData returns.
	GetData(t *Task)
	// Hold takes no more of what the host sends before GetData or Forget is called for t, whose data come with it: there is no memory for them
	// now. False: it cannot; the data are lost unless GetData was called before Queue.Command returns. Only from within Queue.Command, and
	// while t is held.
	Hold(t *Task) bool
	// Arrived returns how many bytes the host has sent so far, and how many of these were read; open: as far as can be seen, it has not closed the
	// connection. It is for those that can Hold.
	Arrived() (sent, read uint64, open bool)
	// Answer sends t.In and then t.CQE. It ends with Queue.Sent, when nothing of it is needed any more, or AnswerLost.
	Answer(t *Task)
	// Forget has nothing placed into t.Out any more. Data that the host still sends for t are thrown away. GetData may
	// not have been called. False: an RDMA Read is placing bytes; Queue.Forgotten follows when none is any more.
	Forget(t *Task) bool
	// Connected says what the queue has become: when it is connected, and once more when its host has proved itself, if it has to.
	Connected(Params)
	// Flush sends what is queued.
	Flush()
	// Terminate ends the connection; Queue.Lost follows.
	Terminate(Termination)
	// Digests says which were negotiated.
	Digests() (header, data bool)

	Peer() string  // address of the host
	Local() string // address that it has reached
	Transport() *Transport
}

// Transport is what queues over one kind of transport have in common. There is one value for each.
type Transport struct {
	Name string // in the configuration
	Type nvme.TransportType
	// Capsule and AdminCapsule are the most bytes of data that a command capsule of an I/O queue may have, and that of an admin
	// queue.
	Capsule, AdminCapsule int
	// Holds says that its movers can Hold: data in capsules wait for memory, so there need not be memory for those of all commands that a queue may have.
	Holds bool
	// SGLS are the descriptors of data that its movers take besides those in capsules, as Identify says it.
	SGLS uint32
}

// Termination says when a connection ends.
type Termination uint8

// Times to end a connection.
const (
	AtOnce   Termination = iota
	WhenSent             // when what is queued has left
)

// Params are what a mover has to know of a queue that is connected.
type Params struct {
	QID         uint16
	CapsuleData int  // bytes of data that a capsule may have
	Proved      bool // the host need not give way to others; one that has only come for discovery has to, unless it has authenticated itself
	Collapse    bool // a completion without status may be folded into the last data: nobody looks at SQHD
}

// DataFault is why the data of a command cannot be had.
type DataFault uint8

// Faults of data.
const (
	DigestMismatch DataFault = iota // the data may come again, and be good
	NotFetched                      // the host has not let them be read, or the connection has ended
	NoRoom                          // there is no memory for them
)

// Promised is what a host has said of a queue when it made the connection, before Connect.
type Promised struct {
	QID     uint16
	Entries int    // of the submission queue
	CNTLID  uint16 // of the controller of an I/O queue; 0: it was not said
}
