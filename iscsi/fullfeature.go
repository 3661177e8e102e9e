package iscsi

import (
	"fmt"
	"slices"
	"sync/atomic"

	"oneshot/internal/invariant"
	"oneshot/iscsi/pdu"
	"oneshot/scsi"
)

// maxImmediates bounds the immediate commands in progress: one task management request and
// one other have to be taken (RFC 7143 §4.2.2.1); some room costs little.
const maxImmediates = 8

// maxManaging bounds the task management functions of a session, and its logouts, that wait for what stores have of the tasks, or for
// other connections: each is remembered by all tasks that it ends. An initiator sends the next when it has the answer. Some abort each of
// their commands by itself: so there may be as many ABORT TASK as commands besides.
const maxManaging = 8

// maxLive bounds the tasks of a connection over RDMA, as a multiple of the commands that may be outstanding: an answer makes room
// in the window when it is made, and an initiator that takes none could send commands without end. One that takes them may have
// them, and send the next commands, before the mover knows that they have left. Over TCP the mover stops reading.
const maxLive = 4

// Command takes a SCSI Command PDU, and t for it, which is not in use. h is the caller's again when
// Command returns, and so is t if the result is false: the command is refused or ignored. Otherwise
// t is the session's until FreeTask. It may be answered already, or even be free (Outstanding); the
// mover then throws the PDU's data away.
func (c *Conn) Command(t *Task, h pdu.SCSICommand) (taken bool) {
	if c.state != stateFullFeature || c.sess.Discovery {
		c.outOfPlace(h.Header, Ending{Command: t})
		return false
	}
	s, sn := c.sess, h.CmdSN()
	if h.Immediate() && s.immediates >= maxImmediates {
		c.rejectEnding(h.Header, pdu.RejectImmediateCommand, Ending{Command: t})
		return false
	}
	if c.rdma && c.live >= maxLive*(s.Window+maxImmediates) {
		c.fail("%d commands are outstanding, or have answers that the initiator does not take", c.live)
		return false
	}
	verdict := s.admit(sn, h.Immediate())
	if verdict == admitIgnore {
		c.node.counters.IgnoredCommands.Add(1)
		return false
	}
	c.setUp(t, h)
	if verdict == admitHold {
		c.list(t) // its data may come before its turn
		s.hold(sn, Request{CID: c.CID, Kind: RequestCommand, Header: slices.Clone(h.Header)})
		return true
	}
	c.begin(t)
	if len(s.Held) > 0 {
		s.runHeld()
	}
	return true
}

// setUp makes t the task of the command h.
func (c *Conn) setUp(t *Task, h pdu.SCSICommand) {
	invariant.Check(t.Conn == c && t.state == taskPooled, "a command comes with a task of its connection that is not in use")
	c.live++
	t.slot = -1
	t.to(taskHeld)
	t.refused, t.arrived, t.aborted = false, c.times.Arrived(), abortedByNone
	t.ITT, t.cmdSN = h.ITT(), h.CmdSN()
	t.Immediate, t.Final, t.Read, t.Write = h.Immediate(), h.Final(), h.Read(), h.Write()
	t.EDTL = h.EDTL()
	t.Owner, t.Nexus, t.LUN = t, c.sess.nexus, h.LUN()
	*(*[pdu.CDBLen]byte)(t.cdb[:]) = [pdu.CDBLen]byte(h.CDB())
	t.CDB = t.cdb[:pdu.CDBLen]
	if h.TotalAHSLen() > 0 {
		t.CDB = append(t.CDB, h.ExtendedCDB()...)
	}
	t.Attr = attributes[h.Attr()&7]
	t.DataOutLen, t.DataInLen = 0, 0
	if t.Write {
		t.DataOutLen = t.EDTL
	}
	if t.Read {
		t.DataInLen = t.EDTL
		if t.Write {
			t.DataInLen, _ = h.BidiReadEDTL()
		}
	}
	t.NoLend = c.rdma || c.Params.DataDigest
}

// attributes maps the ATTR field (RFC 7143 §11.3.1); reserved values are ACA's, which is
// refused with a field pointer no initiator of theirs will mistake.
var attributes = [8]scsi.Attr{
	pdu.AttrUntagged: scsi.Simple, pdu.AttrSimple: scsi.Simple, pdu.AttrOrdered: scsi.Ordered,
	pdu.AttrHeadOfQueue: scsi.HeadOfQueue, pdu.AttrACA: scsi.ACA, 5: scsi.ACA, 6: scsi.ACA, 7: scsi.ACA,
}

// Receive takes any PDU but SCSI Command and SCSI Data-Out. h and data are the caller's
// again when Receive returns.
func (c *Conn) Receive(h pdu.Header, data []byte) {
	if c.state == stateLogin {
		c.receiveLogin(h, data)
		return
	}
	if c.state != stateFullFeature {
		c.outOfPlace(h, Ending{})
		return
	}
	switch h.Opcode() {
	case pdu.OpNOPOut, pdu.OpTaskManagementRequest, pdu.OpTextRequest, pdu.OpLogoutRequest:
		c.inOrder(h, data)
	case pdu.OpSNACK:
		// RFC 7143 §11.16: a target of ERL 0 keeps nothing that could be sent again.
		c.reject(h, pdu.RejectSNACK)
	case pdu.OpLoginRequest:
		// RFC 7143 §6.3: no login requests once logged in.
		c.reject(h, pdu.RejectProtocolError)
	default:
		c.reject(h, pdu.RejectCommandNotSupported)
	}
}

// outOfPlace answers a PDU that the state does not allow.
func (c *Conn) outOfPlace(h pdu.Header, end Ending) {
	switch c.state {
	case stateInLogout:
		if h.Opcode() == pdu.OpNOPOut && h.ITT() == pdu.ReservedTag {
			return // the answer to a ping, which has crossed the logout
		}
		c.rejectEnding(h, pdu.RejectWaitingForLogout, end)
	case stateFullFeature:
		c.rejectEnding(h, pdu.RejectProtocolError, end) // a SCSI command in a discovery session
	default:
		c.fail("PDU %v before the login was complete", h.Opcode())
	}
}

// inOrder handles a request when its CmdSN's turn has come.
func (c *Conn) inOrder(h pdu.Header, data []byte) {
	s, sn := c.sess, h.CmdSN()
	switch s.admit(sn, h.Immediate()) {
	case admitRun:
		c.request(h, data)
		if len(s.Held) > 0 {
			s.runHeld()
		}
	case admitHold:
		if !s.hold(sn, Request{CID: c.CID, Kind: RequestOther, Header: slices.Clone(h), Data: slices.Clone(data)}) {
			c.fail("%v: more than %d bytes of pings and texts wait for CmdSN %d, which does not come", h.Opcode(), maxHeldData, s.ExpCmdSN)
		}
	case admitIgnore:
		c.node.counters.IgnoredCommands.Add(1)
	}
}

func (c *Conn) request(h pdu.Header, data []byte) {
	if c.state != stateFullFeature {
		return
	}
	switch h.Opcode() {
	case pdu.OpNOPOut:
		c.nopOut(pdu.NOPOut{Header: h}, data)
	case pdu.OpTaskManagementRequest:
		c.manage(pdu.TaskManagementRequest{Header: h})
	case pdu.OpTextRequest:
		c.textRequest(pdu.TextRequest{Header: h}, data)
	case pdu.OpLogoutRequest:
		c.logout(pdu.LogoutRequest{Header: h})
	}
}

// nopOut answers a ping, or notes the answer to ours (RFC 7143 §11.18).
func (c *Conn) nopOut(h pdu.NOPOut, data []byte) {
	if h.ITT() == pdu.ReservedTag {
		if c.PingTTT != 0 && h.TTT() == c.PingTTT {
			c.PingTTT = 0
			c.acknowledged()
		}
		return
	}
	data = data[:min(len(data), int(c.Params.LongestOut()))]
	c.send(&pdu.NOPInFields{
		LUN: h.LUN(), ITT: h.ITT(), TTT: pdu.ReservedTag, Sequence: c.Status(),
		DataSegmentLength: len(data),
	}, data)
}

// ping asks the initiator for a sign of life (RFC 7143 §11.19). It takes no StatSN.
func (c *Conn) ping() {
	c.PingTTT = c.newTTT()
	c.pinged = c.node.clock.Load()
	c.acked, c.unacked = c.unacked, nil
	c.send(&pdu.NOPInFields{ITT: pdu.ReservedTag, TTT: c.PingTTT, Sequence: c.Sequence()}, nil)
}

// afterAck tells m when the initiator has received all that was sent to it here, or never will.
func (c *Conn) afterAck(m *managing) {
	c.unacked = append(c.unacked, m)
	if c.PingTTT == 0 {
		c.ping()
	}
}

// acknowledged goes on with what has waited for the answer to a ping.
func (c *Conn) acknowledged() {
	waiting := c.acked
	c.acked = nil
	for _, m := range waiting {
		m.oneAcked()
	}
	if len(c.unacked) > 0 && c.PingTTT == 0 {
		c.ping()
	}
}

// newTTT returns a Target Transfer Tag for a ping; never 0 nor the reserved value.
func (c *Conn) newTTT() uint32 {
	c.NextTTT = c.NextTTT%0x7ffffffe + 1
	return c.NextTTT
}

// logout ends the session, or one connection of it and with the last one the session (RFC 7143
// §11.14, §11.15). Commands still outstanding there get no answer.
func (c *Conn) logout(h pdu.LogoutRequest) {
	response := pdu.LogoutSuccess
	leaving := c.sess.circle.conns
	switch h.Reason() {
	case pdu.LogoutCloseSession:
	case pdu.LogoutCloseConnection:
		o := c.sess.conn(h.CID())
		if o == nil {
			response = pdu.LogoutCIDNotFound
			break
		}
		leaving = []*Conn{o}
	case pdu.LogoutRemoveForRecovery:
		response = pdu.LogoutRecoveryNotSupported
	default:
		c.reject(h.Header, pdu.RejectInvalidPDUField)
		return
	}
	if len(c.sess.circle.logouts) >= maxManaging {
		c.reject(h.Header, pdu.RejectImmediateCommand)
		return
	}
	l := &logout{conn: c, itt: h.ITT(), leaving: leaving}
	if response != pdu.LogoutSuccess {
		l.answer(response)
		return
	}
	for _, o := range leaving {
		o.exit()
	}
	// Over RDMA it is the initiator that disconnects, when it likes.
	if !slices.ContainsFunc(c.sess.circle.conns, func(o *Conn) bool { return o.state < stateInLogout }) {
		c.sess.end()
	}
	c.sess.circle.logouts = append(c.sess.circle.logouts, l)
	c.sess.circle.endLogouts()
}

// exit ends what a connection does whose initiator logs out of it.
func (c *Conn) exit() {
	if c.state >= stateInLogout {
		return
	}
	c.enter(eventLeaves)
	c.withdraw()
	c.log.Debug("logged out")
}

// logout is a request whose answer waits until the commands of the connections that leave are over, in stores as well (RFC 7143
// §11.15): what the initiator writes after the answer must not be overtaken by what it wrote before.
type logout struct {
	conn    *Conn // that it came on
	itt     uint32
	leaving []*Conn
}

func (l *logout) answer(r pdu.LogoutStatus) {
	c := l.conn
	c.send(&pdu.LogoutResponseFields{
		Response: r, ITT: l.itt, Sequence: c.Status(), Time2Wait: uint16(c.Params.DefaultTime2Wait),
	}, nil)
}

// end answers the request and ends the connections, if nothing of them is left to wait for.
func (l *logout) end() (over bool) {
	for _, o := range l.leaving {
		if len(o.tasks)+len(o.forgetting) > 0 {
			return false
		}
	}
	if l.conn.state < stateCleanup {
		l.answer(pdu.LogoutSuccess)
	}
	for _, o := range l.leaving {
		if o.state < stateCleanup {
			o.terminate(WhenLoggedOut)
		}
	}
	return true
}

// endLogouts ends the logouts that need not wait any more.
func (r *circle) endLogouts() {
	if len(r.logouts) > 0 {
		r.logouts = slices.DeleteFunc(r.logouts, (*logout).end)
	}
}

// askLogout asks the initiator to leave within seconds (RFC 7143 §11.9.1, event 1).
func (c *Conn) askLogout(seconds uint16) {
	if c.state != stateFullFeature || c.Asked {
		return
	}
	c.Asked = true
	c.send(&pdu.AsyncFields{
		Event: pdu.AsyncLogoutRequest, Sequence: c.Status(), Parameter3: seconds,
	}, nil)
}

// manage carries out a task management function (RFC 7143 §11.5).
func (c *Conn) manage(h pdu.TaskManagementRequest) {
	itt := h.ITT()
	if c.sess.Discovery {
		c.reject(h.Header, pdu.RejectProtocolError)
		return
	}
	fn := h.Function()
	answer := func(r pdu.TaskResponse) { c.managed(itt, fn, r) }
	s := c.sess
	f, ok := functions[fn]
	count, most := &s.managing, maxManaging
	if fn == pdu.TaskAbortTask {
		count, most = &s.aborting, s.Window
	}
	switch {
	case *count >= most && h.Immediate():
		c.reject(h.Header, pdu.RejectImmediateCommand)
		return
	case *count >= most:
		answer(pdu.TaskFunctionRejected)
		return
	case fn == pdu.TaskReassign:
		answer(pdu.TaskReassignNotSupported) // ERL 2's
		return
	case !ok || fn >= pdu.TaskQueryTask && c.Params.ISCSIProtocolLevel < 2:
		answer(pdu.TaskFunctionNotSupported)
		return
	}
	var t *scsi.Task
	if fn == pdu.TaskAbortTask || fn == pdu.TaskQueryTask {
		ref := s.find(h.ReferencedTaskTag())
		if ref == nil {
			answer(c.missing(fn, h))
			return
		}
		c.concerns(fn, itt, h.LUN(), ref)
		if ref.state == taskHeld {
			if fn == pdu.TaskAbortTask { // a query finds that it is not in the task set yet
				s.skip(ref)
			}
			answer(pdu.TaskFunctionComplete)
			return
		}
		t = &ref.Task
	} else {
		c.concerns(fn, itt, h.LUN(), nil)
		if aborts(fn) {
			s.skipSet(fn, h)
		}
	}
	c.log.Info("task management", "function", fn.String(), "lun", fmt.Sprintf("%#016x", h.LUN()))
	*count++
	m := &managing{conn: c, itt: itt, fn: fn, left: 1, count: count}
	var second atomic.Bool // of the two: the end of the function, and that of the call that begins it
	s.nexus.Manage(f, h.LUN(), t, func(r scsi.TMFResponse) {
		m.response = responses[r]
		if second.Swap(true) {
			c.post(func() { s.afterOthersAck(m) })
		}
	})
	switch {
	case !second.Swap(true):
	case s.aborting > 0 && fn != pdu.TaskAbortTask && aborts(fn):
		// The response to an ABORT TASK whose task is over may be due. It comes first, for it gives back what is the initiator's after this one.
		c.post(func() { s.afterOthersAck(m) })
	default: // a batch of input may have any number that wait for nothing
		s.afterOthersAck(m)
	}
}

// managing is a task management function whose tasks are over, and whose answer waits until the
// initiator has received what was sent to it on other connections than conn, so that no answer to a
// task comes behind that to its abort (RFC 7143 §4.2.3.3).
type managing struct {
	conn     *Conn
	itt      uint32
	fn       pdu.TaskFunction
	response pdu.TaskResponse
	left     int  // connections, and one for who counts them
	count    *int // of those like it in the session
}

func (s *Session) afterOthersAck(m *managing) {
	for _, o := range s.circle.conns {
		if o != m.conn && o.state == stateFullFeature {
			m.left++
			o.afterAck(m)
		}
	}
	m.oneAcked()
}

func (m *managing) oneAcked() {
	if m.left--; m.left == 0 {
		*m.count--
		m.conn.managed(m.itt, m.fn, m.response)
	}
}

// skip aborts a task that waits for earlier commands: it leaves its place to nothing.
func (s *Session) skip(t *Task) {
	s.Held[t.cmdSN] = Request{CID: t.Conn.CID}
	t.Conn.discard(t)
}

// skipSet is skip for the tasks of a function that aborts sets of them: those that were numbered before it, which has not waited
// for them, as it is immediate. In the task set they would be looked for in vain, and would run after its answer.
func (s *Session) skipSet(fn pdu.TaskFunction, h pdu.TaskManagementRequest) {
	for _, c := range s.circle.conns {
		for i := len(c.tasks) - 1; i >= 0; i-- {
			if t := c.tasks[i]; t.state == taskHeld && t.cmdSN.Less(h.CmdSN()) && (everywhere(fn) || t.LUN == h.LUN()) {
				s.skip(t)
			}
		}
	}
}

// missing is the answer about a task that is not here. If its command has not arrived
// though it was numbered before the request, its place is taken, so that it never runs
// (RFC 7143 §11.5.1).
func (c *Conn) missing(fn pdu.TaskFunction, h pdu.TaskManagementRequest) pdu.TaskResponse {
	if fn != pdu.TaskAbortTask {
		return pdu.TaskFunctionComplete // a query (SAM-5 §7.8): it is not in the task set
	}
	s, ref := c.sess, h.RefCmdSN()
	if !ref.InWindow(s.ExpCmdSN, s.MaxCmdSN) || !ref.Less(h.CmdSN()) {
		return pdu.TaskDoesNotExist
	}
	if s.admit(ref, false) == admitHold {
		s.hold(ref, Request{CID: c.CID})
	}
	return pdu.TaskFunctionComplete
}

func (c *Conn) managed(itt uint32, fn pdu.TaskFunction, r pdu.TaskResponse) {
	if c.state != stateFullFeature {
		return
	}
	var end Ending
	if fn == pdu.TaskAbortTask {
		end = Ending{Abort: true, ITT: itt}
	}
	c.sendEnding(&pdu.TaskManagementResponseFields{Response: r, ITT: itt, Sequence: c.Status()}, nil, end)
	if fn == pdu.TaskTargetColdReset && r == pdu.TaskFunctionComplete {
		// RFC 7143 §11.5.1: a cold reset ends all connections of the target.
		c.node.dropTarget(c.sess.Target, "target cold reset")
	}
}

var functions = map[pdu.TaskFunction]scsi.TMF{
	pdu.TaskAbortTask: scsi.AbortTask, pdu.TaskAbortTaskSet: scsi.AbortTaskSet, pdu.TaskClearACA: scsi.ClearACA,
	pdu.TaskClearTaskSet: scsi.ClearTaskSet, pdu.TaskLogicalUnitReset: scsi.LUNReset,
	pdu.TaskTargetWarmReset: scsi.TargetWarmReset, pdu.TaskTargetColdReset: scsi.TargetColdReset,
	pdu.TaskQueryTask: scsi.QueryTask, pdu.TaskQueryTaskSet: scsi.QueryTaskSet,
	pdu.TaskITNexusReset: scsi.ITNexusReset, pdu.TaskQueryAsyncEvent: scsi.QueryAsyncEvent,
}

var responses = map[scsi.TMFResponse]pdu.TaskResponse{
	scsi.FunctionComplete: pdu.TaskFunctionComplete, scsi.TaskDoesNotExist: pdu.TaskDoesNotExist,
	scsi.LUNDoesNotExist: pdu.TaskLUNDoesNotExist, scsi.NotSupported: pdu.TaskFunctionNotSupported,
	scsi.Rejected: pdu.TaskFunctionRejected, scsi.FunctionSucceeded: pdu.TaskFunctionSucceeded,
}

// patience is how many times NOPTimeout an initiator that is not silent may take to answer a ping.
const patience = 4

// discoveryTime is how long a discovery session may last; seconds. Initiators end theirs as soon as
// they have the list.
const discoveryTime = 120

// tick looks at the clock: a login that takes too long, and a peer that has fallen silent,
// end the connection. It is called about once a second, with the lock held.
func (c *Conn) tick(now uint32) {
	for _, t := range c.tasks {
		if t.ticks < scsi.OverdueTicks {
			t.ticks++
		} else {
			t.Overdue()
		}
	}
	if len(c.hungry) > 0 { // a command that would bring memory back may hang in its store
		c.feed()
	}
	limits := c.node.limits.Load()
	owing, silent := c.owing()
	switch {
	case c.state == stateLogin || c.state == stateReinstate:
		if now-c.born > limits.LoginTimeout {
			c.fail("no login within %d s", limits.LoginTimeout)
		}
	case c.state == stateInLogout && c.fetching > 0 && now-c.fetched > limits.ReadTimeout:
		c.terminate(AtOnce) // its logout waits for these Reads
	case c.state != stateFullFeature:
	case c.fetching > 0 && now-c.fetched > limits.ReadTimeout:
		c.fail("the initiator has not answered an RDMA Read for %d s", now-c.fetched)
	case silent > limits.ReadTimeout:
		c.fail("the initiator has sent no data for %s, which it was asked for (R2T), in %d s (limits.read_timeout), though it is alive otherwise; its own log should say why", owing.About(), silent)
	case c.sess.Discovery && now-c.born > discoveryTime && !c.dropped:
		c.dropped = true
		c.log.Info("discovery session ended: it has lasted too long", "seconds", now-c.born)
		c.terminate(WhenSent)
	case c.hogs(now):
		c.fail("the initiator has taken no answers for %d s, which hold %d bytes of memory that others wait for (limits.memory)", now-c.moved, c.unsent)
	case c.PingTTT != 0:
		silent := now-c.heard > limits.NOPTimeout
		switch {
		case now-c.pinged <= limits.NOPTimeout:
		case silent:
			c.fail("no sign of life from the initiator for %d s", now-c.heard)
		case now-c.pinged > patience*limits.NOPTimeout: // long enough for any data that the answer is behind
			c.fail("the initiator sends, but has not answered a ping for %d s", now-c.pinged)
		}
	case limits.NOPInterval != 0 && now-c.heard >= limits.NOPInterval:
		c.ping()
	}
}
