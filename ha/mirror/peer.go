package mirror

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"oneshot/ha/fabric"
	"oneshot/ha/replica"
	"oneshot/internal/invariant"
	"oneshot/internal/loglimit"
)

const (
	greetWithin   = 5 * time.Second
	dialAgain     = 50 * time.Millisecond // at first, and then after twice as long each time,
	dialAgainMost = time.Second           // up to this
	maxGreeting   = 16                    // connections that have not said who they are
)

// conn is a connection with another node.
//
// What the owner of the core sends gathers in a buffer, and is written when it has taken all that had come:
// one write for many frames. The owner writes what is alone, if that does not wait; a goroutine of the connection's writes what is long,
// what the socket does not take at once, and what others may follow soon. What comes waits for the core in frames that are used again. A peer that sends faster than the
// core takes it is read more slowly: see room.
type conn struct {
	m     *Mirror
	peer  replica.ID
	beats bool // nothing else
	c     net.Conn
	wake  chan struct{} // a token: there is something to write
	taken chan struct{} // a token: the core has taken a frame
	begun chan struct{} // closed: the core knows the connection, and what comes
	ended chan struct{}
	once  sync.Once
	why   error // this end has ended it; of who has called close
	spoke bool  // the peer has said something that is taken; of who reads

	// Of who owns the core.
	queued bool         // there is something that flush has not told
	beat   replica.Beat // to be sent with the next flush: an answer to the newest one proves what those before it would
	beaten bool         // there is one

	theirs uint64 // the grant that the peer has given this node last, as far as it matters

	try  tryWriter    // nil: only the connection's goroutine writes
	link *fabric.Link // takes all that follows the greetings; nil: c does

	linking sync.Mutex // a leaf, held when link is set, and by who closes

	mu       sync.Mutex // not held over writes that wait
	enc      coder
	queue    queue
	parcel   parcel // in the place of queue, over a link
	unlinked bool   // the link is freed, or about to be
	first    []byte // beats: they overtake frames
	said     []byte // beats that are being sent over a link; of the connection's goroutine
	writing  bool   // the connection's goroutine has something to write
	left     bool   // a part of what the owner of the core has written

	unread sync.Mutex  // taken last; guards what follows
	idle   []*received // to be used again
	kept   int         // bytes of memory that those have for data
	held   int64       // bytes that wait for the core
}

const (
	// maxHeld is how many bytes of a connection wait for the core, unless one frame alone is longer.
	maxHeld = 4 << 20
	// frameCosts is what each frame counts for besides its own bytes.
	frameCosts = 1 << 10
	// maxKept bounds a buffer that is kept to be used again: the longest frame of a write fits. The buffers that are kept have twice
	// as much together; so have the frames, which are maxIdle at most.
	maxKept = 4 << 20
	maxIdle = 16
	// readsAtOnce is what TLS returns at once. Of longer data most goes to its place without another copy.
	readsAtOnce = 16 << 10
)

// tryWriter is a connection that can be written to without waiting: see quorum.Stream.
type tryWriter interface {
	CanTry() bool
	TryWrite(b []byte) (all bool, err error)
	Flush() error
}

// maxTry is how many bytes the owner of the core writes itself: what encrypting more takes others can use.
const maxTry = 64 << 10

func newConn(m *Mirror, peer replica.ID, c net.Conn) *conn {
	try, _ := c.(tryWriter)
	if try != nil && !try.CanTry() {
		try = nil
	}
	return &conn{try: try, m: m, peer: peer, c: c, wake: make(chan struct{}, 1), taken: make(chan struct{}, 1), begun: make(chan struct{}), ended: make(chan struct{})}
}

// close ends the connection. Its goroutines end soon.
func (c *conn) close() { c.end(nil) }

// end is close, and says why, to who is the first.
func (c *conn) end(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.ended)
		_ = c.c.Close()
		c.linking.Lock()
		defer c.linking.Unlock()
		if c.link != nil {
			c.link.Abort()
		}
	})
}

// use has a link take all that follows.
func (c *conn) use(l *fabric.Link) {
	c.linking.Lock()
	defer c.linking.Unlock()
	c.link = l
	select {
	case <-c.ended:
		l.Abort()
	default:
	}
}

// send queues a frame with the head that head writes, and n bytes that data appends. flush has it written.
func (c *conn) send(kind frameKind, head func(c *coder), n int, data func(b []byte) []byte) {
	c.mu.Lock()
	if c.link != nil {
		p := &c.parcel
		at := len(p.frames)
		p.frames = appendFrame(p.frames, &c.enc, kind, 0, head)
		p.bytes += int64(len(p.frames) - at)
		full := p.bytes > c.m.maxQueue()
		c.mu.Unlock()
		c.ready(full)
		return
	}
	b := c.queue.room(n)
	at := len(b)
	b = appendFrame(b, &c.enc, kind, n, head)
	if data != nil {
		b = data(slices.Grow(b, n))
	}
	c.queue.add(b, len(b)-at)
	full := c.queue.bytes > c.m.maxQueue()
	c.mu.Unlock()
	c.ready(full)
}

// sendBeat queues a frame that overtakes others.
func (c *conn) sendBeat(kind frameKind, head func(c *coder)) {
	c.mu.Lock()
	c.first = appendFrame(c.first, &c.enc, kind, 0, head)
	full := len(c.first) > maxBeats
	c.mu.Unlock()
	c.ready(full)
}

const maxBeats = 64 << 10 // bytes

func (c *conn) ready(full bool) {
	c.queued = true
	if full {
		c.end(errors.New("the other node takes nothing"))
	}
}

// flush has what is queued written, by the owner of the core if it is alone.
func (c *conn) flush(alone bool) {
	if !c.queued {
		return
	}
	if c.beaten {
		c.beaten = false
		c.sendBeat(frameBeat, func(x *coder) { x.beat(&c.beat) })
	}
	c.queued = false
	if !alone || !c.writeNow() {
		signal(c.wake)
	}
}

// writeNow writes what is queued, and reports whether nothing is left to write for the goroutine of the connection.
func (c *conn) writeNow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		return c.sendNow()
	}
	n := int64(len(c.first)) + c.queue.bytes
	if c.try == nil || c.writing || n == 0 || n > maxTry {
		return false
	}
	b := c.queue.pop()
	invariant.Check(c.queue.bytes == 0, "mirror: frames are left in the queue of a connection")
	if len(c.first) > 0 { // one write
		c.first = append(c.first, b...)
		c.queue.release(b)
		b = c.first
	}
	all, err := c.try.TryWrite(b)
	if len(c.first) > 0 {
		c.first = kept(c.first)
	} else {
		c.queue.release(b)
	}
	if err != nil {
		c.close()
		return true
	}
	c.writing, c.left = !all, !all
	return all
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write writes what is queued and what the owner of the core leaves, and now and then something that says that the node is there.
func (c *conn) write() {
	defer c.close()
	idle := time.NewTicker(4 * c.m.cfg.Heartbeat)
	defer idle.Stop()
	var enc coder
	var beats, frames []byte
	var set time.Time // the deadline
	for {
		isIdle := false
		select {
		case <-c.ended:
			return
		case <-c.wake:
		case <-idle.C:
			isIdle = true
		}
		for {
			c.mu.Lock()
			beats, c.first = c.first, kept(beats)
			c.queue.release(frames)
			frames = c.queue.pop()
			left := c.left
			c.left = false
			if isIdle {
				beats = appendFrame(beats, &enc, frameIdle, 0, nil)
				isIdle = false
			}
			c.writing = left || len(beats)+len(frames) > 0
			c.mu.Unlock()
			if len(beats) > 0 && len(frames) < maxTry { // one write
				beats = append(beats, frames...)
				frames = frames[:0]
			}
			if left {
				set = renew(set, c.m.silence(), c.c.SetWriteDeadline)
				if err := c.try.Flush(); err != nil {
					return
				}
			}
			if !left && len(beats)+len(frames) == 0 {
				break
			}
			for _, b := range [...][]byte{beats, frames} {
				for len(b) > 0 {
					set = renew(set, c.m.silence(), c.c.SetWriteDeadline) // over a slow link a frame may take longer
					n, err := c.c.Write(b[:min(len(b), maxTry)])
					if err != nil {
						return
					}
					b = b[n:]
				}
			}
		}
	}
}

// kept returns a buffer that is empty, and used again if it is not a long one.
func kept(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}

// read gives the mirror what comes, until the connection ends.
func (c *conn) read() error {
	defer c.close()
	p := &patient{c: c}
	r, headMax, dataMax := bufio.NewReaderSize(p, readsAtOnce), c.m.maxHead(), c.m.cfg.Heap
	if c.link != nil {
		r, dataMax = bufio.NewReaderSize(c.link, readsAtOnce), 0
	}
	if c.beats {
		headMax, dataMax = beatHeadMax, 0
	}
	for {
		f := c.vacant()
		head, data, err := f.readPrefix(r, headMax, dataMax)
		if err == nil {
			err = c.room(f, head+data)
		}
		if err == nil {
			p.enters()
			err = f.readRest(r, head, data)
			p.leaves()
		}
		if err == nil && f.kind == frameGreeting {
			err = errors.New("a second greeting came")
		}
		if err == nil && c.beats && f.kind != frameBeat && f.kind != frameEcho && f.kind != frameIdle {
			err = fmt.Errorf("a frame of kind %d came where only beats go", f.kind)
		}
		if err == nil {
			err = c.m.check(f, c.link != nil)
		}
		if err != nil {
			return err
		}
		c.spoke = true
		if f.kind == frameIdle {
			c.release(f)
			continue
		}
		c.m.enqueue(item{conn: c, frame: f})
		if r.Buffered() == 0 {
			c.m.drive(nil, true)
		}
	}
}

// vacant returns a frame that nobody has.
func (c *conn) vacant() *received {
	c.unread.Lock()
	defer c.unread.Unlock()
	if n := len(c.idle); n > 0 {
		f := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.kept -= cap(f.data)
		return f
	}
	return new(received)
}

// room waits until a frame of n bytes may wait for the core, too.
func (c *conn) room(f *received, n int64) error {
	f.size = n + frameCosts
	for {
		c.unread.Lock()
		ok := c.held == 0 || c.held+f.size <= maxHeld
		if ok {
			c.held += f.size
		}
		c.unread.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.taken:
		case <-c.ended:
			return net.ErrClosed
		}
	}
}

// release: the core needs a frame no more.
func (c *conn) release(f *received) {
	f.head, f.data, f.msg, f.post.bell.Start = kept(f.head), kept(f.data), nil, nil
	c.unread.Lock()
	c.held -= f.size
	if c.kept+cap(f.data) > 2*maxKept {
		f.data = nil
	}
	if len(c.idle) < maxIdle {
		c.idle = append(c.idle, f)
		c.kept += cap(f.data)
	}
	c.unread.Unlock()
	signal(c.taken)
}

// serve runs a connection with a node that has said who it is.
func (c *conn) serve() {
	c.m.push(item{conn: c, up: true})
	var wg sync.WaitGroup
	if c.link == nil {
		wg.Go(c.write)
	} else {
		wg.Go(c.writeOn)
		wg.Go(c.watch)
	}
	err := net.ErrClosed
	select {
	case <-c.begun: // what came while the one before has not ended would be lost
		err = c.read()
	case <-c.ended:
	}
	if c.why != nil {
		err = c.why
	}
	wg.Wait()
	if c.link != nil { // what was pulled is given up when nothing can be placed any more
		if err := c.unlink(); err != nil {
			c.m.opts.Log.Error("a connection of a mirror stays with its device", "with", c.peer, "reason", err)
		}
	}
	c.m.push(item{conn: c, down: true})
	if c.m.ctx.Err() == nil && !c.beats { // without it they go with the rest
		c.m.logSome(&c.m.ends, slog.LevelInfo, "a connection of a mirror has ended", slog.Any("with", c.peer), slog.Any("reason", err))
	}
}

// unlink frees the link. Who owns the core may have the connection still, and uses the link no more.
func (c *conn) unlink() error {
	c.mu.Lock()
	c.unlinked = true
	c.mu.Unlock()
	return c.link.Release()
}

// logSilence is for how long there is no second line of what a peer can do as often as it likes.
const logSilence = 10 * time.Second

func (m *Mirror) logSome(g *loglimit.Gate, level slog.Level, text string, attrs ...slog.Attr) {
	if dropped, ok := g.Pass(logSilence); ok {
		m.opts.Log.LogAttrs(m.ctx, level, text, append(attrs, dropped...)...)
	}
}

// greetingTo is what this node says first.
func (m *Mirror) greetingTo(to replica.ID, beats bool) []byte {
	g := greeting{greetingMagic, m.sameness, m.cfg.Self, to}
	switch {
	case beats:
		g.magic = greetingMagicBeats
	case m.opts.Fabric != nil:
		g.magic = greetingMagicFabric
	}
	return appendFrame(nil, new(coder), frameGreeting, 0, func(c *coder) { c.greeting(&g) })
}

// greeted reads the other one's greeting. links: both have a fabric. beats: nothing else is to go over the connection.
func (m *Mirror) greeted(c net.Conn) (from replica.ID, links, beats bool, err error) {
	var f received
	head, data, err := f.readPrefix(c, greetingLen, 0)
	if err == nil {
		err = f.readRest(c, head, data)
	}
	g := &f.greeting
	switch {
	case err != nil:
		return 0, false, false, err
	case f.kind != frameGreeting || g.magic != greetingMagic && g.magic != greetingMagicFabric && g.magic != greetingMagicBeats:
		return 0, false, false, errors.New("it does not speak as a mirror of this version does")
	case g.mirror != m.sameness && !slices.Contains(m.alike, g.mirror):
		return 0, false, false, fmt.Errorf("node %d has another configuration of the mirror %s: sizes, copies and times have to be the same on all nodes", g.from, m.opts.Name)
	case g.to != m.cfg.Self || g.from == m.cfg.Self || !m.cfg.Copies.Has(g.from):
		return 0, false, false, fmt.Errorf("it is node %d and takes this one for node %d, which is node %d", g.from, g.to, m.cfg.Self)
	case g.magic == greetingMagicBeats:
		return g.from, false, true, nil
	}
	has := g.magic == greetingMagicFabric
	if has != (m.opts.Fabric != nil) {
		m.logSome(&m.mixed, slog.LevelWarn, "two nodes of a mirror have different transports, and what goes between them is encrypted and goes over TCP: let cluster.transport be the same on all nodes, and restart them",
			slog.Any("node", g.from))
	}
	return g.from, has && m.opts.Fabric != nil, false, nil
}

// dialOn keeps a connection with a node of a higher number, while ctx lasts.
func (m *Mirror) dialOn(ctx context.Context, peer replica.ID, beats bool) {
	wait, term := dialAgain, uint64(0)
	for ctx.Err() == nil {
		began := time.Now()
		spoke, err := m.dial(ctx, peer, beats)
		if err != nil {
			m.opts.Log.Debug("a node of a mirror cannot be reached", "node", peer, "beats", beats, "reason", err)
		}
		lasted, before := time.Since(began), term
		term = m.State().View.Term
		wait = min(2*wait, dialAgainMost)
		again := wait
		// One over which the other node spoke may have ended because that changes its role, and hosts wait for another one. It may do so several times
		// in a row: a copy that waited longer each time would leave S. One whose disk takes nothing is sent away soon each time, in one term.
		if lasted > dialAgainMost || spoke && term != before {
			wait, again = dialAgain, dialAgain
			if spoke {
				again -= lasted
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// dial makes a connection, and serves it. It reports whether the other node has said something that this one takes.
func (m *Mirror) dial(while context.Context, peer replica.ID, beats bool) (spoke bool, err error) {
	ctx, cancel := context.WithTimeout(while, greetWithin)
	defer cancel()
	c, err := m.opts.Dial(ctx, peer)
	if err != nil {
		return false, err
	}
	conn := newConn(m, peer, c)
	conn.beats = beats
	stop := context.AfterFunc(while, conn.close)
	defer stop()
	defer conn.close()
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	if _, err := c.Write(m.greetingTo(peer, beats)); err != nil {
		return false, err
	}
	from, links, same, err := m.greeted(c)
	if err != nil {
		return false, err
	}
	if from != peer || same != beats {
		return false, fmt.Errorf("node %d answers in the place of node %d, or takes beats for data", from, peer)
	}
	if links {
		l, err := m.join(ctx, c)
		if err != nil {
			m.logSome(&m.refusals, slog.LevelWarn, "a node of a mirror cannot be reached over the transport of the cluster", slog.Any("node", peer), slog.Any("reason", err))
			return false, err
		}
		conn.use(l)
	}
	_ = c.SetDeadline(time.Time{})
	if !beats {
		with, cancel := context.WithCancel(while)
		var wg sync.WaitGroup
		wg.Go(func() { m.dialOn(with, peer, true) })
		defer wg.Wait()
		defer cancel()
	}
	conn.serve()
	return conn.spoke, nil
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
	from, links, beats, err := m.greeted(c)
	greeted()
	if err == nil && from > m.cfg.Self {
		err = fmt.Errorf("node %d makes a connection, which is for this one to make", from)
	}
	if err == nil {
		_, err = c.Write(m.greetingTo(from, beats))
	}
	if err == nil && links {
		ctx, cancel := context.WithTimeout(m.ctx, greetWithin)
		var l *fabric.Link
		if l, err = m.invite(ctx, c); err == nil {
			conn.use(l)
		}
		cancel()
	}
	if err != nil {
		m.logSome(&m.refusals, slog.LevelWarn, "a connection to a mirror was refused", slog.Any("from", c.RemoteAddr()), slog.Any("reason", err))
		return
	}
	conn.peer, conn.beats = from, beats
	_ = c.SetDeadline(time.Time{})
	conn.serve()
}

// check refuses what has numbers that are not possible in this mirror. The core relies on it. placed: data are in the arena.
func (m *Mirror) check(f *received, placed bool) error {
	if f.kind == framePost {
		return m.checkPost(&f.post, f.data, placed)
	}
	switch x := f.msg.(type) {
	case replica.Lend:
		if !m.isInStore(x.Off, x.Len) || !m.isInHeap(x.Addr, x.Len) {
			return fmt.Errorf("%d bytes at %d, to be read to address %d, are not within the store or the memory", x.Len, x.Off, x.Addr)
		}
	case replica.Hello:
		if slices.ContainsFunc(x.Sizes, func(n int64) bool { return n < 0 }) {
			return fmt.Errorf("a copy of %d bytes", x.Sizes)
		}
	}
	return nil
}

func (m *Mirror) isInStore(off, n int64) bool {
	limit := m.limit.Load()
	return off >= 0 && n > 0 && off <= limit && n <= limit-off
}

func (m *Mirror) isInHeap(addr, n int64) bool {
	return addr >= 0 && addr <= m.cfg.Heap && n <= m.cfg.Heap-addr
}

// checkPost refuses records that, with their data, do not fit this mirror.
func (m *Mirror) checkPost(p *post, data []byte, placed bool) error {
	rest := data
	for i := range p.recs {
		r := &p.recs[i]
		needsHeap := r.Kind == replica.KindWrite || r.Kind == replica.KindResync
		switch {
		case r.Kind < replica.KindWrite || r.Kind > replica.KindLost:
			return fmt.Errorf("record %d is of kind %d, which this version does not know", r.Seq, r.Kind)
		case !m.isInStore(r.Off, r.Len) || needsHeap && !m.isInHeap(r.Addr, r.Len):
			return fmt.Errorf("record %d, %d bytes at %d from address %d, is not within the store or the memory", r.Seq, r.Len, r.Off, r.Addr)
		case r.Kind == replica.KindCheck && r.Len > m.cfg.Granule: // it is read into memory of its own
			return fmt.Errorf("record %d has %d bytes compared, and a granule has %d", r.Seq, r.Len, m.cfg.Granule)
		case r.Kind == replica.KindLost && r.Len > m.cfg.Granule: // it is remembered by sectors
			return fmt.Errorf("record %d has %d bytes that nobody can read, and a granule has %d", r.Seq, r.Len, m.cfg.Granule)
		case i > 0 && r.Seq != p.recs[i-1].Seq+1 || i == 0 && r.Seq != p.bell.First:
			return fmt.Errorf("record %d is out of order", r.Seq)
		}
		if !r.HasDataFor(m.cfg.Self) {
			continue
		}
		if placed && r.HasDataFor(m.cfg.Self) && sumOf(m.arena[r.Addr:r.Addr+r.Len]) != r.Sum {
			return fmt.Errorf("the data of record %d are not those that were sent: their checksum is wrong", r.Seq)
		}
		if placed {
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
