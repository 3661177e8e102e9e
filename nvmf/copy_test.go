package nvmf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/nvme"
	"oneshot/volume"
)

// copyOf is Copy of ranges, each a first block and how many there are, to a block, and its data.
func copyOf(to uint64, ranges ...[2]uint64) (nvme.Command, []byte) {
	c := rw(nvme.Copy, 1)
	c.DWords[0], c.DWords[1], c.DWords[2] = uint32(to), uint32(to>>32), uint32(len(ranges)-1)
	var list []byte
	for _, r := range ranges {
		list = nvme.AppendCopyRange(list, r[0], uint32(r[1]))
	}
	return c, list
}

// bigTarget serves 8 MiB, of which each block has bytes of its own, and returns these.
func bigTarget(t *testing.T, wrap func(backend.Store) backend.Store) (x *target, h, admin *host, model []byte) {
	t.Helper()
	s, err := memory.New(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	x = newTarget(t, wrap(s), false)
	admin, id := x.admin(0)
	h = x.queue(id)
	model = make([]byte, 8<<20)
	for i := 0; i < len(model); i += 8 {
		binary.LittleEndian.PutUint64(model[i:], uint64(i)*0x9e3779b97f4a7c15+1)
	}
	for off := 0; off < len(model); off += 1 << 20 {
		c := rw(nvme.Write, 2048)
		c.DWords[0] = uint32(off / 512)
		h.must(c, 1<<20, model[off:off+1<<20], false)
	}
	return x, h, admin, model
}

// wantBytes compares the whole disk.
func (h *host) wantBytes(model []byte) {
	h.x.t.Helper()
	for off := 0; off < len(model); off += 1 << 20 {
		c := rw(nvme.Read, 2048)
		c.DWords[0] = uint32(off / 512)
		if a := h.must(c, 1<<20, nil, false); !bytes.Equal(a.data, model[off:off+1<<20]) {
			h.x.t.Fatalf("the bytes from %d on are others", off)
		}
	}
}

// Copy moves bytes as a model does: one range and many, in order, in pieces, and where a range overlaps what it becomes
// (NVM 1.0 §3.2.2).
func TestCopy(t *testing.T) {
	for name, wrap := range map[string]func(backend.Store) backend.Store{
		"memory": func(s backend.Store) backend.Store { return s },
		"other":  func(s backend.Store) backend.Store { return faulty.New(s, faulty.Seed(t)) },
	} {
		_, h, admin, model := bigTarget(t, wrap)
		for _, x := range []struct {
			to     uint64
			ranges [][2]uint64
		}{
			{100, [][2]uint64{{0, 1}}},
			{16383, [][2]uint64{{5, 1}}},
			{8192, [][2]uint64{{0, 8192}}},                          // in pieces
			{1000, [][2]uint64{{0, 6000}}},                          // forward, over itself
			{0, [][2]uint64{{1000, 6000}}},                          // backward
			{7000, [][2]uint64{{7000, 3000}}},                       // onto itself
			{3, [][2]uint64{{50, 7}, {0, 1}, {9, 4000}, {4000, 1}}}, // the later see what the earlier have done
			{200, [][2]uint64{{0, 4096}, {8000, 8192}}},
		} {
			c, list := copyOf(x.to, x.ranges...)
			if a := h.must(c, len(list), list, true); a.DW0 != 0 {
				t.Errorf("%s: %#x", name, a.DW0)
			}
			to := x.to * 512
			for _, r := range x.ranges {
				to += uint64(copy(model[to:], model[r[0]*512:(r[0]+r[1])*512]))
			}
			h.wantBytes(model)
		}
		c, list := copyOf(9, [2]uint64{1, 2})
		c.DWords[2] |= bitFUA
		h.must(c, len(list), list, false)
		if h.q.leased != 0 || h.q.live != 0 {
			t.Errorf("%s: %d bytes, %d commands are left", name, h.q.leased, h.q.live)
		}
		// What it says of itself is what it does.
		b := admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false).data
		le := binary.LittleEndian
		if le.Uint16(b[74:])<<9 != 0 && int(le.Uint16(b[74:]))<<9 != maxCopyRange || int(le.Uint32(b[76:]))<<9 != maxCopyBytes || b[80] != maxCopyRanges-1 {
			t.Errorf("MSSRL %d, MCL %d, MSRC %d", le.Uint16(b[74:]), le.Uint32(b[76:]), b[80])
		}
		b = admin.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
		if le.Uint16(b[520:])&nvme.ONCSCopy == 0 || le.Uint16(b[534:]) != nvme.OCFSFormat0 {
			t.Errorf("ONCS %#x, OCFS %#x", le.Uint16(b[520:]), le.Uint16(b[534:]))
		}
		b = admin.must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{(nvme.EffectsLen/4-1)<<16 | uint32(nvme.LogEffects)}}, nvme.EffectsLen, nil, false).data
		if e := le.Uint32(b[1024+4*int(nvme.Copy):]); e != nvme.EffectSupported|nvme.EffectContent {
			t.Errorf("effects %#x", e)
		}
	}
}

// A Copy that breaks a rule copies nothing, and says which range it is about.
func TestCopyRefused(t *testing.T) {
	_, h, _, model := bigTarget(t, func(s backend.Store) backend.Store { return s })
	good := [2]uint64{0, 1}
	many := make([][2]uint64, 17)
	for i := range many {
		many[i] = good
	}
	most := [2]uint64{0, 8192}
	type change func(c *nvme.Command, n *int)
	for name, x := range map[string]struct {
		to     uint64
		ranges [][2]uint64
		with   change
		want   nvme.Status
		dw0    uint32
	}{
		"a source behind the end":   {9, [][2]uint64{good, {16384, 1}}, nil, nvme.LBAOutOfRange, 1},
		"a source beyond the end":   {9, [][2]uint64{good, good, {16383, 2}}, nil, nvme.LBAOutOfRange, 2},
		"a source that wraps":       {9, [][2]uint64{{^uint64(0), 2}}, nil, nvme.LBAOutOfRange, 0},
		"a destination behind":      {16384, [][2]uint64{good}, nil, nvme.LBAOutOfRange, 0},
		"a destination beyond":      {16383, [][2]uint64{good, good}, nil, nvme.LBAOutOfRange, 0},
		"a destination that wraps":  {^uint64(0), [][2]uint64{good, good}, nil, nvme.LBAOutOfRange, 0},
		"a range too long":          {9, [][2]uint64{good, {0, 8193}}, nil, nvme.CommandSizeLimit, 1},
		"too many ranges":           {9, many, nil, nvme.CommandSizeLimit, 0},
		"another format":            {9, [][2]uint64{good}, func(c *nvme.Command, _ *int) { c.DWords[2] |= 1 << 8 }, nvme.InvalidField, 0},
		"protection of the source":  {9, [][2]uint64{good}, func(c *nvme.Command, _ *int) { c.DWords[2] |= 1 << 12 }, nvme.InvalidField, 0},
		"protection of what is new": {9, [][2]uint64{good}, func(c *nvme.Command, _ *int) { c.DWords[2] |= 1 << 29 }, nvme.InvalidField, 0},
		"fewer ranges than said":    {9, [][2]uint64{good, good}, func(_ *nvme.Command, n *int) { *n -= 1 }, nvme.DataSGLLength, 0},
		"too much data":             {9, [][2]uint64{good}, func(_ *nvme.Command, n *int) { *n = 8192 }, nvme.DataSGLLength, 0},
		"no data":                   {9, [][2]uint64{good}, func(_ *nvme.Command, n *int) { *n = 0 }, nvme.DataSGLLength, 0},
		"another namespace":         {9, [][2]uint64{good}, func(c *nvme.Command, _ *int) { c.NSID = 2 }, nvme.InvalidNamespace, 0},
	} {
		c, list := copyOf(x.to, x.ranges...)
		n := len(list)
		if x.with != nil {
			x.with(&c, &n)
		}
		if a := h.do(c, n, append(list, make([]byte, 8192)...)[:n], true); a.Status != x.want|nvme.DNR || a.DW0 != x.dw0 {
			t.Errorf("%s: %v %d, want %v %d", name, a.Status, a.DW0, x.want, x.dw0)
		}
	}
	h.wantBytes(model)
	// Exactly as much as there may be, and a list with more behind it.
	c, list := copyOf(0, most, good)
	list = append(list, make([]byte, 4096-len(list))...)
	h.must(c, len(list), list, true)
	// Of a list that is to come no more is asked for, and kept room for, than it has ranges: no limit of memory counts that.
	c, _ = copyOf(0, good)
	if late := h.late[h.start(c, 4096, nil, false)]; late.OutLen != nvme.CopyRangeLen || len(late.Out[0]) != nvme.CopyRangeLen {
		t.Errorf("%d bytes are asked for, to memory of %d", late.OutLen, len(late.Out[0]))
	}
}

// When the store fails, the host is told from which range on nothing is copied.
func TestCopyFails(t *testing.T) {
	var s *faulty.Store
	x, h, admin, model := bigTarget(t, func(inner backend.Store) backend.Store { s = faulty.New(inner, faulty.Seed(t)); return s })
	stop := s.Fail(faulty.Match{Kinds: faulty.Reads, Off: 4096, Len: 512}, errors.New("the medium is gone"))
	c, list := copyOf(4000, [2]uint64{0, 4}, [2]uint64{8, 4}, [2]uint64{16, 4})
	a := h.do(c, len(list), list, true)
	if a.Status.Code() == nvme.Success || a.Status&nvme.More == 0 || a.DW0 != 1 {
		t.Errorf("%v, range %d", a.Status, a.DW0)
	}
	if e := errorsOf(admin, 1); binary.LittleEndian.Uint64(e[16:]) != 8 {
		t.Errorf("the log has block %d", binary.LittleEndian.Uint64(e[16:]))
	}
	for from, again := range map[uint64]bool{0: true, 18: false} { // done again, the second would read what it has written
		c, list := copyOf(20, [2]uint64{from, 4}, [2]uint64{8, 4})
		if a := h.do(c, len(list), list, true); a.Status&nvme.DNR == 0 != again || a.DW0 != 1 {
			t.Errorf("from %d: %v, range %d", from, a.Status, a.DW0)
		}
		copy(model[20*512:], model[from*512:(from+4)*512])
	}
	stop()
	copy(model[4000*512:], model[:4*512])
	h.wantBytes(model)
	// With FUA what was copied is durable, or the command fails.
	stop = s.Fail(faulty.Match{Kinds: []backend.Kind{backend.Flush}}, errors.New("no flush"))
	for _, fua := range []uint32{0, bitFUA} {
		c, list = copyOf(4000, [2]uint64{0, 4})
		c.DWords[2] |= fua
		if a := h.do(c, len(list), list, true); (a.Status == nvme.Success) != (fua == 0) {
			t.Errorf("FUA %#x: %v", fua, a.Status)
		}
	}
	stop()
	// Without memory it waits, though its list has come with it.
	feed := x.starve()
	c, list = copyOf(4000, [2]uint64{8, 4})
	h.start(c, len(list), list, true)
	if got := h.take(); len(got) != 0 {
		t.Errorf("without memory: %v", got)
	}
	feed()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success {
		t.Errorf("with memory: %v", got)
	}
}

// A Copy that has been under way for long leaves alone what it has not come to when others write there: its host may have sent it again by
// another path, and have gone on (TestFormerWriteComesFirst).
func TestLateCopyIsOvertaken(t *testing.T) {
	var s *faulty.Store
	x, h, _, _ := bigTarget(t, func(inner backend.Store) backend.Store { s = faulty.New(inner, faulty.Seed(t)); return s })
	other := x.party(1, 2)
	for _, backward := range []bool{false, true} {
		for _, at := range []int64{0, 1, 2, 3} { // of the destination: in the store, to come in this range, in the next one, and behind it
			for len(h.heard) > 0 {
				<-h.heard
			}
			from, begin := uint64(0), int64(4096<<9)
			if backward { // over itself
				from = 4095
			}
			gate := s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
			c, list := copyOf(4096, [2]uint64{from, 4096}, [2]uint64{1, 1})
			cid := h.start(c, len(list), list, true)
			gate.Await(1) // with 1 MiB of the 2 MiB of the first range
			x.pass(volume.OverdueTicks + 1)
			places := []int64{begin, begin + 1<<20, begin + 2<<20, begin + 2<<20 + 512}
			if backward {
				places[0], places[1] = places[1], places[0]
			}
			w := rw(nvme.Write, 1)
			w.DWords[0] = uint32(places[at] >> 9)
			other.io.start(w, 512, fill(512, 0xfe), true)
			answers := other.io.take()
			if waits := at == 0; (len(answers) == 0) != waits {
				t.Errorf("a write at %d: %v", at, answers)
			}
			for len(other.io.heard) > 0 && len(answers) == 0 {
				<-other.io.heard
			}
			gate.Release()
			<-h.heard
			h.q.Lock()
			got := h.take()
			h.q.Unlock()
			if n := h.q.live; n != 0 {
				t.Errorf("%d commands are left", n)
			}
			overtaken, want := at == 1 || at == 2, nvme.Success
			if overtaken {
				want = nvme.InternalError
			}
			if overtaken && backward { // done again it would read what it has written
				want |= nvme.DNR
			}
			if len(got) != 1 || got[0].CID != cid || got[0].Status != want {
				t.Errorf("beside a write at %d: %v", at, got)
			}
			if len(answers) == 0 {
				<-other.io.heard
				other.io.q.Lock()
				answers = other.io.take()
				other.io.q.Unlock()
			}
			if len(answers) != 1 || answers[0].Status != nvme.Success {
				t.Errorf("the write: %v", answers)
			}
			read := w
			read.Opcode = nvme.Read
			if a := other.io.must(read, 512, nil, false); !bytes.Equal(a.data, fill(512, 0xfe)) {
				t.Errorf("backward %v: the late Copy is over a write at %d", backward, at)
			}
		}
	}
}

// What a Copy or a deallocation is about is told in data of its own. If these come late, what others have written meanwhile stays.
func TestLateListIsOvertaken(t *testing.T) {
	for _, op := range []nvme.Opcode{nvme.Copy, nvme.DSM} {
		for _, late := range []bool{false, true} {
			x := newTarget(t, later(t), false)
			p, other := x.party(1, 1), x.party(2, 2)
			p.io.must(rw(nvme.Write, 64), 64<<9, fill(64<<9, 1), false)
			c, list := copyOf(8, [2]uint64{0, 1})
			if op == nvme.DSM {
				c = nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 1 << 2}}
				list = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<32), 8)
			}
			task := p.io.late[p.io.start(c, len(list), nil, false)]
			x.pass(volume.OverdueTicks)
			if late {
				x.pass(1)
			}
			w := rw(nvme.Write, 1)
			w.DWords[0] = 8
			other.io.must(w, 512, fill(512, 2), true)
			copy(task.Out[0], list)
			for len(p.io.heard) > 0 {
				<-p.io.heard
			}
			p.io.q.Lock()
			p.io.q.GotData(task)
			p.io.q.Unlock()
			<-p.io.heard
			p.io.q.Lock()
			got := p.io.take()
			p.io.q.Unlock()
			if len(got) != 1 || (got[0].Status == nvme.InternalError) != (late && op == nvme.Copy) {
				t.Errorf("opcode %#x, late %v: %v", op, late, got)
			}
			w.Opcode = nvme.Read
			if a := other.io.must(w, 512, nil, false); bytes.Equal(a.data, fill(512, 2)) != late {
				t.Errorf("opcode %#x, late %v: the block begins with %x", op, late, a.data[:4])
			}
			if p.io.must(c, len(list), list, true); task != p.io.pool[len(p.io.pool)-1] { // the next command is not late
				t.Fatal("another task has been used")
			}
			if a := other.io.must(w, 512, nil, false); bytes.Equal(a.data, fill(512, 2)) {
				t.Errorf("opcode %#x, late %v: the next command has done nothing", op, late)
			}
		}
	}
}

// A piece that waits for its range when the Copy is late has not been begun: who comes to write there comes before it.
func TestLatePieceIsOvertaken(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	p, given, newer := x.party(1, 1), x.party(2, 2), x.party(2, 3)
	write := func(h *host, fill byte) {
		w := rw(nvme.Write, 1)
		w.DWords[0] = 8
		h.start(w, 512, bytes.Repeat([]byte{fill}, 512), true)
	}
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	write(given.io, 1)
	gate.Await(1)
	given.io.lose()
	c, list := copyOf(8, [2]uint64{0, 1})
	for len(p.io.heard)+len(newer.io.heard) > 0 {
		select {
		case <-p.io.heard:
		case <-newer.io.heard:
		}
	}
	p.io.start(c, len(list), list, true)
	x.pass(volume.OverdueTicks + 2)
	write(newer.io, 3)
	gate.Release()
	for h, want := range map[*host]nvme.Status{p.io: nvme.InternalError, newer.io: nvme.Success} {
		<-h.heard
		h.q.Lock()
		if got := h.take(); len(got) != 1 || got[0].Status != want {
			t.Errorf("%v, want %v", got, want)
		}
		h.q.Unlock()
	}
	r := rw(nvme.Read, 1)
	r.DWords[0] = 8
	if a := newer.io.must(r, 512, nil, false); a.data[0] != 3 {
		t.Errorf("the block begins with %x", a.data[0])
	}
}
