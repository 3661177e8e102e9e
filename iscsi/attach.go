package iscsi

import (
	"slices"
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
	if out.Response.Status.Class() == login.Redirection {
		c.node.counters.Redirects.Add(1)
		c.log.Info("login redirected: the target has moved", "initiator", c.login.Initiator(), "target", c.login.TargetName())
	} else {
		c.node.counters.LoginFailures.Add(1)
		c.log.Warn("login refused", "reason", errorText(out), "initiator", c.login.Initiator(), "target", c.login.TargetName())
	}
	c.sendLogin(out)
	c.enter(eventRefused)
	c.terminate(WhenSent)
}

// establish makes the session of a login that has succeeded, once no other session of the
// same initiator port with the same target is left (RFC 7143 §6.3.5).
func (c *Conn) establish(out *login.Outcome) {
	l := c.login
	s := &Session{circle: c.circle.Load(), SessionState: SessionState{
		Format: stateFormat, Initiator: l.Initiator(), ISID: l.ISID(), Discovery: l.Discovery(), Params: *l.Params(), RDMA: c.rdma,
		Group: c.group, Window: c.node.cfg.Commands, ExpCmdSN: l.CmdSN(), MaxCmdSN: l.CmdSN() - 1,
	}}
	if !s.Discovery {
		s.TargetName = l.TargetName()
		s.Target = c.node.target(s.TargetName)
	}
	// The configuration may have changed since the login began.
	switch {
	case s.Discovery:
	case s.Target == nil:
		c.refuse(out, pdu.LoginTargetRemoved)
		return
	case s.Target.Changing:
		c.refuse(out, pdu.LoginServiceUnavailable)
		return
	case !s.Target.admits(s.Initiator):
		c.refuse(out, pdu.LoginAuthorizationFailure)
		return
	}
	if l.TSIH() != 0 {
		c.joinSession(s, out)
		return
	}
	if !s.Discovery {
		c.node.leaveDeserted(s)
	}
	old, status := c.node.attach(s)
	switch {
	case status != pdu.LoginSuccess:
		c.refuse(out, status)
	case old != nil:
		c.reinstate(old, out)
	default:
		s.open(c.node.most)
		if p := c.moves; p != nil && p.Returns != nil && s.nexus != nil && p.Returns(c.mover.Local(), s.Initiator, s.ISID) {
			s.nexus.Return()
		}
		c.logIn(s, l.Params(), out)
	}
}

// joinSession makes c one more connection of an existing session, which own would be if it were
// a new one (RFC 7143 §6.3.1). A connection with the same CID is logged out first (§6.3.4).
func (c *Conn) joinSession(own *Session, out *login.Outcome) {
	s := c.node.session(c.login.TSIH())
	if s == nil || s.Initiator != own.Initiator || s.ISID != own.ISID || s.Discovery || !s.Target.same(own.Target) {
		c.refuse(out, pdu.LoginSessionDoesNotExist)
		return
	}
	s.circle.Lock()
	old := s.conn(c.login.CID())
	if status := s.room(c, old); status != pdu.LoginSuccess {
		s.circle.Unlock()
		c.refuse(out, status)
		return
	}
	c.join(s.circle)
	c.sess, c.CID = s, c.login.CID()
	if old == nil {
		c.logInJoining(out)
		return
	}
	c.enter(eventHeldUp)
	c.keep(out)
	old.log.Info("connection ends: its initiator comes back with a new one")
	old.terminate(AtOnce)
}

// logInJoining begins the full feature phase of a further connection of a session.
func (c *Conn) logInJoining(out *login.Outcome) {
	params := c.login.Params().Joining(&c.sess.Params)
	c.logIn(c.sess, &params, out)
}

// keep keeps what the login has come to until what it waits for has ended.
func (c *Conn) keep(out *login.Outcome) {
	kept := out.Keep()
	c.kept = &kept
}

// succeed resumes the login of the connection that waits for the end of c because it has the same CID.
// There is one at most.
func (c *Conn) succeed() {
	for _, o := range c.sess.circle.conns {
		if o.state != stateReinstate || o.CID != c.CID || o.sess != c.sess {
			continue
		}
		if c.sess.ending || c.sess.loggedIn(c.CID) != nil {
			o.terminate(AtOnce)
			continue
		}
		out := o.kept
		o.kept = nil
		o.logInJoining(out)
	}
}

// room reports whether c may join the session, perhaps in the place of old.
func (s *Session) room(c, old *Conn) pdu.LoginStatus {
	n := 0
	for _, o := range s.circle.conns {
		if o != old && o.state < stateCleanup {
			n++
		}
	}
	switch {
	case s.ending || !s.alive():
		return pdu.LoginSessionDoesNotExist
	case s.Group != c.group || s.RDMA != c.rdma:
		return pdu.LoginCannotIncludeInSession
	case n >= int(s.Params.MaxConnections):
		return pdu.LoginTooManyConnections
	}
	return pdu.LoginSuccess
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
	c.enter(eventHeldUp)
	c.keep(out)
	old.cut("its initiator logs in again")
	if !c.node.inherit(old, c) {
		c.post(c.goOn)
	}
}

// goOn goes on with a login that waited for the end of an old session.
func (c *Conn) goOn() {
	if c.state != stateReinstate {
		return
	}
	c.enter(eventGoesOn)
	out := c.kept
	c.kept = nil
	c.establish(out)
}

// leaveDeserted ends the sessions of s's initiator with its target whose connections the initiator has
// closed. So an initiator that closes a connection and then logs in finds the reservations of the
// first session gone, however late the goroutine of that one runs.
func (n *Node) leaveDeserted(s *Session) {
	n.mu.Lock()
	var others []*Session
	for _, o := range n.sessions {
		if !o.Discovery && o.Initiator == s.Initiator && o.Target.same(s.Target) {
			others = append(others, o)
		}
	}
	n.mu.Unlock()
	for _, o := range others {
		o.leaveDeserted()
	}
}

// leaveDeserted ends the session if its initiator has closed all of its connections.
func (s *Session) leaveDeserted() {
	s.circle.Lock()
	defer s.circle.Unlock()
	if s.ending || slices.ContainsFunc(s.circle.conns, func(c *Conn) bool { return c.state < stateCleanup && !c.mover.HungUp() }) {
		return
	}
	for _, c := range s.circle.conns {
		if c.state < stateCleanup {
			c.log.Info("session ends", "reason", "its initiator has closed the connection, and logs in again")
			c.terminate(AtOnce)
		}
	}
	s.end()
}

// open makes the nexus of a session. No command of it has more than most bytes of memory at once.
func (s *Session) open(most int) {
	s.Since = time.Now()
	if s.Discovery {
		return
	}
	var luns map[uint16]uint16
	if r := s.Target.rule(s.Initiator); r != nil {
		luns = r.LUNs
	}
	s.nexus = s.Target.SCSI.NewNexusThrough(s.Group, s.port(), luns)
	s.nexus.BatchOps()
	s.nexus.BoundMemory(most)
}

// logIn begins the full feature phase.
func (c *Conn) logIn(s *Session, params *login.Params, out *login.Outcome) {
	c.sess, c.Params, c.CID = s, *params, c.login.CID()
	params = &c.Params
	c.log = c.log.With("initiator", s.Initiator, "session", s.TSIH)
	if !s.Discovery {
		c.log = c.log.With("target", s.Target.Name)
	}
	c.text = login.NewExchange(c.offer, params, s.Discovery, c.sendTargets)
	c.text.Private = c.private
	out.Response.TSIH = s.TSIH
	c.sendLogin(out)
	c.MaxIn = c.login.MaxRecvDataSegmentLength()
	c.mover.Enable(params, c.MaxIn)
	c.enter(eventLoggedIn)
	c.login = nil
	c.node.counters.Logins.Add(1)
	if s.Discovery {
		c.node.discovers(c)
		c.log.Debug("discovery session")
		return
	}
	c.place.Prove()
	if p := c.moves; p != nil && p.Arrived != nil {
		p.Arrived()
	}
	c.log.Info("logged in", "connection", c.CID, "header_digest", params.HeaderDigest, "data_digest", params.DataDigest)
}

// errorText says why a login failed.
func errorText(out *login.Outcome) string {
	if out.Err != nil {
		return out.Err.Error()
	}
	return out.Response.Status.String()
}
