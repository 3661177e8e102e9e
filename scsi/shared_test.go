package scsi

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
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
func ready(target *Target, initiator string) *Nexus {
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
		var good atomic.Uint64
		var wg sync.WaitGroup
		for k, c := range conns {
			size, lba := 512, uint64(16)
			if k%2 == 1 {
				size, lba = 4096, 2
				c = newTestConn(t, ready(other, "iqn.2026-11.example.clients:b,i,0x400000000002"))
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
	elsewhere.nexus = ready(other, "iqn.2026-11.example.clients:b,i,0x400000000002")
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
