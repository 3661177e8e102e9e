package rdmatest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

const (
	sourceDepth = 32
	sourceSlot  = 256 << 10
)

// sourceSizes are the lengths of the Writes, and of the long Sends.
var sourceSizes = []int{16 << 10, 256 << 10, 4096, 64 << 10, 4095, 128 << 10}

// testSourceReused: memory of unsignalled Writes and Sends is overwritten as soon as a later request has
// completed, and the peer receives what was there before. All processors are kept busy meanwhile, so
// that bytes wait on their way.
func testSourceReused(t *testing.T, p Pair) {
	const long = 8 << 10
	all := rounds.Of(200, 2*sourceDepth)
	const slot = sourceSlot + long
	client, server := connect(t, p, options{
		memory: 2 * sourceDepth * slot, maxWork: 3 * sourceDepth, maxRecv: 2 * sourceDepth,
	})
	stop := keepBusy()
	defer stop()
	// Each end sends from the first half of its memory to the second half of the other's.
	ways := [][2]*end{{client, server}, {server, client}}
	at := func(round int) (from, to int) {
		from = round % sourceDepth * slot
		return from, sourceDepth*slot + from
	}
	size := func(round int) int { return sourceSizes[round%len(sourceSizes)] }
	post := func(from, to *end, round int) {
		here, there := at(round)
		n := size(round)
		fill(from.bytes(here, n), uint64(round))
		fill(from.bytes(here+sourceSlot, long), uint64(round)+1<<20)
		to.receive(uint64(2*round), there+sourceSlot, long)
		to.receive(uint64(2*round+1), 0, 0)
		from.post(
			from.write(0, 0, here, n, to, there),
			from.send(0, 0, here+sourceSlot, long),
			from.send(uint64(round), rdma.Signaled, 0, 0))
	}
	sent := map[*end]int{}
	reuse := func(from *end) {
		for from.sends.cq.Poll(from.sends.one[:]) > 0 {
			c := from.sends.one[0]
			if c.Status != rdma.StatusOK || c.ID != uint64(sent[from]) {
				t.Fatalf("completion %+v, want %d", c, sent[from])
			}
			here, _ := at(sent[from])
			clear(from.bytes(here, slot))
			sent[from]++
		}
	}
	for round := range all + sourceDepth {
		if old := round - sourceDepth; old >= 0 {
			_, there := at(old)
			n := size(old)
			for _, w := range ways {
				from, to := w[0], w[1]
				to.recvs.want(rdma.OpReceive, uint64(2*old))
				to.recvs.want(rdma.OpReceive, uint64(2*old+1))
				for sent[from] <= old {
					reuse(from)
				}
				same(t, "what was written", to.bytes(there, n), filled(n, uint64(old)))
				same(t, "the message", to.bytes(there+sourceSlot, long), filled(long, uint64(old)+1<<20))
			}
		}
		for _, w := range ways {
			if round < all {
				post(w[0], w[1], round)
			}
			reuse(w[0])
		}
	}
}

// keepBusy has a goroutine compute on each processor, until stop is called.
func keepBusy() (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !over.Load() {
			}
		})
	}
	return func() {
		over.Store(true)
		wg.Wait()
	}
}
