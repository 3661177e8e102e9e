package nvmetcp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/nvmetcp/nvmetest"
	"oneshot/volume/access"
)

// What commands do with the medium, and what they are refused with (NVM 1.0 §3).
func TestCommands(t *testing.T) {
	r := newRig(t, rigConfig{})
	admin := r.admin(pdu.IC{}, subNQN)
	h := admin.Queue(1, 0)
	read := func(lba uint64, blocks uint32) []byte {
		t.Helper()
		_, b := h.Must(nvmetest.RW(nvme.Read, lba, blocks), nil, int(blocks)*512)
		return b
	}
	old, other := pattern(4096, 1), pattern(4096, 2)
	h.Must(nvmetest.RW(nvme.Write, 100, 8), old, 0)
	fua := nvmetest.RW(nvme.Write, 100, 8)
	fua.DWords[2] |= 1 << 30
	h.Must(fua, old, 0)
	h.Must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, 0)
	h.Must(nvmetest.RW(nvme.Verify, 100, 8), nil, 0)
	h.Must(nvmetest.RW(nvme.Compare, 100, 8), old, 0)

	nsid := func(c nvme.Command, nsid uint32) nvme.Command { c.NSID = nsid; return c }
	for _, tt := range []struct {
		name string
		c    nvme.Command
		out  []byte
		in   int
		want nvme.Status
	}{
		{"compare with other bytes", nvmetest.RW(nvme.Compare, 100, 8), other, 0, nvme.CompareFailure},
		{"no such namespace", nsid(nvmetest.RW(nvme.Read, 0, 1), 2), nil, 512, nvme.InvalidNamespace},
		{"flush of all namespaces", nvme.Command{Opcode: nvme.Flush, NSID: nvme.AllNamespaces}, nil, 0, nvme.InvalidNamespace},
		{"unknown", nvme.Command{Opcode: 0x77, NSID: 1}, nil, 0, nvme.InvalidOpcode},
		{"behind the end", nvmetest.RW(nvme.Read, size/512-1, 2), nil, 1024, nvme.LBAOutOfRange},
		{"far behind it", nvmetest.RW(nvme.Read, 1<<63+5, 1), nil, 512, nvme.LBAOutOfRange},
		{"around the end of all numbers", nvmetest.RW(nvme.Read, 1<<64-1, 2), nil, 1024, nvme.LBAOutOfRange},
		{"a buffer that is too short", nvmetest.RW(nvme.Read, 0, 2), nil, 512, nvme.DataSGLLength},
		{"data that are too long", nvmetest.RW(nvme.Write, 0, 1), other, 0, nvme.DataSGLLength},
		{"too much at a time", nvmetest.RW(nvme.Read, 0, 1<<16), nil, 32 << 20, nvme.InvalidField},
		{"the second of no pair", nvme.Command{Opcode: nvme.Write, Fuse: nvme.FusedSecond, NSID: 1}, other[:512], 0, nvme.FusedMissing},
		{"a pair that begins with a write", nvme.Command{Opcode: nvme.Write, Fuse: nvme.FusedFirst, NSID: 1}, other[:512], 0, nvme.InvalidField},
	} {
		if e, _ := h.Do(tt.c, tt.out, tt.in); e.Status != tt.want|nvme.DNR {
			t.Errorf("%s: %v, want %v", tt.name, e.Status, tt.want)
		}
	}

	// Ranges of Dataset Management, in the 4096 bytes that Linux sends whatever it has.
	list := make([]byte, 4096)
	binary.LittleEndian.PutUint32(list[4:], 2)
	binary.LittleEndian.PutUint64(list[8:], 101)
	h.Must(nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 4}}, list, 0)
	want := append(append(bytes.Clone(old[:512]), make([]byte, 1024)...), old[1536:]...)
	if !bytes.Equal(read(100, 8), want) {
		t.Error("deallocated blocks are not zeroes, or others are")
	}
	binary.LittleEndian.PutUint64(list[8:], size/512-1)
	if e, _ := h.Do(nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 4}}, list, 0); e.Status.Code() != nvme.LBAOutOfRange {
		t.Errorf("a range behind the end: %v", e.Status)
	}
	zeroes := nvmetest.RW(nvme.WriteZeroes, 104, 4)
	zeroes.DWords[2] |= 1<<25 | 1<<30
	h.Must(zeroes, nil, 0)
	clear(want[4*512:])
	if !bytes.Equal(read(100, 8), want) {
		t.Error("Write Zeroes has written something else")
	}

	// A reservation of somebody else keeps from writing, the state of the volume from all.
	tell := func(d access.Denial) { r.v.Access().SetCondition(access.Writes|access.Sanitizing, d) }
	tell(access.Writes)
	if e, _ := h.Do(nvmetest.RW(nvme.Write, 0, 1), other[:512], 0); e.Status != nvme.ReservationConflict|nvme.DNR {
		t.Errorf("a reservation: %v", e.Status)
	}
	read(0, 1)
	tell(access.Sanitizing)
	if e, _ := h.Do(nvmetest.RW(nvme.Read, 0, 1), nil, 512); e.Status != nvme.SanitizeInProgress {
		t.Errorf("sanitizing: %v", e.Status)
	}
	tell(0)
	read(0, 1)
}

// Data come in PDUs of any length, those of two commands by turns: of no whole blocks, nor dwords.
func TestDataInOddPieces(t *testing.T) {
	const n, longest = 256 << 10, 3000
	for name, open := range faulty.Ways {
		inner, err := memory.New(size)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, rigConfig{store: open(t, inner)})
		for _, ic := range []pdu.IC{{}, {HeaderDigest: true, DataDigest: true}} {
			h := r.admin(ic, subNQN).Queue(1, 0)
			rnd := rand.New(rand.NewPCG(faulty.Seed(t), 0))
			var want [2][]byte
			var asked [2]pdu.Ready
			for i := range want {
				want[i] = pattern(n, i+1)
				h.Start(nvmetest.RW(nvme.Write, uint64(i*n/512), n/512), want[i], 0)
				b, _ := h.PDU()
				asked[i] = pdu.ParseReady(b)
			}
			for asked[0].Len+asked[1].Len > 0 {
				x := &asked[rnd.IntN(2)]
				piece := *x
				if piece.Len = min(uint32(1+rnd.IntN(longest)), x.Len); piece.Len == 0 {
					continue
				}
				h.SendData(piece, want[piece.CID-asked[0].CID], longest)
				x.Offset, x.Len = x.Offset+piece.Len, x.Len-piece.Len
			}
			for range want {
				if b, _ := h.PDU(); nvme.ParseCQE(b[pdu.CommonLen:]).Status != nvme.Success {
					t.Errorf("%s, %+v: % x", name, ic, b)
				}
			}
			for i := range want {
				if _, got := h.Must(nvmetest.RW(nvme.Read, uint64(i*n/512), n/512), nil, n); !bytes.Equal(got, want[i]) {
					t.Errorf("%s, %+v: other bytes are read", name, ic)
				}
			}
		}
	}
}

// A fused pair writes if its compare is true, and both of its halves are answered, in order (Base 2.0 §3.4.2).
func TestFused(t *testing.T) {
	r := newRig(t, rigConfig{})
	for _, ic := range []pdu.IC{{}, {HeaderDigest: true, DataDigest: true}} {
		for _, n := range []int{512, 64 << 10} { // in capsules, and by R2T
			h := r.admin(ic, subNQN).Queue(1, 0)
			old, other := pattern(n, 1), pattern(n, 2)
			h.Must(nvmetest.RW(nvme.Write, 8, uint32(n/512)), old, 0)
			pair := func(compare, write []byte, want, want2 nvme.Status) {
				t.Helper()
				first, second := nvmetest.RW(nvme.Compare, 8, uint32(n/512)), nvmetest.RW(nvme.Write, 8, uint32(n/512))
				first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
				second.DWords[2] |= 1 << 30
				data := map[uint16][]byte{h.Start(first, compare, 0): compare}
				data[h.Start(second, write, 0)] = write
				var got []nvme.CQE
				for len(got) < 2 {
					b, _ := h.PDU()
					if pdu.Header(b).Type() == pdu.R2T {
						x := pdu.ParseReady(b)
						h.SendData(x, data[x.CID], 1<<20)
						continue
					}
					got = append(got, nvme.ParseCQE(b[pdu.CommonLen:]))
				}
				if got[0].Status != want || got[1].Status != want2 || got[0].CID+1 != got[1].CID {
					t.Errorf("%+v, want %v and %v", got, want, want2)
				}
			}
			pair(other, other, nvme.CompareFailure|nvme.DNR, nvme.FusedFailed|nvme.DNR)
			pair(old, other, nvme.Success, nvme.Success)
			if _, got := h.Must(nvmetest.RW(nvme.Read, 8, uint32(n/512)), nil, n); !bytes.Equal(got, other) {
				t.Error("the pair has not written")
			}
			alone := nvmetest.RW(nvme.Compare, 8, uint32(n/512))
			alone.Fuse = nvme.FusedFirst
			cid := h.Start(alone, other, 0)
			if n > h.Cap {
				h.PDU() // R2T
			}
			h.Start(nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, 0)
			b, _ := h.PDU()
			b2, _ := h.PDU()
			e, e2 := nvme.ParseCQE(b[pdu.CommonLen:]), nvme.ParseCQE(b2[pdu.CommonLen:])
			if e.CID != cid {
				e, e2 = e2, e
			}
			if e.Status != nvme.FusedMissing|nvme.DNR || e2.Status != nvme.Success {
				t.Errorf("alone: %v, and what follows: %v", e.Status, e2.Status)
			}
		}
	}
}

// Abort ends a command that waits for its data, which are thrown away when they come; Asynchronous Event Requests are bounded.
func TestAbort(t *testing.T) {
	r := newRig(t, rigConfig{})
	admin := r.admin(pdu.IC{}, subNQN)
	h := admin.Queue(1, 0)
	out := pattern(64<<10, 1)
	cid := h.Start(nvmetest.RW(nvme.Write, 0, 128), out, 0)
	b, _ := h.PDU()
	abort := nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}
	if e, _ := admin.Must(abort, nil, 0); e.DW0 != 0 {
		t.Errorf("dword 0 is %d", e.DW0)
	}
	answer, _ := h.PDU()
	if e := nvme.ParseCQE(answer[pdu.CommonLen:]); e.CID != cid || e.Status != nvme.Aborted {
		t.Errorf("%+v", e)
	}
	h.SendData(pdu.ParseReady(b), out, 4096)
	if _, got := h.Must(nvmetest.RW(nvme.Read, 0, 128), nil, 64<<10); !bytes.Equal(got, make([]byte, 64<<10)) {
		t.Error("data of an aborted command are on the medium")
	}
	if e, _ := admin.Must(abort, nil, 0); e.DW0 != 1 {
		t.Errorf("a command that is over: dword 0 is %d", e.DW0)
	}
	for range 4 {
		admin.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
	}
	if e, _ := admin.Do(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0); e.Status.Code() != nvme.AsyncEventLimit {
		t.Errorf("one Asynchronous Event Request too many: %v", e.Status)
	}
}

// A data digest that does not match fails its command only, and the bytes do not reach the medium.
func TestDataDigest(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.admin(pdu.IC{DataDigest: true}, subNQN).Queue(1, 0)
	old := pattern(512, 1)
	h.Must(nvmetest.RW(nvme.Write, 0, 1), old, 0)
	c := nvmetest.RW(nvme.Write, 0, 1)
	c.CID, c.SGL = 77, nvme.SGL{Type: nvme.SGLInCapsule, Length: 512}
	b := h.Capsule(&c, pattern(512, 2))
	b[len(b)-1] ^= 1
	h.Send(b)
	if e, _ := h.Finish(77, nil, 0); e.Status != nvme.TransientTransport {
		t.Errorf("%v", e.Status)
	}
	if _, got := h.Must(nvmetest.RW(nvme.Read, 0, 1), nil, 512); !bytes.Equal(got, old) {
		t.Error("bytes with a bad digest are on the medium")
	}
	if n := r.Counters(); n.DigestErrors.Load() != 1 || n.ProtocolErrors.Load() != 0 {
		t.Errorf("%d errors of digests and %d of the protocol are counted", n.DigestErrors.Load(), n.ProtocolErrors.Load())
	}
}

// Descriptors of other transports end the command, and not the connection.
func TestForeignDescriptors(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.admin(pdu.IC{}, subNQN).Queue(1, 0)
	for _, sgl := range []uint8{nvme.SGLKeyed, nvme.SGLKeyedInvalidate, 0x00, 0x20} {
		c := nvmetest.RW(nvme.Write, 0, 1)
		c.CID, c.SGL = 7, nvme.SGL{Length: 512, Type: sgl}
		h.Send(h.Capsule(&c, nil))
		if e, _ := h.Finish(7, nil, 0); e.Status != nvme.SGLType|nvme.DNR {
			t.Errorf("type %#02x: %v", sgl, e.Status)
		}
	}
	h.Must(nvmetest.RW(nvme.Write, 0, 1), make([]byte, 512), 0)
}

// A host that sends no more of the data that it was asked for is given up in time; not as long as some come.
func TestDataThatDoNotCome(t *testing.T) {
	const seconds = 20
	r := newRig(t, rigConfig{still: true, limits: nvmf.Limits{Controllers: 100, ConnectTimeout: time.Minute, ReadTimeout: seconds * time.Second}})
	admin := r.admin(pdu.IC{}, subNQN)
	h, other := admin.Queue(1, 0), admin.Queue(2, 0)
	h.Start(nvmetest.RW(nvme.Write, 0, 64), pattern(32<<10, 1), 0)
	b, _ := h.PDU()
	x := pdu.ParseReady(b)
	pass := func(seconds int) {
		for range seconds {
			r.Tick()
		}
		h.Must(nvmetest.RW(nvme.Read, 0, 1), nil, 512) // it is alive
	}
	pass(seconds)
	first := x
	first.Len = 512
	h.SendData(first, pattern(512, 1), 512)
	pass(0) // the data have been taken when this is
	pass(seconds + 1)
	r.Tick()
	h.Ended()
	other.Must(nvmetest.RW(nvme.Write, 0, 1), pattern(512, 2), 0)
}
