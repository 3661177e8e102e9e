package nvmf

import (
	"bytes"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
	"oneshot/volume"
)

// A host gives up a path, or a command, while the store still writes for it, and writes to the same blocks by another path: that write is answered
// when the former one is over, so that the former one does not come on top of it.
func TestFormerWriteComesFirst(t *testing.T) {
	for name, giveUp := range map[string]func(p *party, cid uint16){
		"cut off":    func(p *party, _ uint16) { p.io.x.pass(volume.OverdueTicks + 1) }, // nothing is known of that here
		"queue lost": func(p *party, _ uint16) { p.io.lose() },
		"controller lost": func(p *party, _ uint16) {
			p.admin.lose()
			p.io.lose() // which the mover does when it is told to end it
		},
		"Disconnect": func(p *party, _ uint16) {
			p.io.start(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}, 0, nil, false)
		},
		"Abort": func(p *party, cid uint16) {
			p.admin.start(nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}, 0, nil, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := later(t)
			x := newTarget(t, store, false)
			p, other := x.party(1, 1), x.party(2, 2)
			gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
			cid := p.io.start(rw(nvme.Write, 8), 4096, fill(4096, 1), true)
			gate.Await(1)
			giveUp(p, cid)
			other.io.start(rw(nvme.Write, 1), 512, fill(512, 2), true)
			got := other.io.take()
			if len(got) != 0 {
				t.Error("it is answered while the former one is in the store")
			}
			beside := rw(nvme.Write, 1)
			beside.DWords[0] = 8
			other.io.must(beside, 512, fill(512, 3), true)
			for len(other.io.heard) > 0 {
				<-other.io.heard
			}
			gate.Release()
			if len(got) == 0 {
				<-other.io.heard
				other.io.q.Lock()
				got = other.io.take()
				other.io.q.Unlock()
			}
			if len(got) != 1 || got[0].Status != nvme.Success {
				t.Errorf("in the end: %v", got)
			}
			if a := other.io.must(rw(nvme.Read, 8), 4096, nil, false); !bytes.Equal(a.data, append(fill(512, 2), fill(3584, 1)...)) {
				t.Errorf("the blocks begin with % x: the former write has come on top of one that was answered", a.data[:4])
			}
		})
	}
}

// A path is cut, and its host writes again by another one. What it had sent by the former path does not come over that, however late it arrives:
// not where it goes straight to the memory of the store, and not where it comes to memory of the command's own first.
func TestLateDataAreOvertaken(t *testing.T) {
	for name, copies := range map[string]bool{"lent": false, "copied": true} {
		for _, late := range []bool{false, true} {
			x := newTarget(t, nil, false)
			p, other := x.party(1, 1), x.party(2, 2)
			p.io.copies = copies
			task := p.io.late[p.io.start(rw(nvme.Write, 8), 4096, nil, false)]
			x.pass(volume.OverdueTicks)
			if late {
				x.pass(1)
			}
			other.io.must(rw(nvme.Write, 1), 512, fill(512, 2), true)
			p.io.q.Lock()
			if task.Place(0, fill(4096, 1)); task.PlaceUnit == 0 {
				copy(task.Out[0], fill(4096, 1))
			}
			p.io.q.GotData(task)
			p.io.q.Unlock()
			want := nvme.Success
			if late {
				want = nvme.InternalError
			}
			if got := p.io.take(); len(got) != 1 || got[0].Status != want {
				t.Errorf("%s, late %v: %v", name, late, got)
			}
			if a := other.io.must(rw(nvme.Read, 1), 512, nil, false); bytes.Equal(a.data, fill(512, 2)) != late {
				t.Errorf("%s, late %v: the block begins with % x", name, late, a.data[:4])
			}
		}
	}
}
