package scsi

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/volume/access"
)

// secondTarget has one LUN that shows the volume of b in larger blocks.
func (b *bench) secondTarget() (*Target, *LogicalUnit) {
	b.t.Helper()
	lu, err := NewLogicalUnit(LUConfig{Volume: b.lu.v, BlockSize: 4096, Serial: "0002", Logger: quiet})
	if err != nil {
		b.t.Fatal(err)
	}
	target := NewTarget(TargetConfig{Name: "iqn.2026-11.example.oneshot:other", Copies: b.target.copies})
	target.SetLU(0, lu)
	return target, lu
}

// ready is a nexus of target without unit attentions.
func ready(target *Target, initiator Initiator) *Nexus {
	n := target.NewNexus(initiator)
	for _, i := range *n.table.Load() {
		i.ua.Store(0)
	}
	return n
}

// TestTwoTargetsCompareAndWrite: through two targets, in blocks of two sizes, no update of a counter is lost.
func TestTwoTargetsCompareAndWrite(t *testing.T) {
	racing(t, func(t *testing.T, b *bench, conns []*testConn) {
		other, _ := b.secondTarget()
		value := func(n uint64, size int) []byte {
			data := make([]byte, size)
			binary.BigEndian.PutUint64(data, n)
			return data
		}
		// From the first COMPARE AND WRITE on, reads of the stripe are copies.
		first := make([]byte, 1024)
		conns[0].do(&testTask{Task: Task{CDB: caw(16, 1), DataOutLen: uint32(len(first))}, out: first})
		var good atomic.Uint64
		var wg sync.WaitGroup
		for k, c := range conns {
			size, lba := 512, uint64(16)
			if k%2 == 1 {
				size, lba = 4096, 2
				c = newTestConn(t, ready(other, client("iqn.2026-11.example.clients:b", 0x400000000002)))
			}
			wg.Go(func() {
				for range 300 {
					var seen uint64
					c.do(&testTask{
						Task: Task{CDB: rw10(0x28, uint32(lba), 1), DataInLen: uint32(size)},
						end:  func(task *Task, _ Next) { seen = binary.BigEndian.Uint64(task.In[0]) },
					})
					data := append(value(seen, size), value(seen+1, size)...)
					c.do(&testTask{
						Task: Task{CDB: caw(lba, 1), DataOutLen: uint32(len(data))}, out: data,
						end: func(task *Task, _ Next) {
							if task.Status == Good {
								good.Add(1)
							}
						},
					})
				}
			})
		}
		wg.Wait()
		if n := binary.BigEndian.Uint64(b.store.data[8192:]); n != good.Load() || n == 0 {
			t.Errorf("%d COMPARE AND WRITEs said GOOD, the counter says %d", good.Load(), n)
		}
	})
}

// TestTokenEndsThroughOtherTarget: a token for data ends when they are written through another target.
func TestTokenEndsThroughOtherTarget(t *testing.T) {
	b := newCopyBench(t, false)
	other, _ := b.secondTarget()
	token := b.token([2]uint64{16, 4})
	elsewhere := *b.bench
	elsewhere.nexus = ready(other, client("iqn.2026-11.example.clients:b", 0x400000000002))
	if v := verdict(elsewhere.do(rw10(0x2a, 1, 1), make([]byte, 4096), 0)); v != 0 {
		t.Fatalf("WRITE beside the data: %05x", v)
	}
	if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != 0 {
		t.Errorf("the token of data that have not changed: %05x", v)
	}
	if v := verdict(elsewhere.do(rw10(0x2a, 2, 1), bytes.Repeat([]byte{1}, 4096), 0)); v != 0 {
		t.Fatalf("WRITE: %05x", v)
	}
	if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != 0x52306 {
		t.Errorf("the token of data that have changed: %05x", v)
	}
}

// TestReservationHoldsThroughOtherTarget: what is reserved through one target is reserved through another,
// with PERSISTENT RESERVE OUT as with RESERVE, and who holds it is not whom his name resembles.
func TestReservationHoldsThroughOtherTarget(t *testing.T) {
	b := newPRBench(t, nil)
	other, _ := b.secondTarget()
	elsewhere := *b.bench
	elsewhere.nexus = ready(other, client("iqn.2026-11.example.clients:a", 0x400000000001))
	write, read := func() int { return verdict(elsewhere.do(rw10(0x2a, 2, 1), make([]byte, 4096), 0)) },
		func() int { return verdict(elsewhere.do(rw10(0x28, 2, 1), nil, 4096)) }
	b.must(b.a, proutRegister, 0, 0, 1)
	b.must(b.a, proutReserve, exclusiveAccess, 1, 0)
	if w, r := write(), read(); w != conflicts || r != conflicts {
		t.Errorf("an exclusive reservation through another target: WRITE %05x, READ %05x", w, r)
	}
	if r := elsewhere.do([]byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil, 256); len(r.in) != 16 || r.in[15] != 1 {
		t.Errorf("READ KEYS through another target: % x", r.in)
	}
	b.must(b.a, proutClear, 0, 1, 0)
	if w, r := write(), read(); w != 0 || r != 0 {
		t.Errorf("without a reservation: WRITE %05x, READ %05x", w, r)
	}
	if v := verdict(elsewhere.do([]byte{0x16, 0, 0, 0, 0, 0}, nil, 0)); v != 0 {
		t.Fatalf("RESERVE: %05x", v)
	}
	if v := verdict(b.as(b.a, rw10(0x28, 0, 1), nil, 512)); v != conflicts {
		t.Errorf("READ of what is reserved through another target: %05x", v)
	}
	elsewhere.nexus.Close(func() {})
	if v := verdict(b.as(b.a, rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ when that session has ended: %05x", v)
	}
}

// TestNamesAreNotGlued: an initiator whose name contains another one's port is somebody else.
func TestNamesAreNotGlued(t *testing.T) {
	b := newPRBench(t, nil)
	l := append(proutList(0, 1, specIPT), make([]byte, 4)...)
	l = appendTransportID(l, Initiator{Protocol: access.ISCSI, Name: "iqn.2026-11.example.clients:a"})
	binary.BigEndian.PutUint32(l[24:], uint32(len(l)-28))
	if v := verdict(b.as(b.b, proutCDB(proutRegister, 0, len(l)), l, 0)); v != 0 {
		t.Fatalf("REGISTER: %05x", v)
	}
	b.must(b.b, proutReserve, exclusiveAccessRegistrants, 1, 0)
	if v := verdict(b.as(b.a, rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ by a port of who is registered: %05x", v)
	}
	for _, name := range []string{"iqn.2026-11.example.clients:a,i,0x400000000001", "iqn.2026-11.example.clients:a,i"} {
		x := ready(b.target, client(name, 0x400000000009))
		if v := verdict(b.as(x, rw10(0x28, 0, 1), nil, 512)); v != conflicts {
			t.Errorf("READ by %s: %05x", name, v)
		}
	}
}

// TestPortsAreToldApart: what one port of an initiator has registered is not registered for another port of it
// (SPC-4 §5.13.7).
func TestPortsAreToldApart(t *testing.T) {
	b := newPRBench(t, nil)
	b.must(b.a, proutRegister, 0, 0, 1)
	b.must(b.a, proutReserve, exclusiveAccessRegistrants, 1, 0)
	if v := verdict(b.as(b.a, rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ by the port that is registered: %05x", v)
	}
	other := ready(b.target, client("iqn.2026-11.example.clients:a", 0x400000000077))
	if v := verdict(b.as(other, rw10(0x28, 0, 1), nil, 512)); v != conflicts {
		t.Errorf("READ by another port of the initiator: %05x", v)
	}
	if v := b.out(other, proutRelease, exclusiveAccessRegistrants, 1, 0, 0); v != conflicts {
		t.Errorf("RELEASE by another port of the initiator: %05x", v)
	}
}

// TestSanitizeOfAllViews: a sanitize operation waits for the commands of every view, refuses those
// that come, and goes on when the view that it came through is replaced.
func TestSanitizeOfAllViews(t *testing.T) {
	b := newBench(t, false, nil)
	other, _ := b.secondTarget()
	elsewhere := *b
	elsewhere.nexus = ready(other, client("iqn.2026-11.example.clients:b", 0x400000000002))
	data := bytes.Repeat([]byte{0xdd}, 4096)
	write := elsewhere.task(rw10(0x2a, 0, 1), data, 0)
	if next := write.Start(); next != Pull {
		t.Fatal(next)
	}
	if r := b.do(sanitizeCDB(sanitizeNow|sanitizeBlockErase, 0), nil, 0); r.status != Good {
		t.Fatalf("SANITIZE: %05x", r.code())
	}
	if v := verdict(elsewhere.do(rw10(0x28, 0, 1), nil, 4096)); v != 0x2041b {
		t.Errorf("READ through another target: %05x", v)
	}
	b.target.SetLU(0, nil)
	if err := b.lu.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := NewLogicalUnit(LUConfig{Volume: b.lu.v, Serial: "0001", Product: "NEW", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(0, again)
	for _, i := range *b.nexus.table.Load() {
		i.ua.Store(0)
	}
	if v := verdict(b.do(rw10(0x28, 0, 1), nil, 512)); v != 0x2041b {
		t.Errorf("READ through the view that has replaced the first one: %05x", v)
	}
	place(write, data)
	elsewhere.finish(write, write.Pulled(), data)
	b.sanitized()
	if r := b.do(rw10(0x28, 0, 1), nil, 512); r.status != Good || !bytes.Equal(r.in, make([]byte, 512)) {
		t.Errorf("READ afterwards: %05x, % x", r.code(), r.in[:8])
	}
}

// TestSanitizeIsKeptFirst: SANITIZE with IMMED is answered when a restart would go on with it, and does
// nothing if none would.
func TestSanitizeIsKeptFirst(t *testing.T) {
	kept := &gatedKeeper{saves: make(chan error), seen: make(chan []byte, 1)}
	b := newBench(t, true, func(c *benchConfig, s *fakeStore) { c.Keeper, c.Logger = kept, quiet })
	copy(b.store.data, pattern(1, 512))
	for _, want := range []struct {
		err  error
		code int
	}{{errTest, 0x44400}, {nil, 0}} {
		task := b.task(sanitizeCDB(sanitizeNow|sanitizeBlockErase, 0), nil, 0)
		next := task.Start()
		if next != Wait || !bytes.Contains(<-kept.seen, []byte("Sanitize")) {
			t.Fatalf("SANITIZE is answered before it is kept: %v", next)
		}
		if !bytes.Equal(b.store.data[:512], pattern(1, 512)) {
			t.Fatal("data are gone before it is kept")
		}
		kept.saves <- want.err
		if want.err == nil {
			go func() { <-kept.seen; kept.saves <- nil }() // the end
		} else {
			if bytes.Contains(<-kept.seen, []byte("Sanitize")) {
				t.Error("the state that could not be kept is not undone")
			}
			kept.saves <- nil
		}
		if v := verdict(b.finish(task, Wait, nil)); v != want.code {
			t.Errorf("kept: %v; SANITIZE: %05x", want.err, v)
		}
		b.sanitized()
		if gone := bytes.Equal(b.store.data[:512], make([]byte, 512)); gone != (want.err == nil) {
			t.Errorf("kept: %v; data are gone: %v", want.err, gone)
		}
		if v := verdict(b.do(rw10(0x28, 0, 1), nil, 512)); v != 0 {
			t.Errorf("READ afterwards: %05x", v)
		}
	}
}

// gatedKeeper says what it is to keep, and waits for how that ends.
type gatedKeeper struct {
	seen  chan []byte
	saves chan error
}

func (k *gatedKeeper) Load() ([]byte, error) { return nil, nil }
func (k *gatedKeeper) Save(state []byte) error {
	k.seen <- state
	return <-k.saves
}
