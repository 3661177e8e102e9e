package nvmf

import (
	"encoding/binary"
	"errors"

	"oneshot/backend"
	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// ioCommand is a command of the NVM command set (NVM 1.0 §3).
type ioCommand struct {
	run     func(*Task) volume.Next
	reads   bool // it looks at the medium
	writes  bool // it changes it, or is kept away by those that reserve it for writing
	changes bool // it changes it
}

// ioCommands has a row for each.
var ioCommands = [256]*ioCommand{
	nvme.Flush:       {run: (*Task).flush, writes: true},
	nvme.Write:       {run: (*Task).write, writes: true, changes: true},
	nvme.Read:        {run: (*Task).read, reads: true},
	nvme.Compare:     {run: (*Task).compare, reads: true},
	nvme.WriteZeroes: {run: (*Task).writeZeroes, writes: true, changes: true},
	nvme.DSM:         {run: (*Task).dsm, writes: true},
	nvme.Verify:      {run: (*Task).verify, reads: true},
	nvme.Copy:        {run: (*Task).copy, reads: true, writes: true, changes: true},

	nvme.ReservationRegister: {run: (*Task).reservationRegister},
	nvme.ReservationReport:   {run: (*Task).reservationReport},
	nvme.ReservationAcquire:  {run: (*Task).reservationAcquire},
	nvme.ReservationRelease:  {run: (*Task).reservationRelease},
}

// io begins a command of an I/O queue.
func (t *Task) io() volume.Next {
	c := ioCommands[t.SQE.Opcode()]
	if c == nil {
		return t.refuse(nvme.InvalidOpcode)
	}
	q := t.Queue
	p := q.path(t.SQE.NSID())
	switch {
	case p != nil:
	case q.ctrl.sub.removed.Load(), q.ctrl.barred.Load(): // and the queue ends: the host keeps the command, and may find the subsystem again
		return t.end(nvme.AbortedByQueue)
	default:
		return t.refuse(nvme.InvalidNamespace)
	}
	if fuse := t.SQE.Fuse(); fuse > nvme.FusedFirst || fuse == nvme.FusedFirst && t.SQE.Opcode() != nvme.Compare {
		return t.refuse(nvme.InvalidField)
	}
	// The count comes before the look at what is denied: who denies looks at the count afterwards.
	t.path, t.turn = p, p.commands.Enter()
	n := p.ns
	t.r.Begin(t, n.v, int(n.blockSize()), q.node.most, true, t.NoLend) // notes the term, before it is looked at what is denied in that
	if denied := access.Denial(p.at.denied.Load()); denied != 0 {
		if s := refusal(denied, c.reads, c.writes || t.SQE.Fuse() == nvme.FusedFirst); s != nvme.Success {
			return t.end(s)
		}
	}
	if c.changes && n.readOnly {
		return t.refuse(nvme.WriteProtected)
	}
	return c.run(t)
}

// Bits of dword 12 of the commands that name blocks.
const (
	bitFUA  = 1 << 30
	bitDEAC = 1 << 25
	prInfo  = 0xf << 26 // protection information, which there is none of
)

// setRange checks the blocks of the command, and sets off and n. most is the limit in bytes. False: it has
// ended the command.
func (t *Task) setRange(most int64) bool {
	n := t.path.ns
	lba, count, blocks := t.SQE.QWord(10), uint64(t.SQE.DWord(12)&0xffff)+1, n.blocks.Load()
	t.off, t.n = int64(lba)<<n.blockShift, int64(count)<<n.blockShift
	switch {
	case t.SQE.DWord(12)&prInfo != 0:
		t.refuse(nvme.InvalidField)
	case t.n > most:
		t.refuse(nvme.InvalidField)
	case lba >= blocks || count > blocks-lba:
		t.refuse(nvme.LBAOutOfRange)
	default:
		return true
	}
	return false
}

// anyLength is for commands that move no data.
const anyLength = 1 << 62

// setTransfer is setRange for a command whose data are the blocks; out: they come from the host.
func (t *Task) setTransfer(out bool) bool {
	if !t.setRange(int64(t.Queue.node.most)) {
		return false
	}
	switch {
	case t.InCapsule && !out:
		t.refuse(nvme.SGLType)
	case int64(t.Len) != t.n:
		t.refuse(nvme.DataSGLLength)
	default:
		return true
	}
	return false
}

func (t *Task) read() volume.Next {
	if !t.setTransfer(false) {
		return volume.Done
	}
	return t.r.Read(t.off, t.n, t.n, t.SQE.DWord(12)&bitFUA != 0, readDone)
}

func readDone(r *volume.Request) volume.Next {
	t := r.Client().(*Task)
	if r.Err == nil {
		t.In = r.In
	}
	return t.moved()
}

func (t *Task) write() volume.Next {
	if !t.setTransfer(true) {
		return volume.Done
	}
	return t.r.Write(t.off, t.n, t.SQE.DWord(12)&bitFUA != 0, transferred)
}

// transferred is the end of a request.
func transferred(r *volume.Request) volume.Next { return r.Client().(*Task).moved() }

// moved ends a command as its request has ended, after a flush if the command asks for one that the request does not do.
func (t *Task) moved() volume.Next {
	switch r := &t.r; {
	case r.Err != nil:
		return t.storeFailed()
	case r.Mismatch >= 0:
		return t.refuse(nvme.CompareFailure)
	case t.fua:
		t.fua = false
		return r.Flush(transferred)
	}
	return t.end(nvme.Success)
}

// storeFailed ends the command with the status for the error of its request, and remembers that.
func (t *Task) storeFailed() volume.Next {
	n, c := t.path.ns, t.Queue.ctrl
	s := n.statusOf(t.r.Err)
	if moved(t.r.Err) || t.r.Err == volume.ErrOvertaken {
		return t.end(s)
	}
	s |= nvme.More
	at, _ := t.r.Failed()
	if m, ok := errors.AsType[*backend.MediumError](t.r.Err); ok {
		at = m.Off
	}
	n.log.Error("a command of a host has failed in the store", "host", c.hostNQN, "opcode", t.SQE.Opcode(), "namespace", t.path.nsid, "reason", t.r.Err)
	e := nvme.ErrorEntry{SQID: t.Queue.id, CID: t.CQE.CID, Status: s, LBA: uint64(at) >> n.blockShift, NSID: t.path.nsid, Transport: t.Queue.mover.Transport().Type}
	c.admin.post(func() { c.errors.add(e) })
	return t.end(s)
}

func (t *Task) flush() volume.Next { return t.r.Flush(transferred) }

func (t *Task) compare() volume.Next {
	if !t.setTransfer(true) {
		return volume.Done
	}
	if t.SQE.Fuse() == nvme.NotFused {
		return t.r.Verify(t.off, t.n, true, transferred)
	}
	if t.n > maxCompareBytes {
		return t.refuse(nvme.InvalidField)
	}
	t.fused = true
	t.Queue.first = t
	return t.r.CompareAndWrite(t.off, t.n, false, t.Queue.ctrl.hostNQN, transferred)
}

func (t *Task) verify() volume.Next {
	if !t.setRange(anyLength) {
		return volume.Done
	}
	return t.r.Verify(t.off, t.n, false, transferred)
}

// writeZeroes is NVM 1.0 §3.2.8. Blocks are deallocated if the host allows it, and they then read as zeroes.
func (t *Task) writeZeroes() volume.Next {
	if !t.setRange(anyLength) {
		return volume.Done
	}
	t.fua = t.SQE.DWord(12)&bitFUA != 0
	t.zero[0] = volume.Range{Off: t.off, N: t.n}
	return t.r.Erase(t.zero[:], t.SQE.DWord(12)&bitDEAC != 0 && t.path.ns.v.Thin(), transferred)
}

// dsmRange is the length of a range of Dataset Management, bytes.
const dsmRange = 16

// dsm is NVM 1.0 §3.2.3. All but deallocation is a hint, and hints change nothing here. Hosts may send more data than they announce ranges.
func (t *Task) dsm() volume.Next {
	const deallocate = 1 << 2
	ranges := int64(t.SQE.DWord(10)&0xff) + 1
	switch {
	case int64(t.Len) < ranges*dsmRange:
		return t.refuse(nvme.DataSGLLength)
	case int64(t.Len) > int64(t.Queue.node.most):
		return t.refuse(nvme.InvalidField)
	case t.SQE.DWord(11)&deallocate == 0:
		return t.end(nvme.Success)
	case t.path.ns.readOnly:
		return t.refuse(nvme.WriteProtected)
	}
	t.n = ranges * dsmRange
	return t.r.Take(int64(t.Len), t.before((*Task).deallocate))
}

// deallocate has the list of ranges. Nothing is deallocated if one of them is bad.
func (t *Task) deallocate() volume.Next {
	n := t.path.ns
	list := t.r.Data()[:t.n]
	blocks := n.blocks.Load()
	ranges := make([]volume.Range, 0, len(list)/dsmRange)
	for ; len(list) > 0; list = list[dsmRange:] {
		count, lba := uint64(binary.LittleEndian.Uint32(list[4:])), binary.LittleEndian.Uint64(list[8:])
		switch {
		case lba > blocks || count > blocks-lba:
			return t.refuse(nvme.LBAOutOfRange)
		case count > 0:
			ranges = append(ranges, volume.Range{Off: int64(lba) << n.blockShift, N: int64(count) << n.blockShift})
		}
	}
	if !n.v.Thin() || t.isOverdue() { // its host may have given the command up before the list came, and nobody knows what has been written there since: a hint can be left
		return t.end(nvme.Success)
	}
	return t.r.Erase(ranges, true, transferred)
}

// fusion begins a command, alone or as a part of a pair: the second follows the first in its queue (Base 2.0 §3.4.2).
func (q *Queue) fusion(t *Task) {
	first, failed := q.first, q.failed
	q.failed = 0
	fuse := t.SQE.Fuse()
	if fuse != nvme.FusedSecond || t.SQE.Opcode() == nvme.Fabrics || q.id == 0 {
		if first != nil {
			q.first = nil
			first.abortWith(nvme.FusedMissing | nvme.DNR)
		}
		q.step(t, t.start())
		if fuse == nvme.FusedFirst && q.first == nil {
			q.failed = t.secondFails()
		}
		return
	}
	switch {
	case failed != 0:
		q.step(t, t.end(failed))
	case first == nil:
		q.step(t, t.refuse(nvme.FusedMissing))
	case !first.matches(t):
		q.first = nil
		first.abortWith(nvme.FusedMissing | nvme.DNR)
		q.step(t, t.refuse(nvme.FusedMissing))
	case t.descriptor() != nvme.Success: // nothing is fetched by it
		q.first = nil
		first.abortWith(nvme.FusedFailed | nvme.DNR)
		q.step(t, t.refuse(t.descriptor()))
	case first.path.ns.readOnly:
		q.first = nil
		first.abortWith(nvme.FusedFailed | nvme.DNR)
		q.step(t, t.refuse(nvme.WriteProtected))
	default:
		q.first = nil
		first.second, t.pair = t, first
		first.fua = t.SQE.DWord(12)&bitFUA != 0
		q.listTask(t)
		switch {
		case first.state == taskPulling:
			q.pullSecond(first)
		case t.InCapsule: // its data are here, and memory for them is not
			first.repeatLater()
		}
	}
}

// matches reports whether w is the write of the pair whose compare is t.
func (t *Task) matches(w *Task) bool {
	return w.SQE.Opcode() == nvme.Write && w.SQE.NSID() == t.SQE.NSID() && w.SQE.QWord(10) == t.SQE.QWord(10) &&
		w.SQE.DWord(12)&0xffff == t.SQE.DWord(12)&0xffff && w.SQE.DWord(12)&prInfo == 0 && w.Len == t.Len && !t.aborted
}

// secondFails is the status of the second command of a pair whose first, t, has failed: the pair may be repeated if t may be.
func (t *Task) secondFails() nvme.Status { return nvme.FusedFailed | t.CQE.Status&nvme.DNR }

// pullSecond fetches the data of the second command of a pair behind those of the first.
func (q *Queue) pullSecond(first *Task) {
	t := first.second
	t.to(taskPulling)
	t.data[0] = first.r.Out[0][first.n:]
	t.Out, t.OutLen, t.PlaceUnit = t.data[:], int(first.n), 0
	q.owed.Ask(&t.owed)
	q.mover.GetData(t)
}
