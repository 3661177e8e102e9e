package shm

import (
	"encoding/binary"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The other side is woken once for each sleep. A look that finds nothing begins another sleep: somebody else may have
// taken what the bell was rung for, and the next entry has to ring again.
func TestSleep(t *testing.T) {
	var w Word
	here, there := Sleep{word: &w}, Sleep{word: &w}
	for round := range 3 {
		if there.Wakes() {
			t.Fatalf("round %d: woken while awake", round)
		}
		here.Begin()
		if !there.Wakes() || there.Wakes() {
			t.Fatalf("round %d: not woken once", round)
		}
		here.Begin()
		if !there.Wakes() || there.Wakes() {
			t.Fatalf("round %d: not woken once from the sleep after that", round)
		}
		here.End()
	}
}

// What is written into a slot is read from it, at any place of the ring, and one slot does not reach into the next.
func TestDescriptors(t *testing.T) {
	seg, fd, err := Create("test", QueueLen(100))
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Close()
	defer CloseAll([]int{fd})
	q := NewQueue(seg, 100)
	if q.Slots() != 128 || len(seg.Bytes()) != 2*PageSize+128*(SlotLen+SpillLen) {
		t.Fatalf("%d slots in %d bytes", q.Slots(), len(seg.Bytes()))
	}
	at := func(pos uint32) Descriptor {
		return Descriptor{
			Op: uint8(pos), SGL: 3, Flags: uint16(pos) << 3, STag: ^pos, Token: uint64(pos) << 40, Offset: ^uint64(pos), Memory: 2,
			Access: uint8(pos) ^ 0x55, Inline: pos * 7,
		}
	}
	piece := func(pos uint32, i int) Piece { return Piece{pos, uint32(i), uint64(pos) << 32} }
	const first = ^uint32(0) - 60
	for pos := first; pos != first+q.Slots(); pos++ {
		d := at(pos)
		d.Put(q.Slot(pos))
		for i := range d.Pieces() {
			PutPiece(q.Slot(pos), q.Spill(pos), i, d.Pieces(), piece(pos, i))
		}
	}
	for pos := first; pos != first+q.Slots(); pos++ {
		slot := [SlotLen]byte(q.Slot(pos))
		var d Descriptor
		if d.Get(&slot); d != at(pos) {
			t.Fatalf("position %d: %+v, want %+v", pos, d, at(pos))
		}
		for i := range d.Pieces() {
			if p := GetPiece(&slot, q.Spill(pos), i, d.Pieces()); p != piece(pos, i) {
				t.Fatalf("position %d, piece %d: %+v", pos, i, p)
			}
		}
	}
	var slot [SlotLen]byte
	for i := range InSlot { // as many as fit need no spill
		PutPiece(slot[:], nil, i, InSlot, piece(7, i))
	}
	for i := range InSlot {
		if p := GetPiece(&slot, nil, i, InSlot); p != piece(7, i) {
			t.Errorf("piece %d: %+v", i, p)
		}
	}
}

func TestCompletions(t *testing.T) {
	seg, fd, err := Create("test", ControlLen)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll([]int{fd})
	c := NewControl(seg)
	defer c.Close()
	at := func(pos uint32) Completion {
		return Completion{KindCompletion, uint8(pos), uint8(pos >> 8), 3, pos, uint64(pos) << 20, ^pos, pos * 3}
	}
	for pos := range uint32(Completions) {
		x := at(pos)
		c.Put(pos, &x)
		c.Hint(pos).Store(pos)
	}
	for pos := range uint32(Completions) {
		var x Completion
		if c.Get(pos+Completions, &x); x != at(pos) || c.Hint(pos).Load() != pos {
			t.Fatalf("position %d: %+v, hint %d", pos, x, c.Hint(pos).Load())
		}
	}
}

// Release frees a ringer that is stuck because the other process has filled the counter of the eventfd and made
// writes to it wait.
func TestBellFilled(t *testing.T) {
	b, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fill(t, b.FD())
	done := make(chan struct{})
	go func() {
		b.Ring()
		close(done)
	}()
	for rung := false; !rung; { // Ring may come after Release, and then does not wait
		b.Release()
		select {
		case <-done:
			rung = true
		default:
		}
	}
}

// fill fills the counter of an eventfd, and has writes to it wait.
func fill(t *testing.T, fd int) {
	t.Helper()
	var most [8]byte
	binary.NativeEndian.PutUint64(most[:], 1<<64-2)
	if _, err := unix.Write(fd, most[:]); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}
