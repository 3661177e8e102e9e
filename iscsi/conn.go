package iscsi

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"oneshot/internal/baton"
	"oneshot/internal/door"
	"oneshot/internal/invariant"
	"oneshot/internal/iostat"
	"oneshot/internal/owed"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
)

var _ mem.Waiter = (*Conn)(nil)

// Conn is the protocol state of one connection: a step function that is fed with PDUs and
// completions and answers through its Datamover. It owns no socket, goroutine or timer.
//
// Whoever holds the lock, which connections of one session share, drives the connection (see
// circle). The transport takes it for each batch of input.
type Conn struct {
	circle atomic.Pointer[circle]
	own    circle // the first; also the session's, if the connection is its leading one
	alone  [1]*Conn

	// Constant.
	node  *Node
	mover Datamover
	log   *slog.Logger
	offer *login.Config
	// rdma: the mover is one of RDMA, and never sends out of a store's memory, nor receives into it.
	rdma  bool
	group uint16  // of the portal that it came through
	moves *Portal // that it came through, if its address moves; else nil

	// Guarded by the baton of circle.
	ConnState
	state      connState
	login      *login.Login    // until the full feature phase
	text       *login.Exchange // from then on
	sess       *Session
	live       int     // tasks that the mover's pool does not have
	tasks      []*Task // outstanding: in a store, waiting, or fetching data-out
	forgetting []*Task // aborted, while the mover still fetches their data-out
	hungry     []*Task // of these, waiting for memory
	leased     int     // bytes of I/O memory that tasks hold, as the pool counts them
	working    int     // of these: what commands go on with, and so comes back
	unsent     int     // of leased: bytes of commands whose answers have not left
	moved      uint32  // Node.clock when the last of these left, or the first came
	born       uint32  // Node.clock when the connection came
	heard      uint32  // Node.clock at the last input
	pinged     uint32  // Node.clock when the outstanding NOP-In was sent
	// fetching is for how many tasks the mover waits until the initiator has served its RDMA Reads,
	// and fetched Node.clock when one of these last came on.
	fetching int
	fetched  uint32
	owed     owed.List // data-out that the initiator was asked for
	dropped  bool      // fail was called
	left     bool      // terminate was called: the end of the connection is the target's wish
	// What waits until the initiator has seen all that was sent: the answer to the ping under
	// way says so, or that to the next.
	acked, unacked []*managing
	kept           *login.Outcome // of a login that waits for the end of an old session or connection

	// A discovery session, and who has yet to log in, may have to give way to others.
	place door.Place

	times iostat.Clock

	ready      baton.Ready[Task]
	memoryFree atomic.Bool // a lease may succeed that failed before
}

// NewConn returns the state of a connection that mover has just established, over TCP.
func (n *Node) NewConn(mover Datamover) *Conn { return n.newConn(mover, &n.cfg.Login, false) }

// NewRDMAConn is NewConn for a mover over RDMA, with the offers that it makes in the login.
// Its tasks do not borrow memory of stores: that may change while it is on its way, and the
// checksums of RDMA would not match; and RDMA Reads place bytes at times of their own.
func (n *Node) NewRDMAConn(mover Datamover, offer *login.Config) *Conn {
	return n.newConn(mover, offer, true)
}

func (n *Node) newConn(mover Datamover, offer *login.Config, rdma bool) *Conn {
	c := &Conn{
		node: n, mover: mover, state: stateLogin, offer: offer, rdma: rdma,
		log:  n.log.With("initiator_address", mover.Peer()),
		born: n.clock.Load(), heard: n.clock.Load(),
	}
	c.group, c.moves = n.groupOf(mover.Local(), mover.Transport())
	c.alone[0] = c
	c.own.conns = c.alone[:]
	c.own.Drive(&c.own)
	c.circle.Store(&c.own)
	c.login = login.New(offer, directory{n, c.group}, n.cfg.Rand)
	n.guests.Add(c, &c.place, func() { c.post(c.giveWay) })
	return c
}

// resume goes on with the tasks that became ready elsewhere, or have waited for memory.
func (c *Conn) resume() {
	if c.memoryFree.Load() && c.memoryFree.Swap(false) {
		c.feed()
	}
	c.ready.Take()
	for t := c.ready.Next(); t != nil; t = c.ready.Next() {
		switch t.state {
		case taskWaiting, taskPulling:
			if next := t.Resume(); next != scsi.Wait { // else it goes on as before: the call was for a former life, perhaps
				c.step(t, next)
			}
		case taskGone:
			c.recycle(t)
		}
	}
}

// flush starts what the steps that were made have led to: operations of stores, and output.
// It may free tasks, and so memory that others wait for.
func (c *Conn) flush() {
	c.times.Drive()
	c.kick()
	c.mover.Flush()
	if c.state == stateCleanup {
		c.settleEnd()
	}
}

// kick starts the store operations of the steps that were made.
func (c *Conn) kick() {
	if c.sess != nil && c.sess.nexus != nil {
		c.sess.nexus.Kick()
	}
}

func (c *Conn) taskReady(t *Task) {
	c.queue(t)
	c.awaken(!c.ready.Corked())
}

// cork has tasks that become ready wait for Uncork, unless somebody drives the connection
// before.
func (c *Conn) cork() scsi.Uncorker {
	c.ready.Cork()
	return c
}

// Uncork implements scsi.Uncorker.
func (c *Conn) Uncork() {
	if c.ready.Uncork() {
		c.awaken(true)
	}
}

// queue puts t among the tasks that want Resume.
func (c *Conn) queue(t *Task) { c.ready.Put(t, &t.queued) }

// Sequence returns the numbers of a PDU that bears no status: the StatSN that the next one
// with status will have, ExpCmdSN and MaxCmdSN.
func (c *Conn) Sequence() pdu.Sequence {
	q := pdu.Sequence{StatSN: c.StatSN}
	if c.sess != nil {
		q.ExpCmdSN, q.MaxCmdSN = c.sess.ExpCmdSN, c.sess.advertise()
	}
	return q
}

// Status returns the numbers of a PDU that bears status, which takes a StatSN.
func (c *Conn) Status() pdu.Sequence {
	q := c.Sequence()
	c.StatSN++
	return q
}

// Heard notes that the initiator is alive. The transport calls it for each batch of input.
func (c *Conn) Heard() {
	c.heard = c.node.clock.Load()
	c.times.Arrive()
}

// DataCame says that some of the data-out of t has come, except by RDMA Reads, and perhaps all. GotData or DataFailed follows that, if it was asked for.
func (c *Conn) DataCame(t *Task) {
	if t.state == taskPulling {
		c.owed.Came(&t.owed)
	}
}

// owing returns the task whose initiator has sent nothing of its data-out for the most seconds, nor of what it was asked for before. It is called once a
// second. RDMA Reads are noticed by Fetching.
func (c *Conn) owing() (worst *Task, silent uint32) {
	return owed.Longest(&c.owed, c.tasks, func(t *Task) *owed.Item {
		if c.fetching > 0 || t.state != taskPulling {
			return nil
		}
		return &t.owed
	})
}

// Fetching tells for how many tasks the mover has RDMA Reads under way. It is called when that
// changes, and when Reads have been served. An initiator that answers pings but no Reads would keep
// memory for ever.
func (c *Conn) Fetching(n int) {
	if c.fetching == 0 || n <= c.fetching {
		c.fetched = c.node.clock.Load()
	}
	c.fetching = n
}

// fail ends the connection because of what its initiator did, or failed to do. ERL 0 has
// no other answer to an error that a Reject does not settle (RFC 7143 §7.1.5).
func (c *Conn) fail(format string, args ...any) {
	if c.state >= stateInLogout || c.dropped {
		return
	}
	c.dropped = true
	c.node.counters.ProtocolErrors.Add(1)
	c.log.Warn("connection dropped", "reason", fmt.Sprintf(format, args...), "state", c.state.String())
	c.terminate(WhenSent)
}

// Proved reports whether the initiator has logged in to a target. One that has not, and one in a discovery session, which may need no secret,
// have proved nothing.
func (c *Conn) Proved() bool { return c.sess != nil && !c.sess.Discovery }

// terminate ends the connection. Lost follows.
func (c *Conn) terminate(how Termination) {
	c.left = true
	c.mover.Terminate(how)
}

// Lost says that the transport connection is gone. Nothing is sent any more; its tasks are
// aborted, and with the last connection the session ends. When the last task has come back
// from its store the connection is gone too.
func (c *Conn) Lost(err error) {
	if c.state >= stateCleanup {
		return
	}
	switch {
	case c.state == stateInLogout || c.dropped:
	case err != nil:
		c.log.Info("connection lost", "reason", err.Error())
	case c.state == stateFullFeature && !c.left && !c.sess.Discovery:
		c.log.Info("connection lost", "reason", "the initiator has closed it, and has not logged out; its own log should say why")
	case c.state == stateLogin && c.StatSN > 0:
		c.log.Info("the initiator has ended the connection in the middle of its login; its own log should say why",
			"initiator", c.login.Initiator(), "responses", uint32(c.StatSN))
	}
	c.enter(eventLost)
	c.place.Prove()
	c.login = nil
	if c.sess != nil {
		c.withdraw()
		if !c.sess.alive() {
			c.sess.end()
		}
	}
	c.settleEnd()
}

// withdraw ends the part of the connection in its session: its tasks, the commands that wait for
// earlier ones, and what others wait for from its initiator. What it leaves open in the order
// of commands may come on another connection.
func (c *Conn) withdraw() {
	c.sess.dropHeld(c)
	for i := len(c.tasks) - 1; i >= 0; i-- {
		if t := c.tasks[i]; t.state == taskHeld { // it is in no task set, so Abort would not end it
			c.discard(t)
		} else {
			t.Abort()
		}
	}
	waiting := append(c.acked, c.unacked...)
	c.acked, c.unacked = nil, nil
	for _, m := range waiting {
		m.oneAcked()
	}
}

// settleEnd forgets a lost connection when all of its tasks have come back, and with the last
// of a session when all that the nexus has in stores has.
func (c *Conn) settleEnd() {
	s := c.sess
	if s != nil && !s.over && (s.ending || c.live > 0) {
		return
	}
	if invariant.Enabled {
		c.checkEnd()
	}
	c.enter(eventGone)
	if s != nil {
		c.succeed()
	}
	c.node.forget(c)
}

// Violation says that the transport ends the connection because of what the initiator sent.
func (c *Conn) Violation(err error) { c.fail("%v", err) }

// BadDigest answers a PDU whose data digest does not match (RFC 7143 §7.8).
func (c *Conn) BadDigest(h pdu.Header) {
	c.node.counters.DigestErrors.Add(1)
	c.reject(h, pdu.RejectDataDigestError)
}

// reject sends a Reject of the PDU whose header is h (RFC 7143 §11.17).
func (c *Conn) reject(h pdu.Header, reason pdu.RejectReason) { c.rejectEnding(h, reason, Ending{}) }

func (c *Conn) rejectEnding(h pdu.Header, reason pdu.RejectReason, end Ending) {
	c.node.counters.Rejects.Add(1)
	r := pdu.RejectFields{Reason: reason, DataSegmentLength: pdu.BHSLen, Sequence: c.Status()}
	c.sendEnding(&r, h[:pdu.BHSLen], end)
}

// appender is a PDU that encodes itself.
type appender interface{ AppendTo([]byte) []byte }

// send queues a PDU of the session's own. It is not for the hot path.
func (c *Conn) send(p appender, data []byte) { c.sendEnding(p, data, Ending{}) }

func (c *Conn) sendEnding(p appender, data []byte, end Ending) {
	c.mover.SendControl(p.AppendTo(make([]byte, 0, pdu.BHSLen)), data, end)
}
