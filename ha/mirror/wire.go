package mirror

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"oneshot/ha/replica"
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
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// maxHead bounds a head: the bitmaps of all copies of a large store are the largest.
const maxHead = 256 << 20

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
		for i := n - 1; i >= 0; i-- {
			c.b = append(c.b, byte(uint64(*v)>>(8*i)))
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
	*v = nil
	for range n {
		if c.err != nil {
			return
		}
		var x T
		each(&x)
		*v = append(*v, x)
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

func (c *coder) bell(b *replica.Bell) {
	c.view(&b.View)
	num(c, &b.First, 8)
	num(c, &b.Trim, 8)
	num(c, &b.Freed, 8)
	num(c, &b.Sync, 8)
	has := b.Start != nil
	c.flag(&has)
	if !has {
		return
	}
	if b.Start == nil {
		b.Start = new(replica.Start)
	}
	num(c, &b.Start.Last, 8)
	many(c, &b.Start.Results, c.result)
	for i := range b.Start.Bitmaps {
		c.bits(&b.Start.Bitmaps[i])
	}
	c.bits(&b.Start.Early)
}

// post is what a replica.Post brings.
type post struct {
	stream uint64
	recs   []replica.Record
	bell   replica.Bell
	data   []byte // of those that have some for the receiver, one after the other
}

func (c *coder) post(p *post) {
	num(c, &p.stream, 8)
	c.bell(&p.bell)
	many(c, &p.recs, c.record)
}

// pull asks for a part of the other one's memory, and brings it.
type pull struct {
	id        uint64
	addr, len int64
	sum       uint32
	data      []byte
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
	greetingLen   = 8 + 8 + 1 + 1      // all that is taken of who has not said who it is
)

func (c *coder) greeting(g *greeting) {
	num(c, &g.magic, 8)
	num(c, &g.mirror, 8)
	c.id(&g.from)
	c.id(&g.to)
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

// appendFrame appends a frame with the head that f writes. Data are appended by the caller, n bytes.
func appendFrame(b []byte, kind frameKind, n int, f func(c *coder)) []byte {
	at := len(b)
	c := coder{b: append(b, make([]byte, prefixLen)...), writes: true}
	if f != nil {
		f(&c)
	}
	p := c.b[at:]
	binary.BigEndian.PutUint32(p, uint32(len(p)-prefixLen))
	binary.BigEndian.PutUint32(p[4:], uint32(n))
	p[12] = byte(kind)
	binary.BigEndian.PutUint32(p[8:], sumOfFrame(p))
	return c.b
}

// sumOfFrame is the checksum of a prefix and its head.
func sumOfFrame(p []byte) uint32 {
	return crc32.Update(sumOf(p[:8]), castagnoli, p[12:])
}

// messageFrame returns the frame of a message.
func messageFrame(m replica.Msg) []byte {
	switch m := m.(type) {
	case replica.Hello:
		return appendFrame(nil, frameHello, 0, func(c *coder) { c.hello(&m) })
	case replica.Ack:
		return appendFrame(nil, frameAck, 0, func(c *coder) { c.ack(&m) })
	case replica.Ask:
		return appendFrame(nil, frameAsk, 0, func(c *coder) { num(c, &m.Version, 8) })
	case replica.Promise:
		return appendFrame(nil, framePromise, 0, func(c *coder) { c.promise(&m) })
	case replica.Deny:
		return appendFrame(nil, frameDeny, 0, func(c *coder) { c.view(&m.View) })
	case replica.Fetch:
		return appendFrame(nil, frameFetch, 0, func(c *coder) { c.fetch(&m) })
	case replica.Lend:
		return appendFrame(nil, frameLend, 0, func(c *coder) { c.lend(&m) })
	case replica.Lent:
		return appendFrame(nil, frameLent, 0, func(c *coder) { c.lent(&m) })
	case replica.Hashed:
		return appendFrame(nil, frameHashed, 0, func(c *coder) { c.hashed(&m) })
	}
	panic(fmt.Sprintf("mirror: the message %T has no frame", m))
}

// received is a frame that has come.
type received struct {
	kind     frameKind
	event    replica.Event // of most kinds
	post     *post
	pull     *pull
	greeting greeting
}

// readFrame reads a frame of the node from, with at most headMax bytes of head and dataMax of data. For the head memory
// grows with what has arrived.
func readFrame(r io.Reader, from replica.ID, headMax uint32, dataMax int64) (f received, err error) {
	var prefix [prefixLen]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return f, err
	}
	head, data := binary.BigEndian.Uint32(prefix[:]), binary.BigEndian.Uint32(prefix[4:])
	f.kind = frameKind(prefix[12])
	if head > headMax || int64(data) > dataMax {
		return f, fmt.Errorf("a frame with %d bytes of head and %d of data came; up to %d and %d are allowed", head, data, headMax, dataMax)
	}
	var b bytes.Buffer
	b.Write(prefix[:])
	if _, err := io.CopyN(&b, r, int64(head)); err != nil {
		return f, err
	}
	if sumOfFrame(b.Bytes()) != binary.BigEndian.Uint32(prefix[8:]) {
		return f, errors.New("a frame has changed on its way: its checksum is wrong")
	}
	c := coder{b: b.Bytes()[prefixLen:]}
	f.decode(&c, from)
	if c.err == nil && len(c.b) > 0 {
		c.err = errors.New("there are bytes behind its end")
	}
	if c.err != nil {
		return f, fmt.Errorf("a frame of kind %d cannot be read: %w", f.kind, c.err)
	}
	if data == 0 {
		return f, nil
	}
	bytes := make([]byte, data)
	if _, err := io.ReadFull(r, bytes); err != nil {
		return f, err
	}
	switch {
	case f.post != nil:
		f.post.data = bytes
	case f.pull != nil:
		f.pull.data = bytes
	default:
		return f, fmt.Errorf("a frame of kind %d came with data", f.kind)
	}
	return f, nil
}

func (f *received) decode(c *coder, from replica.ID) {
	var m replica.Msg
	switch f.kind {
	case frameIdle:
	case frameGreeting:
		c.greeting(&f.greeting)
	case frameBeat:
		var b replica.Beat
		c.beat(&b)
		f.event = replica.BeatFrom{From: from, Beat: b}
	case frameEcho:
		var e replica.Echo
		c.echo(&e)
		f.event = replica.EchoFrom{From: from, Echo: e}
	case framePost:
		f.post = new(post)
		c.post(f.post)
	case framePull, framePulled:
		f.pull = new(pull)
		c.pull(f.pull)
	case frameHello:
		var x replica.Hello
		c.hello(&x)
		m = x
	case frameAck:
		var x replica.Ack
		c.ack(&x)
		m = x
	case frameAsk:
		var x replica.Ask
		num(c, &x.Version, 8)
		m = x
	case framePromise:
		var x replica.Promise
		c.promise(&x)
		m = x
	case frameDeny:
		var x replica.Deny
		c.view(&x.View)
		m = x
	case frameFetch:
		var x replica.Fetch
		c.fetch(&x)
		m = x
	case frameLend:
		var x replica.Lend
		c.lend(&x)
		m = x
	case frameLent:
		var x replica.Lent
		c.lent(&x)
		m = x
	case frameHashed:
		var x replica.Hashed
		c.hashed(&x)
		m = x
	default:
		c.err = errors.New("there is no such kind")
	}
	if m != nil {
		f.event = replica.Message{From: from, Msg: m}
	}
}
