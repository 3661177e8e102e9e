package nvmf

import (
	"oneshot/nvme"
	"oneshot/volume"
)

// fabrics begins a command of NVMe over Fabrics (Base 2.0 §6).
func (t *Task) fabrics() volume.Next {
	q := t.Queue
	ft := t.SQE.FCType()
	switch {
	case ft == nvme.Connect:
		return t.connect()
	case q.ctrl == nil:
		return t.refuse(nvme.CommandSequence)
	case ft == nvme.AuthSend:
		return t.authSend()
	case ft == nvme.AuthReceive:
		return t.authReceive()
	case q.state == queueUnproven:
		return t.refuse(nvme.AuthenticationRequired)
	case ft == nvme.Disconnect:
		return t.disconnect()
	case q.id != 0:
		return t.refuse(nvme.InvalidOpcode)
	case ft == nvme.PropertyGet:
		return t.propertyGet()
	case ft == nvme.PropertySet:
		return t.propertySet()
	}
	return t.refuse(nvme.InvalidOpcode)
}

// invalidParameter refuses Connect for a parameter at an offset in the data, or in the entry.
func (t *Task) invalidParameter(inData bool, off int) volume.Next {
	t.CQE.DW0 = nvme.InvalidParameter(inData, off)
	return t.refuse(nvme.ConnectInvalid)
}

// busy refuses Connect for now. The host may come again: there may be room then. With DNR set, Linux would give its controller up for good.
func (t *Task) busy() volume.Next { return t.end(nvme.ConnectBusy) }

// connect makes a controller, or adds a queue to one (Base 2.0 §6.3).
func (t *Task) connect() volume.Next {
	c := nvme.ConnectCommand{SQE: t.SQE}
	size, largest := c.SQSize(), t.Queue.node.cfg.Depth-1
	if c.QID() == 0 {
		largest = adminDepth - 1
	}
	switch {
	case c.RecordFormat() != 0:
		return t.refuse(nvme.ConnectFormat)
	case t.Len != nvme.ConnectDataLen:
		return t.refuse(nvme.DataSGLLength)
	case t.Queue.ctrl != nil:
		return t.refuse(nvme.CommandSequence)
	case size == 0 || int(size) > largest:
		return t.invalidParameter(false, nvme.OffConnectSQSize)
	}
	if said := t.Queue.said; said != nil {
		switch {
		case c.QID() != said.QID:
			return t.invalidParameter(false, nvme.OffConnectQID)
		case int(size) >= said.Entries:
			return t.invalidParameter(false, nvme.OffConnectSQSize)
		}
	}
	return t.pullOwn(make([]byte, nvme.ConnectDataLen), (*Task).connectData)
}

// connectData has the data of Connect.
func (t *Task) connectData() volume.Next {
	q, c, d := t.Queue, nvme.ConnectCommand{SQE: t.SQE}, nvme.ConnectData(t.data[0])
	subNQN, ok := d.SubNQN()
	if !ok {
		return t.invalidParameter(true, nvme.OffSubNQN)
	}
	host, ok := d.HostNQN()
	if !ok || nvme.CheckNQN(host) != nil {
		return t.invalidParameter(true, nvme.OffHostNQN)
	}
	sub := q.node.subsystem(subNQN)
	switch {
	case q.ctrl != nil: // another Connect was faster
		return t.refuse(nvme.CommandSequence)
	case sub == nil:
		return t.invalidParameter(true, nvme.OffSubNQN)
	case host == subNQN: // what either proves would be what the other does
		return t.refuse(nvme.ConnectInvalidHost)
	case !sub.admits(host):
		q.log.Info("connection refused: the subsystem does not admit the host (hosts)", "host", host, "subsystem", subNQN)
		return t.refuse(nvme.ConnectInvalidHost)
	case d.HostID() == [16]byte{}:
		return t.invalidParameter(true, nvme.OffHostID)
	}
	q.proof.wanted = sub.rulesFor(host) != nil
	if c.QID() == 0 {
		return t.connectAdmin(sub, host, d)
	}
	return t.connectIO(sub, host, d)
}

// connectAdmin makes a controller.
func (t *Task) connectAdmin(sub *Subsystem, host string, d nvme.ConnectData) volume.Next {
	q, e := t.Queue, nvme.ConnectCommand{SQE: t.SQE}
	if d.CNTLID() != nvme.DynamicController {
		return t.invalidParameter(true, nvme.OffCNTLID)
	}
	for _, s := range append(q.node.formerly(sub.nqn), sub) { // another one of the name may be there since a reload, with the same stores
		if s.awaitFormer(t, host, d.HostID()) {
			return volume.Wait
		}
	}
	c := newController(q, sub, host, d.HostID(), e.KATO())
	// A host that has yet to prove itself takes no place from others: its connection alone is counted.
	if !q.proof.wanted && !c.count() {
		q.log.Warn("connection refused: the limit is reached (limits.sessions), or the target is stopping", "host", host)
		return t.busy()
	}
	c.unproven = q.proof.wanted // nobody has c yet
	if !q.joins(c, 0) {
		return t.busy()
	}
	if sub.isDiscovery() { // after joins: whoever tells of a change from now on finds the controller
		c.show(c.discovered())
	}
	q.node.counters.Connects.Add(1)
	q.log.Info("host connected", "host", host, "subsystem", sub.nqn, "controller", c.id)
	return t.connected(c, 0)
}

// connectIO adds a queue to a controller.
func (t *Task) connectIO(sub *Subsystem, host string, d nvme.ConnectData) volume.Next {
	q, qid := t.Queue, nvme.ConnectCommand{SQE: t.SQE}.QID()
	c := sub.controller(d.CNTLID())
	switch {
	case c != nil && c.hasEnded():
		return t.busy()
	case sub.isDiscovery(), c == nil, c.group != q.group, // what it may do depends on the group
		c.admin.mover.Transport() != q.mover.Transport(), // and what Identify says, on the transport
		q.said != nil && q.said.CNTLID != 0 && q.said.CNTLID != c.id:
		return t.noController(nvme.OffCNTLID)
	case c.hostNQN != host:
		return t.noController(nvme.OffHostNQN)
	case c.hostID != d.HostID():
		return t.noController(nvme.OffHostID)
	case !c.ready.Load(): // it may be soon
		t.CQE.DW0 = nvme.InvalidParameter(false, nvme.OffConnectQID)
		return t.end(nvme.ConnectInvalid)
	case int(qid) > c.granted():
		return t.invalidParameter(false, nvme.OffConnectQID)
	case !q.joins(c, qid):
		// The host may have lost the queue that has the number, which has yet to be noticed here, or has commands in stores still: it
		// may come again, which DNR would forbid.
		return t.end(nvme.CommandSequence)
	}
	return t.connected(c, qid)
}

// noController refuses Connect of an I/O queue for a parameter of its data: its controller is not there. It may have ended, and the host not
// have heard of that, or have been another process's, and its number be somebody else's by now. The host makes another one, which DNR would
// forbid.
func (t *Task) noController(off int) volume.Next {
	t.CQE.DW0 = nvme.InvalidParameter(true, off)
	return t.end(nvme.ConnectInvalid)
}

// joins makes q a queue of c. False: there is one of that number, or the controller is going.
func (q *Queue) joins(c *Controller, qid uint16) bool {
	sub := c.sub
	if qid == 0 && !sub.add(c) {
		c.uncount()
		return false
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if !c.attach(q, qid) {
		return false
	}
	q.ctrl, q.id = c, qid
	if qid == 0 {
		c.setAttached(sub.namespaces)
	}
	if qid == 0 || !q.proof.wanted {
		q.setPaths(*c.attached.Load())
	}
	return true
}

// connected ends Connect.
func (t *Task) connected(c *Controller, qid uint16) volume.Next {
	q, e := t.Queue, nvme.ConnectCommand{SQE: t.SQE}
	t.CQE.DW0 = uint32(c.id)
	switch {
	case q.proof.wanted:
		t.CQE.DW0 |= nvme.ConnectATR
		q.to(queueUnproven)
		q.born = q.node.clock.Load()
	case !c.sub.isDiscovery() && !q.place.TryProve():
		return t.busy() // it has been told to give way
	default:
		q.to(queueConnected)
	}
	if q.depth, q.noFlow = int(e.SQSize())+1, e.NoFlowControl(); q.noFlow {
		t.CQE.SQHD = noSQHD
	}
	q.log = q.node.log.With("host_address", q.mover.Peer(), "controller", c.id, "queue", qid)
	capsule := q.mover.Transport().AdminCapsule
	if qid != 0 {
		capsule = q.node.Capsule(q.mover.Transport())
	}
	q.params = Params{QID: qid, CapsuleData: capsule, Collapse: q.noFlow, Proved: q.state == queueConnected && !c.sub.isDiscovery()}
	q.mover.Connected(q.params)
	return t.end(nvme.Success)
}

// disconnect ends an I/O queue (Base 2.0 §6.4). Its commands are aborted, and Disconnect is answered when none is under way any more.
func (t *Task) disconnect() volume.Next {
	const offRecordFormat = 40
	q := t.Queue
	switch {
	case t.SQE.DWord(10)&0xffff != 0:
		t.CQE.DW0 = nvme.InvalidParameter(false, offRecordFormat)
		return t.refuse(nvme.ConnectFormat)
	case q.id == 0:
		return t.refuse(nvme.InvalidQueueType)
	}
	for _, o := range q.tasks {
		o.abortWith(nvme.AbortedByQueue)
	}
	q.disconnects, t.late = t, true
	return volume.Wait
}

// disconnectIfIdle answers Disconnect, and ends the connection, if no other command is under way.
func (q *Queue) disconnectIfIdle() {
	if q.state >= queueLost || q.over || q.isBusy() {
		return
	}
	q.over = true
	q.step(q.disconnects, q.disconnects.end(nvme.Success))
	q.mover.Terminate(WhenSent)
}

// wide reports whether a property command is about 8 bytes.
func (t *Task) wide() bool { return t.SQE[40]&7 == 1 }

// propertyGet is Base 2.0 §6.5.
func (t *Task) propertyGet() volume.Next {
	p := nvme.Property(t.SQE.DWord(11))
	v, ok := t.Queue.ctrl.property(p, t.wide())
	if !ok || t.SQE[40]&7 > 1 {
		return t.refuse(nvme.InvalidField)
	}
	t.CQE.DW0, t.CQE.DW1 = uint32(v), uint32(v>>32)
	return t.end(nvme.Success)
}

// propertySet is Base 2.0 §6.6.
func (t *Task) propertySet() volume.Next {
	p := nvme.Property(t.SQE.DWord(11))
	switch {
	case t.SQE[40]&7 > 1: // no size that there is
	case p == nvme.PropCC && !t.wide():
		t.Queue.ctrl.setCC(t.SQE.DWord(12))
		return t.end(nvme.Success)
	case p == nvme.PropCAP || p == nvme.PropVS || p == nvme.PropCSTS:
		return t.refuse(nvme.ConnectInvalid) // the code of an invalid parameter of fabrics commands
	}
	return t.refuse(nvme.InvalidField)
}
