package remote

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// link is one connection of a queue pair.
type link struct {
	q        *queuePair
	qp       rdma.QueuePair
	awaiter  rdma.Awaiter // qp; nil: its completions come by events
	cq       rdma.CompletionQueue
	memory   []byte // of messages
	free     func() error
	region   rdma.Region
	slots    []rdma.SGE // of receives
	inbox    chan []byte
	gone     chan struct{} // closed when the device says that the connection has ended
	why      error         // guarded by queuePair.mu
	attached bool          // guarded by queuePair.mu
	direct   direct        // guarded by queuePair.mu
	sends    int
	flying   int // requests that were posted and have no response; guarded by queuePair.mu
	cs       [32]rdma.Completion
	recv     [1]rdma.Receive
}

const (
	slotLen  = 512 // of a receive; a greeting fits in
	receives = maxCredits + 2
	headers  = receives * slotLen // where the messages of requests begin, one for each tag
	memLen   = headers + maxCredits*wire.RequestLen + slotLen
)

// Connect implements rdma.Device. The address is HOST:PORT/STORE/PARTITION or HOST:PORT/uuid:UUID.
func (d *Device) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	q, ok := qp.(*queuePair)
	former, isOurs := p.Former.(*queuePair)
	if !ok || q.dev != d || p.Former != nil && (!isOurs || former.dev != d) {
		return errForeign
	}
	host, name, ok := strings.Cut(addr, "/")
	if !ok || name == "" || len(name) > wire.MaxPartition || len(d.cfg.Name) > wire.MaxName {
		return fmt.Errorf("remote: %q is no address of a partition: it has to be HOST:PORT/STORE/PARTITION", addr)
	}
	q.mu.Lock()
	if q.state != idle {
		q.mu.Unlock()
		return errNotIdle
	}
	q.become(connecting)
	q.addr, q.name, q.want = host, name, p.Rights
	q.mu.Unlock()
	if former != nil {
		q.follow(former)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	defer context.AfterFunc(q.ctx, cancel)()
	l, m, err := q.dial(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err != nil:
	case q.over:
		err = rdma.ErrDisconnected
	case former != nil && q.isReplaced(m):
		err = errReplaced
	}
	if err != nil {
		return q.refuse(l, err)
	}
	q.info = rdma.Endpoint{
		Name: m.Name, UUID: uuidOf(m.UUID), STag: rdma.STag(m.Handle), Size: int64(m.Size), Unit: int(m.Unit),
		Rights: rdma.Rights(m.Rights), Durability: rdma.Durability(m.Durability), Direct: m.STag != 0, Aging: time.Duration(m.AgingMS) * time.Millisecond,
	}
	q.most = int64(m.MaxLength)
	q.generation, q.durable = rdma.Generation(m.Sequence), m.Durable
	q.highest = m.Durable
	q.use(l, m)
	q.become(connected)
	if l.over() {
		q.comeBack(l)
	}
	return nil
}

// refuse ends a queue pair that has not been connected. The lock is held.
func (q *queuePair) refuse(l *link, err error) error {
	q.become(ending)
	q.err, q.link = err, l
	q.cfg.Disconnected = nil
	q.dev.work.Go(q.end)
	return err
}

// follow has q go on with the session of a queue pair that is closed. The service tells their requests apart by the tags.
func (q *queuePair) follow(former *queuePair) {
	former.mu.Lock()
	session, laps := former.session, former.laps // of one that was never connected, those of the one before it
	for i, p := range former.pieces {
		laps[i] = p.tag / maxCredits
	}
	former.mu.Unlock()
	q.mu.Lock()
	q.session, q.laps = session, laps
	q.mu.Unlock()
}

// errReplaced: a service that does not know the session cannot say whether somebody else has come.
var errReplaced = fmt.Errorf("remote: the service does not remember the use of the partition: %w, for all that is known", rdma.ErrReplaced)

// isReplaced reports whether the works of a connection before this one may come too late: behind those of one who has come as the
// only one who changes octets. The lock is held.
func (q *queuePair) isReplaced(m *wire.AttachedMessage) bool {
	return q.want&rdma.RightSole != 0 && !m.Known
}

// over reports whether the connection has ended. The lock of the queue pair is held.
func (l *link) over() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

var (
	errForeign = errors.New("remote: object of another device")
	errNotIdle = errors.New("remote: queue pair is, or was, connected already")
	errOther   = errors.New("remote: what answers is not a service of partitions, or speaks another version")
	errOneShot = errors.New("remote: the service does not agree to one-shot, without which this device does not work (Config.Static)")
	errImpost  = errors.New("remote: the service does not know the secret")
	errBad     = errors.New("remote: the service describes the partition with numbers that are not possible")
)

// use makes l the connection of the queue pair. The lock is held.
func (q *queuePair) use(l *link, m *wire.AttachedMessage) {
	q.handle, q.session = m.Handle, m.Session
	q.credits, q.inline = int(min(m.Credits, maxCredits)), int64(m.Inline)
	if q.pieces == nil {
		for i := range maxCredits {
			q.pieces = append(q.pieces, &piece{tag: q.laps[i]*maxCredits + uint32(i), sgl: make([]rdma.SGE, 1)})
			q.tags = append(q.tags, uint32(maxCredits-1-i))
		}
	}
	for i, p := range q.pieces {
		at := headers + i*wire.RequestLen
		p.sgl[0] = rdma.SGE{Bytes: l.memory[at : at+wire.RequestLen : at+wire.RequestLen], Region: l.region}
	}
	l.attached = true
	if q.info.Direct {
		l.direct.stag, l.direct.base = rdma.STag(m.STag), m.TO
	}
	q.link = l
}

// dial makes a connection and attaches the partition. The caller closes the link, if there is one, after an error, too.
func (q *queuePair) dial(ctx context.Context) (*link, *wire.AttachedMessage, error) {
	l := &link{q: q, inbox: make(chan []byte, 1), gone: make(chan struct{})}
	if err := l.alloc(); err != nil {
		return nil, nil, err
	}
	if err := l.open(ctx); err != nil {
		return l, nil, err
	}
	m, err := l.greet(ctx)
	return l, m, err
}

// alloc takes memory that the device below can register.
func (l *link) alloc() (err error) {
	d := l.q.dev
	if a, ok := d.cfg.Device.(rdma.Allocator); ok {
		l.memory, err = a.Alloc(memLen)
		l.free = func() error { return a.Free(l.memory) }
		return err
	}
	lease := d.cfg.Pool.Lease(memLen)
	if lease == nil {
		return errors.New("remote: no memory for the messages of a queue pair")
	}
	l.memory = lease.Bytes()
	l.free = func() error { lease.Release(); return nil }
	return nil
}

func (l *link) open(ctx context.Context) (err error) {
	d, below := l.q.dev, l.q.dev.cfg.Device
	if l.region, err = l.q.domain.below.Register(l.memory, rdma.AccessLocalWrite); err != nil {
		return err
	}
	work := min(d.limits.MaxWork, 2*maxCredits+2*signalEvery+maxDirects)
	if l.cq, err = below.NewCompletionQueue(work+receives, l.event); err != nil {
		return err
	}
	l.qp, err = below.NewQueuePair(rdma.QueuePairConfig{
		Domain: l.q.domain.below, SendCQ: l.cq, RecvCQ: l.cq, MaxWork: work, MaxRecv: receives, Disconnected: l.lost,
		Alone: l.q.alone,
	})
	if err != nil {
		return err
	}
	l.awaiter, _ = l.qp.(rdma.Awaiter)
	for i := range receives {
		at := i * slotLen
		l.slots = append(l.slots, rdma.SGE{Bytes: l.memory[at : at+slotLen : at+slotLen], Region: l.region})
		if err := l.receive(i); err != nil {
			return err
		}
	}
	l.cq.Arm()
	p := rdma.ConnParams{PrivateData: []byte(wire.Private)}
	if !d.static {
		p.OneShot = &rdma.OneShotOffer{Flags: true, Opcodes: true, Validated: true, Advertise: true, Close: true, Window: maxCredits}
	}
	if err := below.Connect(ctx, l.qp, l.q.addr, p); err != nil {
		return err
	}
	if o := l.qp.OneShot(); !d.static && (o == nil || !o.Advertise || !o.Close || o.Window < maxCredits) {
		return errOneShot
	}
	return nil
}

func (l *link) receive(slot int) error {
	l.recv[0] = rdma.Receive{ID: uint64(slot), SGL: l.slots[slot : slot+1]}
	_, err := l.qp.PostReceive(l.recv[:])
	return err
}

// idSend is the ID of all Sends.
const idSend = 1 << 63

// greet is HELLO to ATTACHED.
func (l *link) greet(ctx context.Context) (*wire.AttachedMessage, error) {
	q, cfg := l.q, &l.q.dev.cfg
	hello := wire.HelloMessage{Version: wire.Version, Name: cfg.Name}
	_, _ = rand.Read(hello.Nonce[:])
	b, err := l.ask(ctx, hello.AppendTo(nil))
	if err != nil {
		return nil, err
	}
	c, err := wire.ParseChallenge(b)
	if err != nil || c.Status != wire.OK {
		return nil, errors.Join(errOther, err)
	}
	g := wire.Greeting{Name: cfg.Name, Client: hello.Nonce, Service: c.Nonce}
	attach := wire.AttachMessage{Order: uint16(q.order), Rights: uint32(q.want), Session: q.session, Partition: q.name}
	if cfg.Name != "" {
		attach.Proof = g.ClientProof(cfg.Secret, &attach)
	}
	if b, err = l.ask(ctx, attach.AppendTo(nil)); err != nil {
		return nil, err
	}
	m, err := wire.ParseAttached(b)
	switch {
	case err != nil:
		return nil, errors.Join(errOther, err)
	case m.Status == wire.NoHandle:
		return nil, fmt.Errorf("%w: %s", rdma.ErrNoEndpoint, q.name)
	case m.Status == wire.Denied:
		return nil, fmt.Errorf("%w: it has no client %q with this secret", &Error{m.Status}, cfg.Name)
	case m.Status != wire.OK:
		return nil, &Error{m.Status}
	}
	if cfg.Name != "" {
		if p := g.ServiceProof(cfg.Secret, &m); !p.Equal(&m.Proof) {
			return nil, errImpost
		}
	}
	if m.Size > 1<<62 || m.Unit == 0 || m.Unit > 1<<20 || m.MaxLength < m.Unit || m.MaxLength%m.Unit != 0 || m.Credits == 0 || m.Inline > wire.MaxInline || m.Handle == 0 {
		return nil, errBad
	}
	return &m, nil
}

// ask sends a message and waits for the answer.
func (l *link) ask(ctx context.Context, b []byte) ([]byte, error) {
	at := headers + maxCredits*wire.RequestLen
	n := copy(l.memory[at:], b)
	w := rdma.Work{ID: idSend, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: l.memory[at : at+n], Region: l.region}}}
	if _, err := l.qp.Post([]rdma.Work{w}); err != nil {
		return nil, err
	}
	t := time.NewTicker(rdma.NudgeTime)
	defer t.Stop()
	for {
		select {
		case answer := <-l.inbox:
			return answer, nil
		case <-l.gone:
			return l.last()
		case <-t.C:
			l.nudge()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// nudge sees to it that a device of the kernel takes what was sent.
func (l *link) nudge() {
	if l.q.dev.static {
		rdma.Nudge(l.qp)
	}
}

// last returns the answer that came before the end of the connection, or says why it has ended.
func (l *link) last() ([]byte, error) {
	select {
	case answer := <-l.inbox:
		return answer, nil
	default:
		l.q.mu.Lock()
		defer l.q.mu.Unlock()
		return nil, fmt.Errorf("remote: the service has ended the connection: %w", errors.Join(l.why, rdma.ErrDisconnected))
	}
}

// event is called by the device below.
func (l *link) event() {
	q := l.q
	q.mu.Lock()
	for {
		n := l.cq.Poll(l.cs[:])
		for i := range l.cs[:n] {
			l.completed(&l.cs[i])
		}
		if n == 0 && l.cq.Arm() {
			break
		}
	}
	q.unlockAndFire()
}

// completed handles a completion. The lock of the queue pair is held.
func (l *link) completed(c *rdma.Completion) {
	if c.ID&idDirect != 0 && l.q.link == l {
		l.q.directDone(c)
		return
	}
	if c.ID&idSend != 0 || c.Op != rdma.OpReceive || c.Status != rdma.StatusOK {
		return // what is not good is followed by the end of the connection
	}
	slot := int(c.ID)
	b := l.slots[slot].Bytes[:c.Bytes]
	if !l.attached {
		select {
		case l.inbox <- append([]byte(nil), b...):
		default: // nobody asked
			l.qp.Abort(errTag)
		}
	} else if l.q.link == l {
		if err := l.q.response(b, c); err != nil {
			l.q.dev.log.Warn(err.Error(), "service", l.q.addr, "partition", l.q.name)
			l.qp.Abort(err)
			l.why = err
			return
		}
	}
	if err := l.receive(slot); err != nil && !errors.Is(err, rdma.ErrDisconnected) {
		l.qp.Abort(err)
	}
}

// lost is told by the device below that the connection has ended.
func (l *link) lost(err error) {
	q := l.q
	q.mu.Lock()
	if l.why == nil {
		l.why = err
	}
	for n := 1; n > 0; { // the last responses
		n = l.cq.Poll(l.cs[:])
		for i := range l.cs[:n] {
			l.completed(&l.cs[i])
		}
	}
	close(l.gone)
	if q.link == l && q.state == connected {
		q.comeBack(l)
	}
	q.unlock()
}

// close ends the connection and gives back what it has. Nothing is under way afterwards.
func (l *link) close() {
	if l.qp != nil {
		_ = l.qp.Close()
	}
	if l.cq != nil {
		_ = l.cq.Close()
	}
	if l.region != nil {
		_ = l.region.Deregister()
	}
	_ = l.free()
}

// uuidOf is the text of a UUID (RFC 9562 §4); empty: there is none.
func uuidOf(u [16]byte) string {
	if u == ([16]byte{}) {
		return ""
	}
	s := hex.EncodeToString(u[:])
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}
