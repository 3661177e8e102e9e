package sim

import (
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

func (h *happening) before(o *happening) bool { return h.at < o.at || h.at == o.at && h.n < o.n }

// queue is a heap in which each has four below it. container/heap would allocate for each that it takes out.
type queue []happening

func (q *queue) push(h happening) {
	*q = append(*q, h)
	s := *q
	i := len(s) - 1
	for i > 0 && h.before(&s[(i-1)/4]) {
		s[i] = s[(i-1)/4]
		i = (i - 1) / 4
	}
	s[i] = h
}

func (q *queue) pop() happening {
	s := *q
	first, last := s[0], s[len(s)-1]
	s[len(s)-1].run = nil
	s = s[:len(s)-1]
	*q = s
	if len(s) == 0 {
		return first
	}
	i := 0
	for {
		least, end := 4*i+1, min(4*i+5, len(s))
		if least >= end {
			break
		}
		for k := least + 1; k < end; k++ {
			if s[k].before(&s[least]) {
				least = k
			}
		}
		if last.before(&s[least]) {
			break
		}
		s[i] = s[least]
		i = least
	}
	s[i] = last
	return first
}

// after calls f when d has passed.
func (w *world) after(d time.Duration, f func()) {
	w.n++
	w.queue.push(happening{w.now + max(d, 0), w.n, f})
}

// step lets the next thing happen, if it does before the end.
func (w *world) step(end time.Duration) bool {
	if len(w.queue) == 0 || w.queue[0].at > end {
		w.now = end
		return false
	}
	h := w.queue.pop()
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
