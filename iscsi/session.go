package iscsi

import (
	"slices"
	"time"

	"oneshot/internal/serial"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/scsi"
)

// Session is one I_T nexus and its command window (RFC 7143 §4.2.2.1), which its connections
// share, as they do the lock that guards it.
type Session struct {
	TSIH      uint16
	Initiator string // iSCSI name
	ISID      pdu.ISID
	Discovery bool
	Target    *Target // nil in a discovery session

	baton  *baton        // has the connections
	params *login.Params // of the leading connection
	group  uint16        // tag of the portal group that it came through
	rdma   bool
	nexus  *scsi.Nexus // nil in a discovery session

	window     int       // commands that may be outstanding
	active     int       // commands begun and not answered that hold a place in the window
	expCmdSN   serial.SN // the next CmdSN to begin
	maxCmdSN   serial.SN // the last advertised; never moves back
	held       map[serial.SN]held
	immediates int // immediate commands not answered

	since  time.Time // of the login
	ending bool      // end was called
	over   bool      // and has done its work

	ended []func() // called when nothing of the session is left; guarded by Node.mu
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
	if !sn.InWindow(s.expCmdSN, s.maxCmdSN) {
		return admitIgnore
	}
	if sn == s.expCmdSN {
		s.expCmdSN++
		return admitRun
	}
	if _, ok := s.held[sn]; ok {
		return admitIgnore
	}
	return admitHold
}

// held is a PDU that waits for earlier ones.
type held struct {
	conn *Conn
	run  func()
	task *Task // of a SCSI command
}

// hold keeps h until every earlier CmdSN has been admitted.
func (s *Session) hold(sn serial.SN, h held) {
	if s.held == nil {
		s.held = make(map[serial.SN]held)
	}
	s.held[sn] = h
}

// runHeld runs what waited for the CmdSN that was admitted last.
func (s *Session) runHeld() {
	for len(s.held) > 0 {
		h, ok := s.held[s.expCmdSN]
		if !ok {
			return
		}
		delete(s.held, s.expCmdSN)
		s.expCmdSN++
		h.run()
	}
}

// dropHeld throws away what c has sent and waits for earlier PDUs.
func (s *Session) dropHeld(c *Conn) {
	for sn, h := range s.held {
		if h.conn != c {
			continue
		}
		delete(s.held, sn)
		if h.task != nil {
			c.discard(h.task)
		}
	}
}

// alive reports whether the session has a connection that is not lost.
func (s *Session) alive() bool {
	return slices.ContainsFunc(s.baton.conns, func(c *Conn) bool { return c.state < stateCleanup })
}

// end aborts the tasks of the session and ends its nexus, once. When the last task has come
// back from its store, over is set.
func (s *Session) end() {
	if s.ending {
		return
	}
	s.ending = true
	for _, c := range s.baton.conns {
		c.withdraw()
	}
	if s.nexus == nil {
		s.over = true
		return
	}
	s.nexus.Close(func() { s.baton.post(func() { s.over = true }) })
}

// conn returns the connection with this CID of which something is left, or nil.
func (s *Session) conn(cid uint16) *Conn {
	for _, c := range s.baton.conns {
		if c.cid == cid && c.state != stateFree {
			return c
		}
	}
	return nil
}

// cut ends the connections of the session at once, and so the session.
func (s *Session) cut(why string) {
	s.baton.post(func() {
		for _, c := range s.baton.conns {
			c.log.Info("session ends: " + why)
			c.mover.Terminate(AtOnce)
		}
	})
}

// advertise returns the MaxCmdSN to send: the window from ExpCmdSN less the commands that
// are still to be answered.
func (s *Session) advertise() serial.SN {
	sn := s.expCmdSN + serial.SN(s.window-s.active) - 1
	if s.maxCmdSN.Less(sn) {
		s.maxCmdSN = sn
	}
	return s.maxCmdSN
}

// port is the SCSI initiator port (RFC 7143 §3.2.6).
func (s *Session) port() scsi.Initiator { return scsi.ISCSIPort(s.Initiator, s.ISID) }

// whenGone calls f when nothing of the session is left; at once if that is so already.
func (s *Session) whenGone(n *Node, f func()) {
	n.mu.Lock()
	if n.sessions[s.TSIH] == s {
		s.ended = append(s.ended, f)
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	f()
}
