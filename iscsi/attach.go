package iscsi

import (
	"time"

	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
)

// receiveLogin takes a PDU of the login phase (RFC 7143 §6.3).
func (c *Conn) receiveLogin(h pdu.Header, data []byte) {
	req, err := pdu.ParseLoginRequest(h)
	if err != nil {
		c.fail("%v where a Login Request was due", h.Opcode())
		return
	}
	out := c.login.Step(req, data)
	switch out.State {
	case login.Continue:
		c.sendLogin(&out)
	case login.Failed:
		c.refuseLogin(&out)
	case login.Established:
		c.establish(&out)
	}
}

// sendLogin sends a Login Response with the session's numbers in it.
func (c *Conn) sendLogin(out *login.Outcome) {
	r := out.Response
	r.Sequence = c.Status()
	if c.sess == nil {
		// RFC 7143 §11.13.5: the numbers count from the CmdSN of the first request.
		r.ExpCmdSN, r.MaxCmdSN = c.login.CmdSN(), c.login.CmdSN()
	}
	c.send(&r, out.Data)
}

func (c *Conn) refuseLogin(out *login.Outcome) {
	c.node.counters.LoginFailures.Add(1)
	c.log.Warn("login refused", "reason", errorText(out), "initiator", c.login.Initiator(), "target", c.login.TargetName())
	c.sendLogin(out)
	c.state = stateInLogout
	c.mover.Terminate(true)
}

// establish makes the session of a login that has succeeded, once no other session of the
// same initiator port with the same target is left (RFC 7143 §6.3.5).
func (c *Conn) establish(out *login.Outcome) {
	l := c.login
	s := &Session{
		Initiator: l.Initiator(), ISID: l.ISID(), Discovery: l.Discovery(), Params: l.Params(),
		conn: c, cid: l.CID(), group: c.group, window: c.node.cfg.Commands, expCmdSN: l.CmdSN(), maxCmdSN: l.CmdSN() - 1,
	}
	if !s.Discovery {
		s.Target = c.node.target(l.TargetName())
	}
	if !s.Discovery && s.Target == nil {
		c.refuse(out, pdu.LoginTargetRemoved)
		return
	}
	if l.TSIH() != 0 {
		c.refuse(out, c.joinStatus(s))
		return
	}
	old, status := c.node.attach(s)
	switch {
	case status != pdu.LoginSuccess:
		c.refuse(out, status)
	case old != nil:
		c.reinstate(old, out)
	default:
		c.logIn(s, out)
	}
}

// joinStatus says why a login for an existing session fails (RFC 7143 §6.3.1). Sessions have
// one connection, so a second is one too many; and with the first, which the same CID takes
// the place of, the session is over: error recovery level 0 keeps nothing of it.
func (c *Conn) joinStatus(s *Session) pdu.LoginStatus {
	old := c.node.session(c.login.TSIH())
	switch {
	case old == nil || old.Initiator != s.Initiator || old.ISID != s.ISID || !old.Target.same(s.Target):
		return pdu.LoginSessionDoesNotExist
	case old.cid != c.login.CID():
		return pdu.LoginTooManyConnections
	}
	old.conn.post(func() {
		old.conn.log.Info("session ends: its initiator comes back with a new connection")
		old.conn.mover.Terminate(false)
	})
	return pdu.LoginSessionDoesNotExist
}

// refuse turns a success into a failure.
func (c *Conn) refuse(out *login.Outcome, status pdu.LoginStatus) {
	out.Response.Transit, out.Response.Status, out.Data = false, status, nil
	out.Response.DataSegmentLength = 0
	c.refuseLogin(out)
}

// reinstate ends the old session and then goes on with the login. What the old one has in
// stores is over before the new one begins.
func (c *Conn) reinstate(old *Session, out *login.Outcome) {
	c.state = stateReinstate
	kept := *out
	kept.Data = append([]byte(nil), out.Data...)
	old.conn.post(func() {
		old.conn.log.Info("session ends: its initiator logs in again")
		old.conn.mover.Terminate(false)
	})
	old.whenGone(c.node, func() {
		c.post(func() {
			if c.state == stateReinstate {
				c.state = stateLogin
				c.establish(&kept)
			}
		})
	})
}

// logIn begins the full feature phase.
func (c *Conn) logIn(s *Session, out *login.Outcome) {
	c.sess = s
	s.since = time.Now()
	c.log = c.log.With("initiator", s.Initiator, "session", s.TSIH)
	if !s.Discovery {
		var luns map[uint16]uint16
		if r := s.Target.rule(s.Initiator); r != nil {
			luns = r.LUNs
		}
		s.nexus = s.Target.SCSI.NewNexusThrough(c.group, s.portName(), luns)
		s.nexus.BatchOps()
		c.log = c.log.With("target", s.Target.Name)
	}
	c.text = login.NewExchange(c.offer, s.Params, s.Discovery, c.sendTargets)
	c.text.Private = c.private
	out.Response.TSIH = s.TSIH
	c.sendLogin(out)
	c.mover.Enable(s.Params)
	c.state = stateFullFeature
	c.node.counters.Logins.Add(1)
	if s.Discovery {
		c.log.Debug("discovery session")
	} else {
		c.log.Info("logged in", "header_digest", s.Params.HeaderDigest, "data_digest", s.Params.DataDigest)
	}
	c.login = nil
}

// errorText says why a login failed.
func errorText(out *login.Outcome) string {
	if out.Err != nil {
		return out.Err.Error()
	}
	return out.Response.Status.String()
}
