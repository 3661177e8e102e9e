package nvmf

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/nvme"
)

// someone is a host of TestRandomCommands: what it sends makes sense often enough to get far.
type someone struct {
	*host
	r *rand.Rand
}

func (s someone) pick(list ...uint32) uint32 { return list[s.r.IntN(len(list))] }

// data are for a command about n bytes: one value, or keys of reservations, or sources of Copy. nil: they are to come later.
func (s someone) data(op nvme.Opcode, n int) []byte {
	if s.r.IntN(3) == 0 {
		return nil
	}
	b := fill(max(n, 64), byte(s.r.IntN(2)))
	switch {
	case s.q.id == 0:
	case op == nvme.ReservationRegister, op == nvme.ReservationAcquire, op == nvme.ReservationRelease:
		clear(b)
		b[0], b[8] = s.id, byte(s.pick(0, 1, 2, uint32(s.id), uint32(s.id)))
	case op == nvme.Copy:
		b = b[:0]
		for range 16 {
			b = nvme.AppendCopyRange(b, uint64(s.r.IntN(1900)), uint32(1+s.r.IntN(100)))
		}
	}
	return b
}

// adminCommand is one of the admin queue, about n bytes. victim is a queue, and a command of it.
func (s someone) adminCommand(victim uint32) (c nvme.Command, n int) {
	switch c.Opcode = nvme.Opcode(s.pick(2, 2, 6, 8, 8, 9, 0xa, 0xc, 0xc, 0x18, 0x7f, 0x7f, 0x55)); c.Opcode {
	case nvme.AdminGetLogPage:
		c.NSID, n = s.pick(0, nvme.AllNamespaces, 1), int(s.pick(512, 4096))
		c.DWords[0] = s.pick(0, 1, 2, 3, 4, 5, 0xc, 0x70, 0x80, 0x81) | s.pick(0, 0x8000) | uint32(n/4-1)<<16
	case nvme.AdminIdentify:
		c.NSID, c.DWords[0], n = s.pick(0, 1, 2, nvme.AllNamespaces), s.pick(0, 1, 2, 3, 5, 6, 7, 8, 0x12, 0x13, 0x1c), nvme.IdentifyLen
	case nvme.AdminAbort:
		c.DWords[0] = victim
	case nvme.AdminSetFeatures, nvme.AdminGetFeatures:
		c.NSID, n = s.pick(0, 1, nvme.AllNamespaces), int(s.pick(0, nvme.HostBehaviorLen))
		c.DWords = [6]uint32{s.pick(1, 2, 4, 5, 6, 7, 0xa, 0xb, 0xf, 0x16, 0x81, 0x82, 0x83), s.pick(0, 1, 2, 0x900)}
	case nvme.Fabrics:
		c.NSID, n = s.pick(0, 0, 1, 4, 5, 6, 8), int(s.pick(0, nvme.ConnectDataLen))
		c.DWords = [6]uint32{0, uint32(nvme.PropCC), s.pick(0x460001, 0x460001, 0x460001, 0x460000, 0x464001)}
	}
	return c, n
}

// ioCommand is one of an I/O queue.
func (s someone) ioCommand() (c nvme.Command, n int) {
	blocks := s.pick(1, 1, 8, 32, 256, 512)
	c.NSID, n = s.pick(1, 1, 1, 1, 1, 1, 0, 2, nvme.AllNamespaces), int(blocks*512)
	c.DWords = [6]uint32{s.pick(0, 8, 8, 100, 1500, 2047), s.pick(0, 0, 0, 0, 0, 0, 1), blocks - 1 | s.pick(0, 0, bitFUA, bitDEAC)}
	switch c.Opcode = nvme.Opcode(s.pick(0, 1, 1, 2, 2, 5, 5, 8, 9, 0xc, 0x19, 0xd, 0xe, 0x11, 0x15, 0x7f, 0x44)); c.Opcode {
	case nvme.Write:
		c.Fuse = nvme.Fuse(s.pick(0, 0, 0, 2, 3))
	case nvme.Compare:
		c.Fuse = nvme.Fuse(s.pick(0, 1))
	case nvme.Flush, nvme.WriteZeroes, nvme.Verify:
		n = 0
	case nvme.DSM:
		c.DWords, n = [6]uint32{s.pick(0, 3, 255), 4}, int(s.pick(16, 64, 4096))
	case nvme.Copy:
		c.DWords[2], n = s.pick(0, 1, 15), int(s.pick(32, 64, 512))
	case nvme.ReservationRegister:
		c.DWords, n = [6]uint32{s.pick(0, 0, 1, 2) | s.pick(0, 8)}, 16
	case nvme.ReservationAcquire:
		c.DWords, n = [6]uint32{s.pick(0, 1, 2) | s.pick(1, 2, 3, 4, 5, 6)<<8}, 16
	case nvme.ReservationRelease:
		c.DWords, n = [6]uint32{s.pick(0, 1) | s.pick(1, 2, 3, 4, 5, 6)<<8}, int(s.pick(8, 16))
	case nvme.ReservationReport:
		n = int(s.pick(64, 4096))
		c.DWords = [6]uint32{uint32(n/4 - 1), nvme.ExtendedReport}
	case nvme.Fabrics:
		c.NSID, n = s.pick(0, 1, 5, 6, 8), int(s.pick(0, nvme.ConnectDataLen))
	}
	return c, n
}

// send begins a command, or a pair. Data are in capsules, or fetched, now or later.
func (s someone) send(victim uint32) {
	c, n := s.adminCommand(victim)
	if s.q.id != 0 {
		c, n = s.ioCommand()
	}
	s.begin(c, n)
	if c.Fuse == nvme.FusedFirst && s.held == nil && s.r.IntN(8) > 0 {
		c.Opcode, c.Fuse = nvme.Write, nvme.FusedSecond
		s.begin(c, n)
	}
}

func (s someone) begin(c nvme.Command, n int) {
	b := s.data(c.Opcode, n)
	s.start(c, n, b, b != nil && n > 0 && n <= s.over.Capsule && s.r.IntN(2) == 0)
}

// bringSome brings the data of a command, which cannot be had now and then, or ends a Read that was placing bytes of one that has ended.
func (s someone) bringSome() {
	s.q.Lock()
	defer s.q.Unlock()
	for _, t := range s.q.tasks {
		switch cid := t.SQE.CID(); {
		case t.state == taskForgotten:
			s.reads = false
			s.q.Forgotten(t)
			s.reads = true
		case s.late[cid] != t:
			continue
		case s.r.IntN(4) == 0:
			delete(s.late, cid)
			s.q.DataFailed(t, DataFault(s.r.IntN(3)))
		default:
			delete(s.late, cid)
			s.out[cid] = fill(max(t.OutLen, 64), byte(s.r.IntN(2)))
			s.GetData(t)
		}
		return
	}
}

// Whatever two hosts send on three queues each, while memory is short, data are late, commands are aborted and queues are lost: no command has
// two answers, and behind the last queue nothing is left.
func TestRandomCommands(t *testing.T) {
	seed := faulty.Seed(t)
	for round := range uint64(100) {
		t.Run(strconv.FormatUint(round, 10), func(t *testing.T) { randomCommands(t, rand.New(rand.NewPCG(seed, round))) })
	}
}

func randomCommands(t *testing.T, r *rand.Rand) {
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	var store backend.Store = inner
	if r.IntN(3) > 0 {
		s := faulty.New(inner, r.Uint64())
		s.Fail(faulty.Match{Chance: 0.05}, &backend.MediumError{})
		store = s
	}
	x := newTarget(t, store, false)
	if r.IntN(2) == 0 {
		x.over = &holding
	}
	var all []someone
	for id := range byte(2) {
		admin, cntlid := x.adminThrough(1, 1+id, 0)
		all = append(all, someone{admin, r})
		for qid := range uint16(2) {
			h := x.dialThrough(1, 1+id)
			if a := h.connect(testHost, 1+qid, cntlid, 0); a.Status != nvme.Success {
				t.Fatal(a.Status)
			}
			h.copies, h.reads = r.IntN(3) == 0, r.IntN(2) == 0
			all = append(all, someone{h, r})
		}
	}
	feed := func() {}
	for range 300 {
		s := all[r.IntN(len(all))]
		for len(s.heard) > 0 {
			<-s.heard
		}
		switch what := r.IntN(40); {
		case s.q.state >= queueLost:
		case len(s.ended) > 0 || what == 0 && r.IntN(10) == 0:
			s.lose()
		case what == 1:
			x.Tick()
		case what == 2:
			x.tell()
		case what == 3:
			feed()
			feed = x.starve()
		case what == 4:
			feed()
			feed = func() {}
		case what < 14:
			s.bringSome()
		case s.held == nil && s.q.live < 28:
			v := all[r.IntN(len(all))].q
			victim := uint32(v.id)
			if n := len(v.tasks); n > 0 {
				victim |= uint32(v.tasks[r.IntN(n)].SQE.CID()) << 16
			}
			s.send(victim)
		}
	}
	feed()
	for _, s := range all {
		s.lose()
	}
	for range 100 { // who has aborted another's command waits for the end of that
		for _, s := range all {
			s.bringSome()
		}
	}
	for _, s := range all {
		answered := make(map[uint16]bool)
		for _, a := range s.take() {
			if answered[a.CID] || a.CID == 0 || a.CID > s.cid {
				t.Errorf("queue %d: command %d of %d is answered again", s.q.id, a.CID, s.cid)
			}
			answered[a.CID] = true
		}
		if s.q.state != queueGone || s.q.live != 0 || s.q.leased+s.q.came != 0 || len(s.q.hungry) != 0 {
			t.Errorf("queue %d is in state %d, with %d commands, %d bytes, and %d that wait for memory", s.q.id, s.q.state, s.q.live, s.q.leased, len(s.q.hungry))
		}
	}
}
