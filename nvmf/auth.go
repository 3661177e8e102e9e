package nvmf

import (
	"runtime"
	"slices"

	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/volume"
)

// proof is what a queue has of the authentication of its host (Base 2.0 §8.13). It is guarded by the lock of the queue.
//
//	Connect ── no rules ──────────────────────► connected
//	   └────── rules ──► unproven ── Success ──► connected ─┐ again, while commands run
//	                        └── failure, or time ──► lost ◄─┘
type proof struct {
	now    *auth.Controller // under way; nil: none
	since  uint32           // Node.clock when it began
	busy   bool             // a worker has it, or will
	lost   chan struct{}    // closed when the queue is lost; nil: nobody has asked for a worker
	wanted bool             // at Connect
	done   Authentication   // what the last one has proved
}

// Authentication is what has been proved on a queue.
type Authentication uint8

// What has been proved.
const (
	NotAuthenticated    Authentication = iota
	HostAuthenticated                  // by the host
	MutualAuthenticated                // by both sides
)

// String names it.
func (a Authentication) String() string { return [...]string{"none", "host", "mutual"}[a] }

// authWorkers is how many authentications of a node may be computed at a time: they leave some of the processors to commands, whoever
// connects as often as he can.
func authWorkers() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// authSend takes a message of the host (Base 2.0 §6.2).
func (t *Task) authSend() volume.Next {
	c := nvme.AuthCommand{SQE: t.SQE}
	switch {
	case !c.Known(), c.Length() == 0, c.Length() > auth.MaxMessage:
		return t.refuse(nvme.InvalidField)
	case c.Length() != t.Len:
		return t.refuse(nvme.DataSGLLength)
	case slices.ContainsFunc(t.Queue.tasks, (*Task).isAuthSend): // one message at a time, each of which has memory that nobody counts
		return t.refuse(nvme.CommandSequence)
	}
	return t.pullOwn(make([]byte, t.Len), (*Task).authSent)
}

func (t *Task) isAuthSend() bool {
	return t.SQE.Opcode() == nvme.Fabrics && t.SQE.FCType() == nvme.AuthSend
}

// authSent has a message of the host. A worker answers it, for it may take a while.
func (t *Task) authSent() volume.Next {
	q := t.Queue
	if q.proof.busy {
		return t.refuse(nvme.CommandSequence)
	}
	if q.proof.now == nil {
		rules := q.ctrl.sub.rulesFor(q.ctrl.hostNQN)
		if rules == nil {
			return t.refuse(nvme.CommandSequence) // nobody has asked for it
		}
		q.proof.now = auth.NewController(auth.Names{Host: q.ctrl.hostNQN, Subsystem: q.ctrl.sub.nqn}, *rules)
		q.proof.since = q.node.clock.Load()
	}
	if q.proof.lost == nil {
		q.proof.lost = make(chan struct{})
	}
	a, message, lost := q.proof.now, t.data[0], q.proof.lost
	q.proof.busy, t.elsewhere = true, true
	go func() { // the queue is not gone before the task has come back
		select {
		case q.node.authWork <- struct{}{}:
			a.Send(message)
			<-q.node.authWork
		case <-lost: // it keeps no place for that
		}
		q.post(func() {
			q.proof.busy, t.elsewhere = false, false
			q.step(t, t.end(nvme.Success))
			q.authAdvanced()
		})
	}()
	return volume.Wait
}

// authReceive gives the host the controller's message (Base 2.0 §6.1), with zeroes behind it.
func (t *Task) authReceive() volume.Next {
	c, p := nvme.AuthCommand{SQE: t.SQE}, &t.Queue.proof
	switch {
	case !c.Known(), c.Length() > auth.MaxMessage:
		return t.refuse(nvme.InvalidField)
	case c.Length() != t.Len || t.InCapsule:
		return t.refuse(nvme.DataSGLLength)
	case p.busy || p.now == nil || p.now.Pending() == 0:
		return t.refuse(nvme.CommandSequence)
	case p.now.Pending() > int(t.Len):
		return t.refuse(nvme.InvalidField)
	}
	b := make([]byte, t.Len)
	copy(b, p.now.Receive())
	t.Queue.post(t.Queue.authAdvanced) // when this has been answered
	return t.replyWith(b)
}

// authAdvanced looks whether the authentication is over.
func (q *Queue) authAdvanced() {
	a := q.proof.now
	if a == nil || q.proof.busy || !a.Over() || q.state >= queueLost {
		return
	}
	q.proof.now = nil
	log := q.log.With("host", q.ctrl.hostNQN, "subsystem", q.ctrl.sub.nqn)
	if why, byHost := a.Failure(); why != 0 {
		q.node.counters.AuthFailures.Add(1)
		q.over = true
		if byHost {
			log.Warn("authentication failed: the host refuses the controller", "reason", why.String())
		} else {
			log.Warn("authentication failed: the host has not proved who it is", "reason", why.String())
		}
		q.mover.Terminate(WhenSent)
		return
	}
	if q.state == queueUnproven && !q.admitProven() {
		return
	}
	if q.proof.done = HostAuthenticated; a.Mutual() {
		q.proof.done = MutualAuthenticated
	}
	if q.id == 0 {
		log.Info("host authenticated", "by", a.Description(), "mutual", a.Mutual())
	}
}

// admitProven has a queue whose host has proved itself take commands. False: there is no room; the connection ends.
func (q *Queue) admitProven() bool {
	switch {
	case !q.place.TryProve(): // it has been told to give way
		return false
	case q.id == 0 && !q.ctrl.count():
		q.fail(WhenSent, "the limit is reached (limits.sessions), or the target is stopping")
		return false
	case q.id != 0 && !q.ctrl.grantClaim(q):
		q.fail(WhenSent, "the controller has a queue %d that has proved itself before, or ends", q.id)
		return false
	case q.id == 0:
		q.ctrl.proven()
	}
	q.to(queueConnected)
	q.params.Proved = true
	q.mover.Connected(q.params)
	return true
}
