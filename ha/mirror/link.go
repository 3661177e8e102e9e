package mirror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"oneshot/ha/fabric"
	"oneshot/ha/replica"
)

// parcel is what waits for a link: frames, and parts of the arena that are to be in the other node's memory before it gets certain of
// these frames. Its memory is used again.
type parcel struct {
	frames []byte
	runs   []fabric.Run
	marks  []mark
	bytes  int64 // of frames and runs
}

// mark says that runs up to one go before the frames from a place on.
type mark struct{ at, runs int }

// put notes a part of the arena that goes before the next frame. What continues the run before is one Write with it.
func (p *parcel) put(r fabric.Run) {
	p.bytes += r.Len
	n := len(p.marks)
	if n == 0 || p.marks[n-1].at != len(p.frames) {
		p.marks = append(p.marks, mark{len(p.frames), len(p.runs)})
		n++
	}
	if k := len(p.runs); k > 0 && p.marks[n-1].runs == k && (n == 1 || p.marks[n-2].runs < k) {
		if last := &p.runs[k-1]; last.Addr+last.Len == r.Addr && last.Grant == r.Grant {
			last.Len += r.Len
			return
		}
	}
	p.runs = append(p.runs, r)
	p.marks[n-1].runs = len(p.runs)
}

// maxPosted is how many bytes of a parcel are posted at once. What overtakes others goes between two pieces.
const maxPosted = fabric.InFlight / 2

// sendOn sends all that the parcel has, which is empty after that. beats are what overtakes it, and are asked for at its start and between
// its pieces.
func (p *parcel) sendOn(l *fabric.Link, beats func() []byte, patience time.Duration) error {
	if err := l.Say(beats(), patience); err != nil {
		return err
	}
	said, put := 0, 0
	for _, m := range p.marks {
		if err := l.Say(p.frames[said:m.at], patience); err != nil {
			return err
		}
		for said = m.at; put < m.runs; put++ {
			if err := p.putOn(l, p.runs[put], beats, patience); err != nil {
				return err
			}
		}
	}
	if err := l.Say(p.frames[said:], patience); err != nil {
		return err
	}
	*p = parcel{frames: kept(p.frames), runs: p.runs[:0], marks: p.marks[:0]}
	return l.Commit(patience)
}

// putOn puts a run, in pieces if it is long.
func (p *parcel) putOn(l *fabric.Link, r fabric.Run, beats func() []byte, patience time.Duration) error {
	for r.Len > 0 {
		n := min(r.Len, maxPosted)
		if size := l.Size(); size > 0 && int64(size)+n > maxPosted {
			if err := l.Commit(patience); err != nil {
				return err
			}
			if err := l.Say(beats(), patience); err != nil {
				return err
			}
		}
		if err := l.Put(fabric.Run{Addr: r.Addr, Len: n, Grant: r.Grant}, patience); err != nil {
			return err
		}
		r.Addr, r.Len = r.Addr+n, r.Len-n
	}
	return nil
}

// place has the data of records written into the other node's arena, before the frame that is sent next. It returns how many bytes of it
// bring a copy level.
func (c *conn) place(recs []replica.Record) (copied int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range recs {
		r := &recs[i]
		if !r.HasDataFor(c.peer) {
			continue
		}
		c.parcel.put(fabric.Run{Addr: r.Addr, Len: r.Len, Grant: c.theirs})
		if r.Kind == replica.KindResync {
			copied += r.Len
		}
	}
	return copied
}

// sendNow is writeNow over a link.
func (c *conn) sendNow() bool {
	if c.unlinked {
		return true
	}
	p := &c.parcel
	n := int64(len(c.first)) + p.bytes
	// What is said between two Writes, and the beats before them, leave by themselves.
	works := len(p.runs) + len(p.marks) + 1
	if c.writing || n == 0 || n > maxTry || !c.link.HasRoom(works, int(n), len(c.first)+len(p.frames)) {
		return false
	}
	if err := p.sendOn(c.link, c.ownBeats, c.m.silence()); err != nil {
		c.end(err)
	}
	return true
}

// fetch reads a part of the other node's arena, while there is a link.
func (c *conn) fetch(r fabric.Run, done func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unlinked {
		return net.ErrClosed
	}
	return c.link.Fetch(r, done)
}

// writeOn is write over a link.
func (c *conn) writeOn() {
	defer c.close()
	idle := time.NewTicker(4 * c.m.cfg.Heartbeat)
	defer idle.Stop()
	var p parcel
	patience := c.m.silence()
	for {
		isIdle := false
		select {
		case <-c.ended:
			return
		case <-c.wake:
		case <-idle.C:
			isIdle = true
			if c.link.Silence() > patience {
				c.end(os.ErrDeadlineExceeded)
				return
			}
		}
		for {
			c.mu.Lock()
			p, c.parcel = c.parcel, p
			if isIdle {
				c.first = appendFrame(c.first, &c.enc, frameIdle, 0, nil)
				isIdle = false
			}
			c.writing = len(c.first) > 0 || p.bytes > 0
			over := !c.writing
			c.mu.Unlock()
			if over {
				break
			}
			if err := p.sendOn(c.link, c.newBeats, patience); err != nil {
				c.end(err)
				return
			}
		}
	}
}

// newBeats returns what is to overtake others, to the connection's goroutine, which has it until the next call.
func (c *conn) newBeats() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.first = c.first, kept(c.said)
	return c.said
}

// ownBeats is newBeats for who holds the lock.
func (c *conn) ownBeats() []byte {
	b := c.first
	c.first = kept(b)
	return b
}

// watch closes the connection when the one that has proved who the other node is ends, or brings anything: the node has left, or is refused.
func (c *conn) watch() {
	_, err := c.c.Read(make([]byte, 1))
	c.end(fmt.Errorf("the stream that lets it in has ended: %w", err))
}

var errNoInvitation = errors.New("the other node does not invite this one")

// join connects by a queue pair with a node that accepts, over a connection on which both have said who they are.
func (m *Mirror) join(ctx context.Context, c net.Conn) (*fabric.Link, error) {
	var f received
	head, data, err := f.readPrefix(c, invitationMax, 0)
	if err == nil {
		err = f.readRest(c, head, data)
	}
	if err != nil {
		return nil, err
	}
	if f.kind != frameInvitation || f.invitation.Arena.Size != uint64(m.cfg.Heap) {
		return nil, errNoInvitation
	}
	return m.opts.Fabric.Connect(ctx, m.shared, f.invitation)
}

// invite lets the node at the other end of a connection connect by a queue pair.
func (m *Mirror) invite(ctx context.Context, c net.Conn) (*fabric.Link, error) {
	offer, invitation := m.opts.Fabric.Offer(m.shared)
	b := appendFrame(nil, new(coder), frameInvitation, 0, func(c *coder) { c.invitation(&invitation) })
	if _, err := c.Write(b); err != nil {
		offer.Withdraw()
		return nil, err
	}
	return offer.Accept(ctx)
}
