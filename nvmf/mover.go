package nvmf

// Mover is what a queue asks of its transport: it moves capsules and the data of commands, and knows how; the queue
// knows when and why. Every method but the last three is called with the Queue locked, none blocks, and what they queue leaves in
// the order of the calls, at the latest at Flush.
type Mover interface {
	// FreeTask takes back a task that Queue.Command has taken over.
	FreeTask(t *Task)
	// GetData fetches the first t.OutLen bytes of the host's data into t.Out, or, with t.PlaceUnit, to where
	// Task.BeginPlace says. It ends with Queue.GotData or DataFailed, perhaps before GetData returns.
	GetData(t *Task)
	// Answer sends t.In and then t.CQE. It ends with Queue.Sent, when nothing of it is needed any more, or AnswerLost.
	Answer(t *Task)
	// Forget has nothing placed into t.Out any more. Data that the host still sends for t are thrown away. GetData may
	// not have been called.
	Forget(t *Task)
	// Connected says what the queue has become.
	Connected(Params)
	// Flush sends what is queued.
	Flush()
	// Terminate ends the connection; Queue.Lost follows.
	Terminate(Termination)
	// Digests says which were negotiated.
	Digests() (header, data bool)

	Peer() string  // address of the host
	Local() string // address that it has reached
	Transport() string
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
	Collapse    bool // a completion without status may be folded into the last data: nobody looks at SQHD
}

// DataFault is why the data of a command cannot be had.
type DataFault uint8

// Faults of data.
const (
	DigestMismatch DataFault = iota // the data may come again, and be good
)
