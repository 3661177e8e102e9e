//go:build !race

package replica

import (
	"testing"
	"time"
)

// pair are a primary and another member of S, whose disks do at once what they get.
type pair struct {
	now    time.Duration
	cores  [2]*Core
	todo   []happening
	recs   []Record // of posts in todo
	addr   int64
	good   int // answers
	others func(node int, a Action)
}

// happening is an event of a node. Which one, says the field that is not empty.
type happening struct {
	node   int
	done   uint64
	ack    Ack
	stream uint64 // of a post
	recs   []Record
	bell   Bell
	beat   Beat
	echo   Echo
}

// run lets something happen to a node, and all that follows from it.
func (p *pair) run(node int, e Event) {
	p.take(node, p.cores[node].Step(p.now, e))
	for i := 0; i < len(p.todo); i++ {
		h := p.todo[i]
		c, from := p.cores[h.node], ID(1-h.node)
		switch {
		case h.done != 0:
			p.take(h.node, c.Step(p.now, Done{ID: h.done}))
		case h.ack.Stream != 0:
			p.take(h.node, c.Step(p.now, Message{From: from, Msg: h.ack}))
		case h.stream != 0:
			p.take(h.node, c.Step(p.now, Rang{From: from, Stream: h.stream, Recs: h.recs, Bell: h.bell}))
		case h.beat.No != 0:
			p.take(h.node, c.Step(p.now, BeatFrom{From: from, Beat: h.beat}))
		case h.echo.No != 0:
			p.take(h.node, c.Step(p.now, EchoFrom{From: from, Echo: h.echo}))
		}
	}
	p.todo, p.recs = p.todo[:0], p.recs[:0]
}

// take keeps what follows from actions, which are valid until the next step only.
func (p *pair) take(node int, actions []Action) {
	for _, a := range actions {
		h := happening{node: node}
		switch a := a.(type) {
		case *Post:
			at := len(p.recs)
			p.recs = append(p.recs, a.Recs...)
			h = happening{node: 1 - node, stream: a.Stream, recs: p.recs[at:], bell: a.Bell}
		case *SendAck:
			h = happening{node: 1 - node, ack: a.Ack}
		case *SendBeat:
			h = happening{node: 1 - node, beat: a.Beat}
		case *SendEcho:
			h = happening{node: 1 - node, echo: a.Echo}
		case *Apply:
			h.done = a.ID
		case *ReadFor:
			h.done = a.ID
		case *Answer:
			p.addr = a.Addr
			if a.Status == Good {
				p.good++
			}
			continue
		default:
			p.others(node, a)
			continue
		}
		p.todo = append(p.todo, h)
	}
}

// TestAllocations: writes and reads take no memory of the Go heap, on neither node.
func TestAllocations(t *testing.T) {
	cfg := Config{
		Copies: NodesOf(0, 1), Quorum: 2, MinCopies: 1, Stores: []Store{{Size: 1 << 20}}, Granule: 4096, Region: 1 << 20,
		Heap: 1 << 20, Unit: 512, Ring: 1 << 14, Heartbeat: time.Hour, Lease: 4 * time.Hour, Grace: 5 * time.Hour, Confirm: true,
		SlowCopy: time.Hour, FlushEvery: time.Hour, SaveEvery: time.Hour, Copying: 4,
	}
	p := &pair{}
	for i := range p.cores {
		c := cfg
		c.Self, c.Incarnation = ID(i), 1
		p.cores[i] = New(c, 0, &Memory{}, Saved{})
	}
	var later []func()
	p.others = func(node int, a Action) {
		later = append(later, func() {
			switch a := a.(type) {
			case Send:
				p.run(1-node, Message{From: ID(node), Msg: a.Msg})
			case Propose:
				p.run(0, Agreed(a))
				p.run(1, Agreed(a))
			case Save:
				p.run(node, Done{ID: a.ID})
			case Sync:
				p.run(node, Done{ID: a.ID})
			}
		})
	}
	all := func(node int, e Event) {
		p.run(node, e)
		for len(later) > 0 {
			f := later[0]
			later = later[1:]
			f()
		}
	}
	first := View{Version: 1, Term: 1, Primary: 0, InSync: NodesOf(0, 1), First: 1}
	for i := range p.cores {
		all(i, Up{Peer: ID(1 - i)})
	}
	for i := range p.cores {
		all(i, Agreed{View: first})
	}
	for range 100 {
		if s := p.cores[0].State(); s.Role == Primary && p.cores[0].Streams(1) {
			break
		}
		p.now += 50 * time.Millisecond
		all(0, Tick{})
		all(1, Tick{})
	}
	write := func(times int) {
		for range times {
			all(0, Reserve{ID: 1, Len: 4096})
			all(0, Write{ID: 1, Off: 8192, Len: 4096, Addr: p.addr})
			all(0, Read{ID: 2, Off: 8192, Len: 4096})
		}
	}
	write(6000) // slices get their lengths
	all(0, Flush{ID: 3})
	p.now += markEvery
	all(1, Tick{})
	all(0, Tick{})
	if s := p.cores[0].State(); s.Retained != 0 || s.Last != 6000 || s.Role != Primary || s.View.InSync != NodesOf(0, 1) {
		t.Fatalf("%v", p.cores[0])
	}
	good := p.good
	if n := testing.AllocsPerRun(10, func() { write(100) }); n != 0 {
		t.Errorf("%v allocations in 100 writes and reads", n)
	}
	if n := p.good - good; n != 11*300 {
		t.Errorf("%d answers to %d requests", n, 11*300)
	}
}
