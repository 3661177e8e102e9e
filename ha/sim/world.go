package sim

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// world is the clock, the queue of what is to happen, and the source of all chance.
type world struct {
	r     *rand.Rand
	now   time.Duration
	queue queue
	n     uint64
	trace uint64 // a hash of what has happened
	log   io.Writer
}

type happening struct {
	at  time.Duration
	n   uint64 // in the order of making, at the same time
	run func()
}

type queue []happening

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(happening)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1].run = nil
	*q = old[:len(old)-1]
	return x
}

// after calls f when d has passed.
func (w *world) after(d time.Duration, f func()) {
	w.n++
	heap.Push(&w.queue, happening{w.now + max(d, 0), w.n, f})
}

// step lets the next thing happen, if it does before the end.
func (w *world) step(end time.Duration) bool {
	if len(w.queue) == 0 || w.queue[0].at > end {
		w.now = end
		return false
	}
	h := heap.Pop(&w.queue).(happening)
	w.now = h.at
	w.note(uint64(h.at), h.n)
	h.run()
	return true
}

// note adds to the trace.
func (w *world) note(xs ...uint64) {
	for _, x := range xs {
		w.trace = (w.trace ^ x) * 0x100000001b3
	}
}

// between draws a duration.
func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.r.Int64N(int64(hi-lo)+1))
}

// oneIn is true once in n times.
func (w *world) oneIn(n int) bool { return w.r.IntN(n) == 0 }

func (w *world) logf(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, "%10.6f "+format+"\n", append([]any{w.now.Seconds()}, args...)...)
	}
}
