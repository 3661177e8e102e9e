package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"oneshot/ha/fabric"
	"oneshot/ha/replica"
	"oneshot/internal/crc32c"
)

// A frame is a prefix, a head and data. Numbers are big-endian.
//
//	head length (4) │ data length (4) │ CRC32C (4) of the other fields of the prefix, and the head │ kind (1) │ head │ data
//
// Data have their checksum in the head.
const prefixLen = 13

type frameKind uint8

const (
	frameGreeting frameKind = iota + 1
	frameIdle
	frameBeat
	frameEcho
	framePost
	framePull
	framePulled
	frameHello
	frameAck
	frameAsk
	framePromise
	frameDeny
	frameFetch
	frameLend
	frameLent
	frameHashed
	frameInvitation // follows the greeting of who accepts, if both have a fabric
	frameKey        // goes before what tells of a grant, where the other node has to be told how to name the memory
)

func sumOf(b []byte) uint32 { return crc32c.Update(0, b) }

// coder writes values, or reads them: each format is said once, for both.
type coder struct {
	b      []byte
	writes bool
	err    error
}

var errShort = errors.New("it ends in the middle")

type integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64
}

// num is a number of n bytes.
func num[T integer](c *coder, v *T, n int) {
	if c.writes {
		switch n {
		case 8:
			c.b = binary.BigEndian.AppendUint64(c.b, uint64(*v))
		case 4:
			c.b = binary.BigEndian.AppendUint32(c.b, uint32(*v))
		case 2:
			c.b = binary.BigEndian.AppendUint16(c.b, uint16(*v))
		default:
			c.b = append(c.b, byte(*v))
		}
		return
	}
	if len(c.b) < n {
		c.err, c.b = errShort, nil
		*v = 0
		return
	}
	var x uint64
	for _, b := range c.b[:n] {
		x = x<<8 | uint64(b)
	}
	*v, c.b = T(x), c.b[n:]
}

func (c *coder) flag(v *bool) {
	var x uint8
	if *v {
		x = 1
	}
	num(c, &x, 1)
	*v = x != 0
}

// id is the number of a node; there are 16.
func (c *coder) id(v *replica.ID) {
	num(c, v, 1)
	if *v > 15 {
		c.err = fmt.Errorf("there is no node %d", *v)
		*v = 0
	}
}

func (c *coder) bits(v *replica.Bits) {
	if c.writes {
		c.b = v.AppendTo(c.b)
		return
	}
	if c.err != nil {
		return
	}
	*v, c.b, c.err = replica.CutBits(c.b)
}

// many is a slice: its length, and then each element.
func many[T any](c *coder, v *[]T, each func(*T)) {
	n := uint32(len(*v))
	num(c, &n, 4)
	if c.writes {
		for i := range *v {
			each(&(*v)[i])
		}
		return
	}
	*v = (*v)[:0]
	for range n {
		if c.err != nil {
			return
		}
		var x T
		*v = append(*v, x)
		each(&(*v)[len(*v)-1])
	}
}

func (c *coder) view(v *replica.View) {
	num(c, &v.Version, 8)
	num(c, &v.Term, 8)
	c.id(&v.Primary)
	num(c, &v.Life, 4)
	num(c, &v.InSync, 2)
	num(c, &v.First, 8)
	c.flag(&v.Planned)
}

func (c *coder) record(r *replica.Record) {
	num(c, &r.Term, 8)
	num(c, &r.Seq, 8)
	num(c, &r.Kind, 1)
	c.id(&r.Copy)
	num(c, &r.Off, 8)
	num(c, &r.Len, 8)
	num(c, &r.Addr, 8)
	num(c, &r.Sum, 4)
	num(c, &r.Key, 8)
	c.flag(&r.Atomic)
}

func (c *coder) result(r *replica.Result) {
	num(c, &r.Key, 8)
	num(c, &r.Term, 8)
	num(c, &r.Seq, 8)
	num(c, &r.Off, 8)
	num(c, &r.Len, 8)
}

// What a bell has besides. A node takes bellSynced if it has said so in the number of its stream.
const (
	bellHasStart = 1 << iota
	bellSynced
)

func (c *coder) bell(b *replica.Bell) {
	c.view(&b.View)
	num(c, &b.First, 8)
	num(c, &b.Trim, 8)
	num(c, &b.Freed, 8)
	num(c, &b.Sync, 8)
	var flags uint8
	if b.Start != nil {
		flags |= bellHasStart
	}
	if b.Synced {
		flags |= bellSynced
	}
	num(c, &flags, 1)
	b.Synced = flags&bellSynced != 0
	if flags&bellHasStart == 0 {
		b.Start = nil
		return
	}
	if !c.writes {
		b.Start = new(replica.Start)
	}
	num(c, &b.Start.Last, 8)
	many(c, &b.Start.Results, c.result)
	for i := range b.Start.Bitmaps {
		c.bits(&b.Start.Bitmaps[i])
	}
	c.bits(&b.Start.Early)
}

// post is what a replica.Post brings. The data of records that have some for the receiver are behind the head, one after the
// other.
type post struct {
	stream uint64
	recs   []replica.Record
	bell   replica.Bell
}

func (c *coder) post(p *post) {
	num(c, &p.stream, 8)
	c.bell(&p.bell)
	many(c, &p.recs, c.record)
}

// pull asks for a part of the other one's memory, and brings it, as data behind the head.
type pull struct {
	id        uint64
	addr, len int64
	sum       uint32
}

func (c *coder) pull(p *pull) {
	num(c, &p.id, 8)
	num(c, &p.addr, 8)
	num(c, &p.len, 8)
	num(c, &p.sum, 4)
}

// greeting is the first frame in each direction.
type greeting struct {
	magic    uint64
	mirror   uint64 // hash of its name and of what has to be the same on all nodes
	from, to replica.ID
}

const (
	greetingMagic = 0x6f6e6573686f7401 // "oneshot", version 1
	// greetingMagicFabric says besides that the node has a fabric. If the other one has one, too, queue pairs take what follows.
	greetingMagicFabric = 0x6f6e6573686f7402
	// greetingMagicBeats begins a connection that has nothing but beats and their answers: see pulse.go.
	greetingMagicBeats = 0x6f6e6573686f7403
	greetingLen        = 8 + 8 + 1 + 1 // all that is taken of who has not said who it is
)

func (c *coder) greeting(g *greeting) {
	num(c, &g.magic, 8)
	num(c, &g.mirror, 8)
	c.id(&g.from)
	c.id(&g.to)
}

// invitationMax bounds an invitation: the longest address is that of a name.
const invitationMax = 4 + 300 + 2*32 + 4 + 8 + 8

func (c *coder) invitation(i *fabric.Invitation) {
	address := []byte(i.Address)
	many(c, &address, func(b *byte) { num(c, b, 1) })
	i.Address = string(address)
	for j := range i.Secret {
		num(c, &i.Secret[j], 1)
	}
	for j := range i.Proof {
		num(c, &i.Proof[j], 1)
	}
	num(c, &i.Arena.Index, 4)
	num(c, &i.Arena.Base, 8)
	num(c, &i.Arena.Size, 8)
}

func (c *coder) key(k *fabric.Key) {
	num(c, (*uint32)(&k.STag), 4)
	num(c, &k.Base, 8)
}

func (c *coder) beat(b *replica.Beat) {
	num(c, &b.No, 8)
	c.view(&b.View)
}

func (c *coder) echo(e *replica.Echo) {
	num(c, &e.No, 8)
	c.view(&e.View)
	c.flag(&e.OK)
}

func (c *coder) hello(m *replica.Hello) {
	num(c, &m.Version, 8)
	num(c, &m.Stream, 8)
	c.flag(&m.Memory)
	num(c, &m.Last, 8)
	num(c, &m.Applied, 8)
	num(c, &m.Durable, 8)
	c.bits(&m.Suspects)
	many(c, &m.Sizes, func(n *int64) { num(c, n, 8) })
}

func (c *coder) ack(m *replica.Ack) {
	num(c, &m.Stream, 8)
	num(c, &m.Received, 8)
	num(c, &m.Applied, 8)
	num(c, &m.Durable, 8)
	c.flag(&m.Failed)
	if c.writes && m.Synced == 0 || !c.writes && len(c.b) == 0 { // a former version would not read it, and does not send it
		m.Synced = 0
		return
	}
	num(c, &m.Synced, 8)
}

func (c *coder) promise(m *replica.Promise) {
	num(c, &m.Version, 8)
	num(c, &m.Stream, 8)
	c.flag(&m.Memory)
	num(c, &m.Last, 8)
	num(c, &m.Applied, 8)
	num(c, &m.Durable, 8)
}

func (c *coder) fetch(m *replica.Fetch) {
	num(c, &m.Version, 8)
	num(c, &m.Stream, 8)
	num(c, &m.First, 8)
}

func (c *coder) lend(m *replica.Lend) {
	num(c, &m.Stream, 8)
	num(c, &m.Job, 8)
	num(c, &m.Off, 8)
	num(c, &m.Len, 8)
	num(c, &m.Addr, 8)
}

func (c *coder) lent(m *replica.Lent) {
	num(c, &m.Stream, 8)
	num(c, &m.Job, 8)
	num(c, &m.Sum, 4)
	c.flag(&m.Failed)
}

func (c *coder) hashed(m *replica.Hashed) {
	num(c, &m.Seq, 8)
	for i := range m.Digest {
		num(c, &m.Digest[i], 1)
	}
	c.flag(&m.Failed)
}

// appendFrame appends a frame with the head that f writes by c. Data are appended by the caller, n bytes.
func appendFrame(b []byte, c *coder, kind frameKind, n int, f func(c *coder)) []byte {
	var prefix [prefixLen]byte
	at := len(b)
	*c = coder{b: append(b, prefix[:]...), writes: true}
	if f != nil {
		f(c)
	}
	b, c.b = c.b, nil
	p := b[at:]
	binary.BigEndian.PutUint32(p, uint32(len(p)-prefixLen))
	binary.BigEndian.PutUint32(p[4:], uint32(n))
	p[12] = byte(kind)
	binary.BigEndian.PutUint32(p[8:], sumOfFrame(p))
	return b
}

// sumOfFrame is the checksum of a prefix and its head.
func sumOfFrame(p []byte) uint32 {
	return crc32c.Update(sumOf(p[:8]), p[12:])
}

// message returns the kind of a message's frame, and what writes its head.
func message(m replica.Msg) (frameKind, func(c *coder)) {
	switch m := m.(type) {
	case replica.Hello:
		return frameHello, func(c *coder) { c.hello(&m) }
	case replica.Ask:
		return frameAsk, func(c *coder) { num(c, &m.Version, 8) }
	case replica.Promise:
		return framePromise, func(c *coder) { c.promise(&m) }
	case replica.Deny:
		return frameDeny, func(c *coder) { c.view(&m.View) }
	case replica.Fetch:
		return frameFetch, func(c *coder) { c.fetch(&m) }
	case replica.Lend:
		return frameLend, func(c *coder) { c.lend(&m) }
	case replica.Lent:
		return frameLent, func(c *coder) { c.lent(&m) }
	case replica.Hashed:
		return frameHashed, func(c *coder) { c.hashed(&m) }
	}
	panic(fmt.Sprintf("mirror: the message %T has no frame", m))
}

// received is a frame that has come. It is used again for others, and so is its memory.
type received struct {
	kind     frameKind
	greeting greeting
	beat     replica.Beat
	echo     replica.Echo
	ack      replica.Ack
	post     post
	pull     pull

	invitation fabric.Invitation
	key        fabric.Key

	msg replica.Msg // of all other kinds

	prefix [prefixLen]byte
	head   []byte
	data   []byte
	dec    coder
	size   int64 // what it counts for in the inbox
}

// grows is by how much memory grows at most before the bytes for it have come.
const grows = 64 << 10

// readInto appends n bytes of r to b.
func readInto(b []byte, r io.Reader, n int64) ([]byte, error) {
	for n > 0 {
		k := int(min(n, max(grows, int64(cap(b)-len(b)))))
		b = slices.Grow(b, k)
		at := len(b)
		b = b[:at+k]
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			return b[:at], err
		}
		n -= int64(k)
	}
	return b, nil
}

// readPrefix reads the beginning of a frame with at most headMax bytes of head and dataMax of data, and returns how many
// there are. The rest is read by readRest.
func (f *received) readPrefix(r io.Reader, headMax, dataMax int64) (head, data int64, err error) {
	if _, err := io.ReadFull(r, f.prefix[:]); err != nil {
		return 0, 0, err
	}
	head, data = int64(binary.BigEndian.Uint32(f.prefix[:])), int64(binary.BigEndian.Uint32(f.prefix[4:]))
	f.kind = frameKind(f.prefix[12])
	if head > headMax || data > dataMax {
		return 0, 0, fmt.Errorf("a frame with %d bytes of head and %d of data came; up to %d and %d are allowed", head, data, headMax, dataMax)
	}
	return head, data, nil
}

func (f *received) readRest(r io.Reader, head, data int64) (err error) {
	if f.head, err = readInto(append(f.head[:0], f.prefix[:]...), r, head); err != nil {
		return err
	}
	if sumOfFrame(f.head) != binary.BigEndian.Uint32(f.prefix[8:]) {
		return errors.New("a frame has changed on its way: its checksum is wrong")
	}
	f.dec = coder{b: f.head[prefixLen:]}
	f.decode(&f.dec)
	if f.dec.err == nil && len(f.dec.b) > 0 {
		f.dec.err = errors.New("there are bytes behind its end")
	}
	if f.dec.err != nil {
		return fmt.Errorf("a frame of kind %d cannot be read: %w", f.kind, f.dec.err)
	}
	if data > 0 && f.kind != framePost && f.kind != framePulled {
		return fmt.Errorf("a frame of kind %d came with data", f.kind)
	}
	f.data, err = readInto(f.data[:0], r, data)
	return err
}

func (f *received) decode(c *coder) {
	switch f.kind {
	case frameIdle:
	case frameGreeting:
		c.greeting(&f.greeting)
	case frameBeat:
		c.beat(&f.beat)
	case frameEcho:
		c.echo(&f.echo)
	case framePost:
		c.post(&f.post)
	case framePull, framePulled:
		c.pull(&f.pull)
	case frameAck:
		c.ack(&f.ack)
	case frameInvitation:
		c.invitation(&f.invitation)
	case frameKey:
		c.key(&f.key)
	default:
		f.msg = decodeMessage(c, f.kind)
	}
}

// decodeMessage reads what is not of each I/O.
func decodeMessage(c *coder, kind frameKind) replica.Msg {
	switch kind {
	case frameHello:
		var x replica.Hello
		c.hello(&x)
		return x
	case frameAsk:
		var x replica.Ask
		num(c, &x.Version, 8)
		return x
	case framePromise:
		var x replica.Promise
		c.promise(&x)
		return x
	case frameDeny:
		var x replica.Deny
		c.view(&x.View)
		return x
	case frameFetch:
		var x replica.Fetch
		c.fetch(&x)
		return x
	case frameLend:
		var x replica.Lend
		c.lend(&x)
		return x
	case frameLent:
		var x replica.Lent
		c.lent(&x)
		return x
	case frameHashed:
		var x replica.Hashed
		c.hashed(&x)
		return x
	}
	c.err = errors.New("there is no such kind")
	return nil
}
