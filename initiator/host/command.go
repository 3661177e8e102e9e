package host

import (
	"errors"
	"fmt"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/bytestream"
)

// Command is a command and its outcome. It must not be changed from Start until Done is called, nor may the memory of Out and In be
// used.
type Command struct {
	Opcode nvme.Opcode
	Fuse   nvme.Fuse
	NSID   uint32    // of a fabrics command: the FCType
	DWords [6]uint32 // 10 to 15

	Out []byte // what the controller fetches; or
	In  []byte // where it puts what it sends

	// Done is called once, when the command has ended, by one goroutine of the queue at a time, or by Start itself if the queue has
	// ended. It must not block; it may start commands.
	Done func(*Command)

	// Err says why there is no status: the queue has ended, or a digest of the data did not match.
	Err error
	CQE nvme.CQE // its SQHD means nothing
	// Transferred is how many bytes of In have come.
	Transferred int

	next     *Command
	cid      uint16
	state    sending
	unsent   int  // how often it is in the output
	over     bool // it has ended, and waits for the output
	last     bool // the data under way bear the status
	bad      bool // a digest did not match
	ready    pdu.Ready
	sink     bytestream.Sink
	piece    [1][]byte
	head     [capsuleHead]byte
	dataHead []byte // headers of H2CData
}

// capsuleHead is enough for the header of a capsule, its digest, padding, and the digest of its data.
const capsuleHead = pdu.CapsuleCmdLen + 2*pdu.DigestLen + 4*(pdu.MaxAlign+1)

// sending is which part of a command is to be sent next.
type sending uint8

const (
	sendCapsule sending = iota
	sendData
)

// Failure returns nil if the command has succeeded, Err if there is no status, and otherwise a *StatusError.
func (x *Command) Failure() error {
	switch {
	case x.Err != nil:
		return x.Err
	case x.CQE.Status == nvme.Success:
		return nil
	}
	return &StatusError{Opcode: x.Opcode, NSID: x.NSID, Status: x.CQE.Status}
}

// StatusError is a command that the controller has not executed as asked.
type StatusError struct {
	Opcode nvme.Opcode
	NSID   uint32
	Status nvme.Status
}

var commandNames = map[nvme.Opcode]string{
	nvme.Flush: "Flush", nvme.Write: "Write", nvme.Read: "Read", nvme.Compare: "Compare", nvme.WriteZeroes: "Write Zeroes", nvme.DSM: "Dataset Management",
	nvme.Verify: "Verify", nvme.Fabrics: "a command of fabrics",
}

var statusNames = map[nvme.Status]string{
	nvme.InvalidOpcode: "invalid opcode", nvme.InvalidField: "invalid field", nvme.InternalError: "internal error", nvme.Aborted: "aborted",
	nvme.AbortedByQueue: "aborted with its queue", nvme.FusedFailed: "the other command of the pair has failed", nvme.InvalidNamespace: "there is no such namespace",
	nvme.WriteProtected: "the namespace is read-only", nvme.Interrupted: "interrupted", nvme.NamespaceNotReady: "the namespace is not ready", nvme.TransientTransport: "transport error", nvme.LBAOutOfRange: "blocks behind the end",
	nvme.CapacityExceeded: "no space", nvme.ReservationConflict: "reservation conflict", nvme.ConnectInvalidHost: "the subsystem does not admit this host",
	nvme.ConnectBusy: "the controller has no room", nvme.WriteFault: "write fault", nvme.UnrecoveredRead: "unreadable", nvme.CompareFailure: "the blocks differ",
	nvme.SanitizeInProgress: "sanitize in progress", nvme.Inaccessible: "not accessible on this path", nvme.PersistentLoss: "lost on this path",
	nvme.PathInTransition: "this path is in transition", nvme.AuthenticationRequired: "the host has not proved who it is",
}

// Error says what the controller answers.
func (e *StatusError) Error() string {
	what := commandNames[e.Opcode]
	if what == "" {
		what = fmt.Sprintf("command %#02x", uint8(e.Opcode))
	}
	if e.Opcode == nvme.Fabrics && nvme.FCType(e.NSID) == nvme.Connect {
		what = "Connect"
		if e.Status.Code() == nvme.ConnectInvalid {
			return "Connect: there is no such subsystem, or the host has no valid name (status 182h)"
		}
	}
	if name := statusNames[e.Status.Code()]; name != "" {
		return fmt.Sprintf("%s: %s (%v)", what, name, e.Status)
	}
	return fmt.Sprintf("%s: %v", what, e.Status)
}

var (
	errDataDigest = errors.New("the digest of data that have come does not match")
	errOneSlot    = errors.New("the queue takes one command at a time, and a fused pair is two: a depth of 2 or more has room for it")
	errClosed     = errors.New("the queue is closed")
	errGone       = errors.New("the controller has closed the connection")
)

// list is commands in order.
type list struct{ head, tail *Command }

func (l *list) push(x *Command) {
	x.next = nil
	if l.head == nil {
		l.head = x
	} else {
		l.tail.next = x
	}
	l.tail = x
}

func (l *list) pop() *Command {
	x := l.head
	if x != nil {
		l.head, x.next = x.next, nil
	}
	return x
}
