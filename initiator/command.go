package initiator

import (
	"fmt"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// Command is a SCSI command and its outcome. It must not be changed from Session.Start until
// Done is called, nor may the memory of Out and In be used.
type Command struct {
	LUN  int
	CDB  []byte // 6 to 16 bytes
	Attr pdu.TaskAttribute

	Out []byte // what the target fetches; or
	In  []byte // where it puts what it sends; or either in pieces:
	// OutV and InV stand for Out and In that lie in several pieces of memory. One-shot RDMA makes the
	// list reachable in the call that sends the command, the other ways copy it.
	OutV, InV [][]byte
	// Memory, if set, is where all of that lies. One-shot RDMA needs none.
	Memory *Memory

	// Sink, unless it is nil, is offered what a READ returns, past In.
	Sink Sink

	// Attentions is how many unit attentions in a row do not end the command: it is sent again after
	// each (SAM-5 §5.14). LU.Prepare sets it.
	Attentions int

	// Done is called once, when the command has ended, by the goroutine of the connection,
	// or by Start itself if the session has ended. It must not block; it may start commands.
	Done func(*Command)

	// Err says why there is no status: the session has ended, or the target did not
	// take the command.
	Err error
	// Status is the SCSI status (SAM-5 §5.3.1).
	Status byte
	// Transferred is how many bytes of Out or In were used, as the target says.
	Transferred int
	// Sense is the sense data of a CHECK CONDITION. It is valid until the Command is used again.
	Sense []byte

	next   *Command
	heir   *Lasting // sends it again if its session is lost
	itt    uint32
	issued bool
	sense  [252]byte
	got    int  // bytes of Data-In
	asked  int  // bytes that R2Ts have asked for
	whole  bool // what moves less than all, or would have moved more, has failed
	more   bool // the target would have moved more
	told   int  // unit attentions in a row
	unit   *LU  // what has prepared it; nil: nothing
	joined bool // Out or In is a copy of OutV or InV
	fields pdu.SCSICommandFields
	rdma   transfer
}

// Sink takes the data of a READ from the socket itself, so that this process does not copy it. Over TCP it is offered data that
// comes in one long PDU, all that the command asks for, together with the status GOOD. The goroutine of the connection calls it,
// without a lock, before Done. If the connection ends meanwhile, the command ends as others do, or begins again (Lasting) and has
// its data in In, or is offered it once more.
type Sink interface {
	// Accept reports whether the Sink takes the data. first is the beginning of it, which has been read already, and belongs to the
	// caller. If it does, Take follows.
	Accept(first []byte) bool
	// Take reads from fd, which does not block, what the command asks for behind first, and not more. It reports whether it has
	// everything; if not, fd had nothing, and Take is called again when something has come. The end of fd is io.EOF. An error ends
	// the connection.
	Take(fd int) (all bool, err error)
}

// SCSI status codes (SAM-5 §5.3.1).
const (
	StatusGood                = 0x00
	StatusCheckCondition      = 0x02
	StatusBusy                = 0x08
	StatusReservationConflict = 0x18
	StatusTaskSetFull         = 0x28
	StatusACAActive           = 0x30
	StatusTaskAborted         = 0x40
)

var statusNames = map[byte]string{
	StatusCheckCondition: "CHECK CONDITION", StatusBusy: "BUSY", StatusReservationConflict: "RESERVATION CONFLICT",
	StatusTaskSetFull: "TASK SET FULL", StatusACAActive: "ACA ACTIVE", StatusTaskAborted: "TASK ABORTED",
}

// Failure returns nil if the command has ended with GOOD, Err if it was not executed, and
// otherwise a *StatusError. What LU.Prepare makes has failed, too, if it ends with GOOD and has not moved all bytes, or if the target says
// that there would have been more: its blocks are not those that LU knows of.
func (c *Command) Failure() error {
	switch {
	case c.Err != nil:
		return c.Err
	case c.Status == StatusGood && c.whole && c.more:
		return fmt.Errorf("LUN %d: %s: the target says that the command is about more than %d bytes: it has other blocks", c.LUN, commandName(c.CDB[0]), c.size())
	case c.Status == StatusGood && c.whole && c.Transferred < c.size():
		return fmt.Errorf("LUN %d: %s: the target says that it is done, and has moved %d of %d bytes", c.LUN, commandName(c.CDB[0]), c.Transferred, c.size())
	case c.Status == StatusGood:
		return nil
	}
	e := &StatusError{LUN: c.LUN, Opcode: c.CDB[0], Status: c.Status}
	e.Key, e.ASC, e.ASCQ = senseCodes(c.Sense)
	return e
}

// StatusError is a command that the logical unit has not executed as asked.
type StatusError struct {
	LUN            int
	Opcode, Status byte
	Key, ASC, ASCQ byte // of CHECK CONDITION (SPC-4 §4.5)
}

var keyNames = [16]string{
	"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST", "UNIT ATTENTION", "DATA PROTECT",
	"BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND", "sense key 0Ch", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED",
}

// Error says what the logical unit answers.
func (e *StatusError) Error() string {
	s := statusNames[e.Status]
	if s == "" {
		s = fmt.Sprintf("status %02xh", e.Status)
	}
	if e.Status == StatusCheckCondition {
		s = keyNames[e.Key&15]
		if name := senseName(e.ASC, e.ASCQ); name != "" {
			s += ", " + name
		}
		s += fmt.Sprintf(" (sense %X/%02X/%02X)", e.Key, e.ASC, e.ASCQ)
	}
	return fmt.Sprintf("LUN %d: %s: %s", e.LUN, commandName(e.Opcode), s)
}

// senseCodes reads sense data of either format (SPC-4 §4.5).
func senseCodes(b []byte) (key, asc, ascq byte) {
	switch {
	case len(b) >= 4 && b[0]&0x7e == 0x72:
		return b[1] & 15, b[2], b[3]
	case len(b) >= 14 && b[0]&0x7e == 0x70:
		return b[2] & 15, b[12], b[13]
	}
	return 0, 0, 0
}

// writes reports whether the command carries data to the target, reads whether from it.
func (c *Command) writes() bool { return len(c.Out) > 0 || len(c.OutV) > 0 }
func (c *Command) reads() bool  { return len(c.In) > 0 || len(c.InV) > 0 }

// size returns how many bytes the target reads or writes.
func (c *Command) size() int {
	n := len(c.Out) + len(c.In)
	if c.joined {
		return n
	}
	for _, p := range c.OutV {
		n += len(p)
	}
	for _, p := range c.InV {
		n += len(p)
	}
	return n
}

// join copies what lies in pieces into one piece, for the flows that need one. part copies it back.
func (c *Command) join() {
	if len(c.OutV) == 0 && len(c.InV) == 0 {
		return
	}
	b := make([]byte, 0, c.size())
	for _, p := range c.OutV {
		b = append(b, p...)
	}
	if c.joined = true; len(c.OutV) > 0 {
		c.Out = b
	} else {
		c.In = b[:cap(b)]
	}
}

func (c *Command) part() {
	if !c.joined {
		return
	}
	b := c.In
	for _, p := range c.InV {
		b = b[copy(p, b):]
	}
	c.Out, c.In, c.joined = nil, nil, false
}

// data returns the memory that the target reads or writes, if it lies in one piece.
func (c *Command) data() []byte {
	if len(c.Out) > 0 {
		return c.Out
	}
	return c.In
}

// transfer is what the RDMA mover remembers of a command.
type transfer struct {
	region   rdma.Region // registered for this command alone
	stag     rdma.STag   // what the target may reach the memory with; 0: nothing
	offset   uint64      // of the memory, in the terms of stag
	step     step
	memory   []rdma.SGE
	single   [1]rdma.SGE // memory for memory
	bind     rdma.Work
	sgl      [2]rdma.SGE
	answered bool
	sent     bool    // posted
	bounce   *bounce // holds the data, where the device reaches none but its own memory
}
