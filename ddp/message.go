package ddp

// Message is a kind of RDMAP message, independent of its encoding.
type Message uint8

const (
	MessageInvalid Message = iota
	Write
	ReadRequest
	ReadResponse
	Send
	SendInvalidate
	SendSE // with Solicited Event
	SendSEInvalidate
	Terminate
	SendAdvertise // one-shot, implies the solicited event under EncodingOpcodes
	SendClose
	messageCount
)

// Opcodes (RFC 5040 §4.3, FIG 5A, which takes one that is Immediate Data elsewhere, RFC 7306 §10).
const (
	opSend             = 0x3
	opSendSE           = 0x5
	opOneShotAdvertise = 0x8
	opOneShotClose     = 0xc
)

// Queue numbers of untagged messages (RFC 5040 §4.2).
const (
	QNSend        = 0
	QNReadRequest = 1
	QNTerminate   = 2
)

// row holds the fixed properties of a kind of message.
type row struct {
	name   string
	opcode uint8
	tagged bool
	qn     uint32
	size   int  // octets of ULP header that must be there, 0: payload of any length
	exact  bool // nothing may follow the ULP header
}

var rows = [messageCount]row{
	MessageInvalid:   {name: "invalid message"},
	Write:            {name: "RDMA Write", opcode: 0x0, tagged: true},
	ReadRequest:      {name: "RDMA Read Request", opcode: 0x1, qn: QNReadRequest, size: readRequestLen, exact: true},
	ReadResponse:     {name: "RDMA Read Response", opcode: 0x2, tagged: true},
	Send:             {name: "Send", opcode: opSend},
	SendInvalidate:   {name: "Send with Invalidate", opcode: 0x4},
	SendSE:           {name: "Send with Solicited Event", opcode: opSendSE},
	SendSEInvalidate: {name: "Send with Solicited Event and Invalidate", opcode: 0x6},
	Terminate:        {name: "Terminate", opcode: 0x7, qn: QNTerminate, size: terminateControlLen},
	SendAdvertise:    {name: "Send with Advertise", opcode: opSendSE},
	SendClose:        {name: "Send with Close", opcode: opSendSE},
}

func (m Message) String() string { return rows[m].name }

// Tagged reports whether the message consists of tagged segments.
func (m Message) Tagged() bool { return rows[m].tagged }

// QN returns the queue number of an untagged message.
func (m Message) QN() uint32 { return rows[m].qn }

// IsSend reports whether the message takes a posted receive and carries ULP payload: the
// four Sends of RFC 5040 and the two of one-shot.
func (m Message) IsSend() bool {
	switch m {
	case Send, SendInvalidate, SendSE, SendSEInvalidate, SendAdvertise, SendClose:
		return true
	}
	return false
}

// Invalidates reports whether the STag field names an STag to invalidate (RFC 5040 §5.3).
func (m Message) Invalidates() bool { return m == SendInvalidate || m == SendSEInvalidate }

// Solicited reports whether the segment belongs to a message with a solicited event.
func (s Segment) Solicited() bool {
	switch s.Message {
	case SendSE, SendSEInvalidate:
		return true
	case SendAdvertise, SendClose:
		// FIG 5A: "Send with event and …"; FIG 5B leaves it to the opcode that bears the flag.
		return s.Header.Control().Opcode() != opSend
	}
	return false
}

var byOpcode = [16]Message{
	0x0: Write, 0x1: ReadRequest, 0x2: ReadResponse,
	0x3: Send, 0x4: SendInvalidate, 0x5: SendSE, 0x6: SendSEInvalidate, 0x7: Terminate,
}

// message tells what the control word of a received segment announces.
func (f *Format) message(c Control) (Message, error) {
	switch f.Encoding {
	case EncodingFlags:
		if mark := c & controlMarking; mark != 0 {
			return f.flagged(c, mark)
		}
	case EncodingOpcodes:
		switch c.Opcode() {
		case opOneShotAdvertise:
			return f.marked(SendAdvertise, c)
		case opOneShotClose:
			return f.marked(SendClose, c)
		}
	}
	m := byOpcode[c.Opcode()]
	if m == MessageInvalid || m.Tagged() != c.Tagged() {
		return MessageInvalid, errOpcode
	}
	return m, nil
}

// flagged decides on a control word that has a bit of FIG 5B.
func (f *Format) flagged(c, mark Control) (Message, error) {
	op := c.Opcode()
	switch {
	case mark == controlMarking, op != opSend && op != opSendSE:
		return MessageInvalid, errMarking
	case mark == ControlAdvertise:
		return f.marked(SendAdvertise, c)
	}
	return f.marked(SendClose, c)
}

// marked admits a one-shot message if its feature was negotiated and it comes from the host
// that may send it.
func (f *Format) marked(m Message, c Control) (Message, error) {
	switch {
	case c.Tagged():
		return MessageInvalid, errMarking
	case m == SendAdvertise && f.Advertise && f.Host == Host2, m == SendClose && f.Close && f.Host == Host1:
		return m, nil
	}
	return MessageInvalid, errFeature
}

// Control returns the control word with which this end sends a segment of the message. Asking
// for a one-shot message on a connection without one-shot is a bug of the caller.
func (f *Format) Control(m Message, last bool) Control {
	r := &rows[m]
	c := Control(controlVersions | uint16(r.opcode))
	if r.tagged {
		c |= ControlTagged
	}
	if last {
		c |= ControlLast
	}
	switch m {
	case MessageInvalid:
		panic("ddp: control word of an invalid message")
	case SendAdvertise:
		return f.mark(c, ControlAdvertise, opOneShotAdvertise)
	case SendClose:
		return f.mark(c, ControlClose, opOneShotClose)
	}
	return c
}

func (f *Format) mark(c, flag Control, opcode Control) Control {
	switch f.Encoding {
	case EncodingFlags:
		return c | flag
	case EncodingOpcodes:
		return c&^controlOpcode | opcode
	}
	panic("ddp: one-shot message on a connection without one-shot")
}
