package iscsi

import (
	"maps"
	"slices"

	"oneshot/internal/serial"
	"oneshot/scsi"
)

// Session is one I_T nexus and its command window (RFC 7143 §4.2.2.1), which its connections
// share, as they do the lock that guards it.
type Session struct {
	SessionState
	Target *Target // nil in a discovery session

	circle *circle     // has the connections
	nexus  *scsi.Nexus // nil in a discovery session

	heldData   int // bytes of data in Held
	active     int // commands begun and not answered that hold a place in the window
	immediates int // immediate commands not answered
	managing   int // task management functions that wait, without
	aborting   int // those that abort one command each

	ending bool // end was called
	over   bool // and has done its work

	heirs []*Conn // their logins go on when nothing of the session is left; guarded by Node.mu
}

// admission is what becomes of a PDU with a CmdSN.
type admission uint8

const (
	admitRun    admission = iota // now
	admitHold                    // when the CmdSNs before it have come
	admitIgnore                  // never: outside the window, or seen before
)

// admit places a CmdSN in the order of the session. An immediate PDU carries a CmdSN but
// takes no place (RFC 7143 §4.2.2.1).
func (s *Session) admit(sn serial.SN, immediate bool) admission {
	if immediate {
		return admitRun
	}
	if !sn.InWindow(s.ExpCmdSN, s.MaxCmdSN) {
		return admitIgnore
	}
	if sn == s.ExpCmdSN {
		s.ExpCmdSN++
		return admitRun
	}
	if _, ok := s.Held[sn]; ok {
		return admitIgnore
	}
	return admitHold
}

// hold keeps r until every earlier CmdSN has been admitted. False: the session holds as much data as it may.
func (s *Session) hold(sn serial.SN, r Request) bool {
	if s.heldData+len(r.Data) > maxHeldData {
		return false
	}
	if s.Held == nil {
		s.Held = make(map[serial.SN]Request)
	}
	s.Held[sn] = r
	s.heldData += len(r.Data)
	return true
}

// runHeld runs what waited for the CmdSN that was admitted last.
func (s *Session) runHeld() {
	for len(s.Held) > 0 {
		r, ok := s.Held[s.ExpCmdSN]
		if !ok {
			return
		}
		sn := s.ExpCmdSN
		delete(s.Held, sn)
		s.heldData -= len(r.Data)
		s.ExpCmdSN++
		s.run(sn, &r)
	}
}

// run does a request whose turn has come, on its connection, unless that is ending.
func (s *Session) run(sn serial.SN, r *Request) {
	switch r.Kind {
	case RequestNone:
	case RequestCommand:
		for _, c := range s.circle.conns {
			switch t := c.heldTask(sn); {
			case t == nil:
			case c.state == stateFullFeature:
				c.begin(t)
			default:
				c.discard(t)
			}
		}
	case RequestOther:
		if c := s.loggedIn(r.CID); c != nil {
			c.request(r.Header, r.Data)
		}
	}
}

// loggedIn returns the connection with this CID that is logged in, or nil.
func (s *Session) loggedIn(cid uint16) *Conn {
	for _, c := range s.circle.conns {
		if c.CID == cid && c.state == stateFullFeature {
			return c
		}
	}
	return nil
}

// dropHeld forgets what c has sent and waits for earlier PDUs; withdraw ends its tasks. The places of commands that
// were aborted stay taken: their initiator has been told so, and sends nothing more for them.
func (s *Session) dropHeld(c *Conn) {
	if c.MaxIn == 0 {
		return // it has not logged in, and another connection may have its CID
	}
	maps.DeleteFunc(s.Held, func(_ serial.SN, r Request) bool {
		gone := r.CID == c.CID && r.Kind != RequestNone
		if gone {
			s.heldData -= len(r.Data)
		}
		return gone
	})
}

// alive reports whether the session has a connection that is not lost.
func (s *Session) alive() bool {
	return slices.ContainsFunc(s.circle.conns, func(c *Conn) bool { return c.state < stateCleanup })
}

// end aborts the tasks of the session and ends its nexus, once. When the last task has come
// back from its store, over is set.
func (s *Session) end() {
	if s.ending {
		return
	}
	s.ending = true
	for _, c := range s.circle.conns {
		c.withdraw()
	}
	clear(s.Held)
	s.heldData = 0
	if s.nexus == nil {
		s.over = true
		return
	}
	s.nexus.Close(func() { s.circle.Post(func() { s.over = true }) })
}

// conn returns the connection with this CID of which something is left, or nil.
func (s *Session) conn(cid uint16) *Conn {
	for _, c := range s.circle.conns {
		if c.CID == cid && c.state != stateFree {
			return c
		}
	}
	return nil
}

// cut ends the connections of the session at once, and so the session.
func (s *Session) cut(why string) {
	s.circle.Post(func() {
		for _, c := range s.circle.conns {
			c.log.Info("session ends", "reason", why)
			c.terminate(AtOnce)
		}
	})
}

// advertise returns the MaxCmdSN to send: the window from ExpCmdSN less the commands that
// are still to be answered.
func (s *Session) advertise() serial.SN {
	sn := s.ExpCmdSN + serial.SN(s.Window-s.active) - 1
	if s.MaxCmdSN.Less(sn) {
		s.MaxCmdSN = sn
	}
	return s.MaxCmdSN
}

// port is the SCSI initiator port (RFC 7143 §3.2.6).
func (s *Session) port() scsi.Initiator { return scsi.ISCSIPort(s.Initiator, s.ISID) }
