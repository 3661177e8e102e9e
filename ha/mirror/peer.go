package mirror

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"oneshot/ha/replica"
)

const (
	greetWithin   = 5 * time.Second
	dialAgain     = 50 * time.Millisecond // at first, and then after twice as long each time,
	dialAgainMost = time.Second           // up to this
	maxGreeting   = 16                    // connections that have not said who they are
)

// conn is a connection with another node. send may be called from any goroutine.
type conn struct {
	m     *Mirror
	peer  replica.ID
	c     net.Conn
	wake  chan struct{} // a token: there is something to write
	ended chan struct{}
	once  sync.Once

	mu     sync.Mutex // not held over writes
	frames [][]byte
	beats  [][]byte // overtake frames
	bytes  int64    // of frames
}

func newConn(m *Mirror, peer replica.ID, c net.Conn) *conn {
	return &conn{m: m, peer: peer, c: c, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// close ends the connection. Its goroutines end soon.
func (c *conn) close() {
	c.once.Do(func() {
		close(c.ended)
		_ = c.c.Close()
	})
}

// send queues a frame, which is the connection's from now on.
func (c *conn) send(frame []byte, overtakes bool) {
	c.mu.Lock()
	if overtakes {
		c.beats = append(c.beats, frame)
	} else {
		c.frames = append(c.frames, frame)
		c.bytes += int64(len(frame))
	}
	full := c.bytes > c.m.maxQueue() || len(c.beats) > 1000
	c.mu.Unlock()
	if full { // the peer takes nothing
		c.close()
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write writes what is queued, and now and then something that says that the node is there.
func (c *conn) write() {
	defer c.close()
	idle := time.NewTicker(4 * c.m.cfg.Heartbeat)
	defer idle.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-c.wake:
		case <-idle.C:
			c.send(appendFrame(nil, frameIdle, 0, nil), true)
		}
		c.mu.Lock()
		buffers := append(net.Buffers(c.beats), c.frames...)
		c.beats, c.frames, c.bytes = nil, nil, 0
		c.mu.Unlock()
		if len(buffers) == 0 {
			continue
		}
		_ = c.c.SetWriteDeadline(time.Now().Add(c.m.silence()))
		if _, err := buffers.WriteTo(c.c); err != nil {
			return
		}
	}
}

// read gives the mirror what comes, until the connection ends.
func (c *conn) read() error {
	defer c.close()
	r := bufio.NewReaderSize(c.c, 64<<10)
	for {
		_ = c.c.SetReadDeadline(time.Now().Add(c.m.silence()))
		f, err := readFrame(r, c.peer, maxHead, c.m.cfg.Heap)
		if err == nil && f.kind == frameGreeting {
			err = errors.New("a second greeting came")
		}
		if err == nil && f.post != nil {
			err = c.m.checkPost(f.post)
		}
		if err != nil {
			return err
		}
		if f.kind != frameIdle {
			c.m.push(item{conn: c, frame: f})
		}
	}
}

// serve runs a connection with a node that has said who it is.
func (c *conn) serve() {
	c.m.push(item{conn: c, up: true})
	var wg sync.WaitGroup
	wg.Go(c.write)
	err := c.read()
	wg.Wait()
	c.m.push(item{conn: c, down: true})
	if c.m.ctx.Err() == nil {
		c.m.opts.Log.Info("a connection of a mirror has ended", "with", c.peer, "why", err)
	}
}

// greetingTo is what this node says first.
func (m *Mirror) greetingTo(to replica.ID) []byte {
	g := greeting{greetingMagic, m.sameness, m.cfg.Self, to}
	return appendFrame(nil, frameGreeting, 0, func(c *coder) { c.greeting(&g) })
}

// greeted reads the other one's greeting.
func (m *Mirror) greeted(c net.Conn) (replica.ID, error) {
	f, err := readFrame(c, 0, greetingLen, 0)
	g := &f.greeting
	switch {
	case err != nil:
		return 0, err
	case f.kind != frameGreeting || g.magic != greetingMagic:
		return 0, errors.New("it does not speak as a mirror of this version does")
	case g.mirror != m.sameness:
		return 0, fmt.Errorf("node %d has another configuration of the mirror %s: sizes, copies and times have to be the same on all nodes", g.from, m.opts.Name)
	case g.to != m.cfg.Self || g.from == m.cfg.Self || !m.cfg.Copies.Has(g.from):
		return 0, fmt.Errorf("it is node %d and takes this one for node %d, which is node %d", g.from, g.to, m.cfg.Self)
	}
	return g.from, nil
}

// dialOn keeps a connection with a node of a higher number.
func (m *Mirror) dialOn(peer replica.ID) {
	wait := dialAgain
	for m.ctx.Err() == nil {
		began := time.Now()
		if err := m.dial(peer); err != nil {
			m.opts.Log.Debug("a node of a mirror cannot be reached", "node", peer, "why", err)
		}
		if wait *= 2; time.Since(began) > dialAgainMost {
			wait = dialAgain
		}
		wait = min(wait, dialAgainMost)
		select {
		case <-m.ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (m *Mirror) dial(peer replica.ID) error {
	ctx, cancel := context.WithTimeout(m.ctx, greetWithin)
	defer cancel()
	c, err := m.opts.Dial(ctx, peer)
	if err != nil {
		return err
	}
	conn := newConn(m, peer, c)
	stop := context.AfterFunc(m.ctx, conn.close)
	defer stop()
	defer conn.close()
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	if _, err := c.Write(m.greetingTo(peer)); err != nil {
		return err
	}
	from, err := m.greeted(c)
	if err != nil {
		return err
	}
	if from != peer {
		return fmt.Errorf("node %d answers in the place of node %d", from, peer)
	}
	_ = c.SetDeadline(time.Time{})
	conn.serve()
	return nil
}

// acceptOn takes connections of nodes with lower numbers.
func (m *Mirror) acceptOn() {
	places := make(chan struct{}, maxGreeting)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := m.opts.Listener.Accept()
		if m.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			select {
			case <-m.ctx.Done():
			case <-time.After(dialAgain):
			}
			continue
		}
		select {
		case places <- struct{}{}:
		case <-m.ctx.Done():
			_ = c.Close()
			return
		}
		wg.Go(func() { m.admit(c, func() { <-places }) })
	}
}

// admit serves a connection. greeted is called when it has said who it is, or will not.
func (m *Mirror) admit(c net.Conn, greeted func()) {
	conn := newConn(m, 0, c)
	stop := context.AfterFunc(m.ctx, conn.close)
	defer stop()
	defer conn.close()
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	from, err := m.greeted(c)
	greeted()
	if err == nil && from > m.cfg.Self {
		err = fmt.Errorf("node %d makes a connection, which is for this one to make", from)
	}
	if err == nil {
		_, err = c.Write(m.greetingTo(from))
	}
	if err != nil {
		m.opts.Log.Warn("a connection to a mirror was refused", "from", c.RemoteAddr(), "why", err)
		return
	}
	conn.peer = from
	_ = c.SetDeadline(time.Time{})
	conn.serve()
}

// checkPost refuses what does not fit this mirror. The core relies on it.
func (m *Mirror) checkPost(p *post) error {
	rest := p.data
	for i := range p.recs {
		r := &p.recs[i]
		inStore := r.Off >= 0 && r.Len > 0 && r.Off <= m.size && r.Len <= m.size-r.Off
		inHeap := r.Addr >= 0 && r.Addr <= m.cfg.Heap && r.Len <= m.cfg.Heap-r.Addr
		needsHeap := r.Kind == replica.KindWrite || r.Kind == replica.KindResync
		switch {
		case r.Kind < replica.KindWrite || r.Kind > replica.KindNone || r.Kind == replica.KindGrow || r.Kind == replica.KindFit:
			return fmt.Errorf("record %d is of kind %d, which a mirror of one size does not have", r.Seq, r.Kind)
		case !inStore || needsHeap && !inHeap:
			return fmt.Errorf("record %d, %d bytes at %d from address %d, is not within the store or the memory", r.Seq, r.Len, r.Off, r.Addr)
		case i > 0 && r.Seq != p.recs[i-1].Seq+1 || i == 0 && r.Seq != p.bell.First:
			return fmt.Errorf("record %d is out of order", r.Seq)
		}
		if !r.HasDataFor(m.cfg.Self) {
			continue
		}
		if int64(len(rest)) < r.Len {
			return fmt.Errorf("the data of record %d are missing", r.Seq)
		}
		if sumOf(rest[:r.Len]) != r.Sum {
			return fmt.Errorf("the data of record %d have changed on their way: their checksum is wrong", r.Seq)
		}
		rest = rest[r.Len:]
	}
	if len(rest) > 0 {
		return errors.New("there are data that no record has")
	}
	return nil
}
