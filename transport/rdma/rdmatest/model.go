package rdmatest

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"oneshot/transport/rdma"
)

// The memory of each end in the model test. What an end posts takes its data from source, or
// from sinks that Reads before it have filled; it reads and writes the target of the other
// end; messages arrive there in inbox.
const (
	modelArea = 8 << 10
	sourceAt  = 0 * modelArea
	sinkAt    = 1 * modelArea
	targetAt  = 2 * modelArea
	inboxAt   = 3 * modelArea
	modelLen  = 4 * modelArea

	modelWork = 12
	modelMost = 600 // bytes of one request
)

// program is what one end posts, in batches, and what the model makes of it.
type program struct {
	from, to *end
	batches  [][]rdma.Work
	signaled []rdma.Work // those of which a completion comes, in order
	inbox    [][]byte    // messages that arrive, in order
	mine     []byte      // model of from's memory
	theirs   []byte      // model of to's memory
	done     int         // completions seen
}

// span is part of memory that a Read under way uses.
type span struct{ off, n int }

func (s span) overlaps(off, n int) bool { return off < s.off+s.n && s.off < off+n }

// draw makes a program. Requests that depend on Reads before them have a fence, others
// perhaps; so what happens is what the model does one after the other.
func draw(t *rapid.T, from, to *end, l rdma.Limits, d Defects, name string) *program {
	p := &program{from: from, to: to}
	p.mine = append(p.mine, from.mem.Bytes()...)
	p.theirs = append(p.theirs, to.mem.Bytes()...)
	var sources, sinks []span // of Reads that no fence has waited for
	nextSink, unsignaled := sinkAt, 0
	kinds := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}
	if d.Fences { // there is no need for them without Reads
		kinds = kinds[:2]
	}
	n := rapid.IntRange(1, 40).Draw(t, name+" requests")
	var batch []rdma.Work
	for i := range n {
		w := rdma.Work{ID: uint64(i), RemoteSTag: to.mem.STag()}
		kind := rapid.SampledFrom(kinds).Draw(t, "op")
		least := 0
		if kind == rdma.OpRead && d.EmptyReads {
			least = 1
		}
		size := rapid.IntRange(least, modelMost).Draw(t, "bytes")
		off := rapid.IntRange(sourceAt, nextSink-size).Draw(t, "from")
		at := targetAt + rapid.IntRange(0, modelArea-size).Draw(t, "to")
		if kind == rdma.OpRead && nextSink+size > targetAt {
			kind = rdma.OpWrite
		}
		fence := rapid.Bool().Draw(t, "fence")
		for _, s := range sinks {
			fence = fence || kind != rdma.OpRead && s.overlaps(off, size)
		}
		for _, s := range sources {
			fence = fence || kind == rdma.OpWrite && s.overlaps(at, size)
		}
		if fence {
			w.Flags |= rdma.Fence
			sources, sinks = nil, nil
		}
		w.Op, w.RemoteOffset = kind, to.to(at)
		most := l.MaxSGE
		switch kind {
		case rdma.OpSend:
			p.inbox = append(p.inbox, append([]byte(nil), p.mine[off:off+size]...))
		case rdma.OpWrite:
			copy(p.theirs[at:], p.mine[off:off+size])
		default:
			off, nextSink, most = nextSink, nextSink+size, l.MaxReadSGE
			copy(p.mine[off:off+size], p.theirs[at:])
			sources, sinks = append(sources, span{at, size}), append(sinks, span{off, size})
		}
		w.SGL = cut(t, from, off, size, most)
		unsignaled++
		if i == n-1 || unsignaled == modelWork/2 || rapid.Bool().Draw(t, "signalled") {
			w.Flags |= rdma.Signaled
			unsignaled = 0
			p.signaled = append(p.signaled, w)
		}
		if batch = append(batch, w); i == n-1 || rapid.IntRange(0, 3).Draw(t, "post") == 0 {
			p.batches = append(p.batches, batch)
			batch = nil
		}
	}
	return p
}

// cut makes a list of up to most elements of memory.
func cut(t *rapid.T, e *end, off, n, most int) (l []rdma.SGE) {
	for len(l) < min(most, 5)-1 && n > 0 {
		k := rapid.IntRange(0, n).Draw(t, "element")
		l = append(l, e.sge(off, k)...)
		off, n = off+k, n-k
	}
	return append(l, e.sge(off, n)...)
}

// receives posts where the messages go: one behind the other.
func (p *program) receives() {
	for i := range p.inbox {
		p.to.receive(uint64(i), inboxAt+i%8*(modelArea/8), modelMost)
	}
}

// step posts the next batch. False: there is none.
func (p *program) step(t *rapid.T) bool {
	if len(p.batches) == 0 {
		return false
	}
	ws := p.batches[0]
	for p.batches = p.batches[1:]; len(ws) > 0; {
		n, err := p.from.qp.Post(ws)
		if ws = ws[n:]; err == nil {
			continue
		}
		if !errors.Is(err, rdma.ErrFull) {
			t.Fatalf("Post: %v", err)
		}
		if p.done == len(p.signaled) {
			t.Fatalf("the queue is full, although all that was signalled has completed")
		}
		p.completion()
	}
	return true
}

func (p *program) completion() {
	w := p.signaled[p.done]
	p.from.sends.want(w.Op, w.ID)
	p.done++
}

// finish waits for the end and compares messages; memory is compared when both programs are
// done.
func (p *program) finish(t *rapid.T) {
	for p.done < len(p.signaled) {
		p.completion()
	}
	p.from.sends.none()
	for i, want := range p.inbox {
		c := p.to.recvs.want(rdma.OpReceive, uint64(i))
		if c.Bytes != len(want) {
			t.Fatalf("message %d has %d bytes, want %d", i, c.Bytes, len(want))
		}
		if i >= len(p.inbox)-8 { // those before are written over
			same(t, "message", p.to.bytes(inboxAt+i%8*(modelArea/8), c.Bytes), want)
		}
	}
	// A Read tells that the Writes before it are in place.
	p.from.post(p.from.read(1, rdma.Signaled, modelLen, 1, p.to, targetAt))
	p.from.sends.want(rdma.OpRead, 1)
}

// Random work in both directions leaves the memory that a plain model of it does.
func testModel(t *testing.T, p Pair) {
	l := p.Client.Limits()
	rapid.Check(t, func(t *rapid.T) {
		o := options{memory: modelLen + 1, maxWork: modelWork, reads: rapid.IntRange(1, 4).Draw(t, "reads")}
		client, server := connect(t, p, o)
		fill(client.mem.Bytes(), 1)
		fill(server.mem.Bytes(), 2)
		there := draw(t, client, server, l, p.Defects, "client's")
		back := draw(t, server, client, l, p.Defects, "server's")
		there.receives()
		back.receives()
		for more := true; more; {
			more = there.step(t)
			more = back.step(t) || more
		}
		there.finish(t)
		back.finish(t)
		for _, x := range []*program{there, back} {
			same(t, "source", x.from.bytes(sourceAt, modelArea), x.mine[sourceAt:sinkAt])
			same(t, "what was read", x.from.bytes(sinkAt, modelArea), x.mine[sinkAt:targetAt])
			same(t, "what was written", x.to.bytes(targetAt, modelArea), x.theirs[targetAt:inboxAt])
		}
	})
}
