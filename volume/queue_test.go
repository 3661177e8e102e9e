package volume

import (
	"slices"
	"testing"
)

// Whoever leaves the queue of a range, at whatever place, leaves the order of the others, and no trace; who comes later is behind them.
func TestQueueIsLeft(t *testing.T) {
	const n = 4
	for left := range 1 << n { // who of them leaves
		var l rangeLock
		set := setOf(0, 512)
		if !l.tryExclusive(&set) {
			t.Fatal("the range is not free")
		}
		waits := make([]Request, n+1)
		var want []*Request
		for i := range waits {
			r := &waits[i]
			r.holdLen = 512
			kind := holdShared
			if i%2 == 1 {
				kind = holdExclusive
			}
			if i == n {
				for k := range n {
					if left>>k&1 != 0 && !l.withdraw(&waits[k]) {
						t.Fatal("who waits is not in the queue")
					}
				}
			}
			if l.enqueue(r, kind) {
				t.Fatal("it is granted")
			}
			if i == n || left>>i&1 == 0 {
				want = append(want, r)
			}
		}
		var got []*Request
		for r := l.first; r != nil; r = r.queueNext {
			got = append(got, r)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%04b: %d are in the queue, or not in their order, want %d", left, len(got), len(want))
		}
		exclusive := slices.ContainsFunc(want, func(r *Request) bool { return r.queueKind == holdExclusive })
		if l.queued.all != set || l.queued.exclusive.empty() == exclusive {
			t.Errorf("%04b: what they want: %+v", left, l.queued)
		}
		for _, r := range want {
			l.withdraw(r)
		}
		if l.queued != (waiting{}) || l.end != &l.first {
			t.Errorf("%04b: traces are left", left)
		}
	}
}

// BenchmarkComesBehind is a write that comes to a range that others wait for, 32,000 of them, because the store hangs.
func BenchmarkComesBehind(b *testing.B) {
	var l rangeLock
	bars := &Request{transfer: transfer{writes: true}, work: work{hold: holdShared, holdLen: 4096}}
	l.tryShared(0, 4096)
	l.bar(bars)
	waits := make([]Request, 32000+b.N)
	for i := range waits[:32000] {
		waits[i].holdLen = 4096
		l.enqueue(&waits[i], holdShared)
	}
	b.ResetTimer()
	for i := range b.N {
		r := &waits[32000+i]
		r.holdLen = 4096
		l.enqueue(r, holdShared)
	}
}

// BenchmarkPassesBy is a write that comes back from a stripe in which 32,000 others wait for bytes that somebody bars.
func BenchmarkPassesBy(b *testing.B) {
	var l rangeLock
	bars := &Request{transfer: transfer{writes: true}, work: work{hold: holdShared, holdLen: 4096}}
	l.tryShared(0, 4096)
	l.bar(bars)
	waits := make([]Request, 32000)
	for i := range waits {
		waits[i].holdLen = 4096
		l.enqueue(&waits[i], holdShared)
	}
	for b.Loop() {
		r := Request{work: work{holdOff: 8192, holdLen: 4096}}
		if !l.enqueue(&r, holdShared) {
			b.Fatal("it waits")
		}
		l.leaveShared(8192, 4096)
	}
}
