package iscsi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"oneshot/internal/serial"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// stateFormat is the version of SessionState that this code writes and reads.
const stateFormat = 1

// SessionState is what a session knows about its initiator and the conversation with it: plain values,
// apart from the sockets, stores, locks and goroutines that serve it. The session runs on it. A copy
// of it (Node.SessionState) can be encoded, and decoded elsewhere.
type SessionState struct {
	Format     int
	TSIH       uint16
	Initiator  string // iSCSI name, in lower case
	ISID       pdu.ISID
	Discovery  bool
	TargetName string // empty in a discovery session
	Group      uint16 // tag of the portal group that it came through
	RDMA       bool
	Since      time.Time    // of the login
	Params     login.Params // of the leading connection

	Window             int       // commands that may be outstanding
	ExpCmdSN, MaxCmdSN serial.SN // the next to begin; the last advertised, which never moves back
	Held               map[serial.SN]Request

	Conns []ConnState // in a copy: of the connections that are logged in
}

// ConnState is the part of one connection.
type ConnState struct {
	CID     uint16
	Params  login.Params
	MaxIn   int       // the longest data segment that the initiator may send; 0: it has not logged in
	StatSN  serial.SN // the next to send
	PingTTT uint32    // of the NOP-In that has no answer yet, or 0
	NextTTT uint32
	Asked   bool // a logout request is out
}

// RequestKind says what waits for earlier CmdSNs.
type RequestKind uint8

// Kinds of Request.
const (
	RequestNone    RequestKind = iota // nothing: its place is taken, for it was aborted
	RequestCommand                    // a SCSI command
	RequestOther                      // another PDU
)

// Request is a PDU that waits for earlier ones.
type Request struct {
	CID    uint16
	Kind   RequestKind
	Header pdu.Header
	Data   []byte
}

// state returns a copy of what the session knows. The caller holds the lock of its connections.
func (s *Session) state() SessionState {
	c := s.SessionState
	c.Since = c.Since.Round(0).UTC()
	c.Held = nil
	for sn, r := range s.Held {
		if c.Held == nil {
			c.Held = make(map[serial.SN]Request, len(s.Held))
		}
		c.Held[sn] = Request{CID: r.CID, Kind: r.Kind, Header: bytes.Clone(r.Header), Data: bytes.Clone(r.Data)}
	}
	for _, o := range s.circle.conns {
		if o.state == stateFullFeature {
			c.Conns = append(c.Conns, o.ConnState)
		}
	}
	return c
}

// SessionState returns what the session with this TSIH knows. False: there is none.
func (n *Node) SessionState(tsih uint16) (SessionState, bool) {
	s := n.session(tsih)
	if s == nil {
		return SessionState{}, false
	}
	s.circle.Lock()
	defer s.circle.Unlock()
	return s.state(), true
}

// Encode returns the state as bytes.
func (s *SessionState) Encode() ([]byte, error) { return json.Marshal(s) }

// DecodeSessionState is the reverse of Encode. It refuses a state that no session can be in: another
// version of this program may have written b, or a broken one.
func DecodeSessionState(b []byte) (SessionState, error) {
	var s SessionState
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return SessionState{}, fmt.Errorf("session state: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return SessionState{}, errors.New("session state: something follows it")
	}
	if err := s.check(); err != nil {
		return SessionState{}, fmt.Errorf("session state: %w", err)
	}
	return s, nil
}

// What a session may hold at most.
const (
	maxStateConns  = 64
	maxStateWindow = 1 << 14
	maxHeldData    = 256 << 10 // of pings and texts that wait for earlier CmdSNs
)

func (s *SessionState) check() error {
	name, err := text.Name(s.Initiator)
	switch {
	case s.Format != stateFormat:
		return fmt.Errorf("format %d, and %d is known", s.Format, stateFormat)
	case err != nil:
		return err
	case name != s.Initiator:
		return fmt.Errorf("initiator %q is not in lower case", s.Initiator)
	case s.Discovery != (s.TargetName == ""):
		return errors.New("a discovery session has no target, and any other has one")
	case s.TSIH == 0:
		return errors.New("TSIH 0")
	case s.Window < 1 || s.Window > maxStateWindow:
		return fmt.Errorf("a window of %d commands", s.Window)
	case len(s.Conns) > maxStateConns:
		return fmt.Errorf("%d connections", len(s.Conns))
	case s.MaxCmdSN != s.ExpCmdSN-1 && !s.MaxCmdSN.InWindow(s.ExpCmdSN, s.ExpCmdSN+serial.SN(s.Window)-1):
		return fmt.Errorf("ExpCmdSN %d and MaxCmdSN %d, with a window of %d", s.ExpCmdSN, s.MaxCmdSN, s.Window)
	}
	if err := checkParams(&s.Params); err != nil {
		return err
	}
	cids := make(map[uint16]bool)
	for i := range s.Conns {
		c := &s.Conns[i]
		if cids[c.CID] || c.MaxIn < 512 || c.MaxIn > 1<<24-1 {
			return fmt.Errorf("connection %d: it is there twice, or takes segments of %d bytes", c.CID, c.MaxIn)
		}
		cids[c.CID] = true
		if err := checkParams(&c.Params); err != nil {
			return fmt.Errorf("connection %d: %w", c.CID, err)
		}
	}
	data := 0
	for sn, r := range s.Held {
		if data += len(r.Data); data > maxHeldData {
			return errors.New("more data is held than a session may")
		}
		if err := s.checkHeld(sn, &r); err != nil {
			return fmt.Errorf("held CmdSN %d: %w", sn, err)
		}
		if !cids[r.CID] && r.Kind != RequestNone {
			return fmt.Errorf("held CmdSN %d: there is no connection %d", sn, r.CID)
		}
	}
	return nil
}

// checkHeld checks a request against the window and the form of PDUs.
func (s *SessionState) checkHeld(sn serial.SN, r *Request) error {
	switch {
	case sn == s.ExpCmdSN || !sn.InWindow(s.ExpCmdSN, s.MaxCmdSN):
		return errors.New("it does not wait for earlier ones")
	case r.Kind > RequestOther:
		return fmt.Errorf("kind %d", r.Kind)
	case r.Kind == RequestNone && len(r.Header)+len(r.Data) > 0, r.Kind == RequestCommand && len(r.Data) > 0:
		return errors.New("bytes that do not belong to it")
	case r.Kind == RequestNone:
		return nil
	case len(r.Header) < pdu.BHSLen || len(r.Header) != pdu.BHSLen+r.Header.TotalAHSLen():
		return fmt.Errorf("%d bytes of header", len(r.Header))
	case (r.Header.Opcode() == pdu.OpSCSICommand) != (r.Kind == RequestCommand):
		return fmt.Errorf("%v as kind %d", r.Header.Opcode(), r.Kind)
	}
	return nil
}

// checkParams looks at the lengths by which data is cut.
func checkParams(p *login.Params) error {
	for _, n := range []uint32{p.MaxRecvDataSegmentLength, p.MaxBurstLength, p.FirstBurstLength} {
		if n < 512 || n > 1<<24-1 {
			return fmt.Errorf("segments or bursts of %d bytes", n)
		}
	}
	if p.MaxConnections < 1 || p.MaxOutstandingR2T < 1 {
		return errors.New("no connections, or no R2Ts")
	}
	return nil
}
