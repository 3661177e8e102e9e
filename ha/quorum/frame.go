package quorum

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A connection carries frames: the length of what follows (4 bytes), a type, a payload. The one who has dialed sends
// messages; the other one answers the hello, and then sends nothing more.
//
//	member   ── hello ──►  ◄── hello, refusal or unmet ──   ── message, idle, message … ──►
//	stranger ── join  ──►  ◄── welcome or refusal ──
//	member   ── stream ─►  ◄── hello or refusal ──   … bytes of others (stream.go)
const (
	frameHello = iota + 1
	frameRefusal
	frameMessage
	frameIdle
	frameJoin
	frameWelcome
	frameStream
	frameUnmet // a hello, and why that of the other one counts later: each has to meet the other where it is looked for
	framePart  // a part of a long frame
)

const (
	maxGreeting = 8 << 10          // of a frame before a member was admitted
	maxFrame    = maxState + 8<<20 // a snapshot, or entries: one of 1 MiB and some more
)

func frame(kind uint8, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 5+len(payload)), uint32(len(payload)+1))
	return append(append(b, kind), payload...)
}

// readFrame reads one of up to limit bytes. Memory grows with what has arrived.
func readFrame(r *bufio.Reader, limit int) (kind uint8, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || uint64(n) > uint64(limit) {
		return 0, nil, fmt.Errorf("a frame of %d bytes came, and up to %d are allowed here", n, limit)
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, int64(n-1)); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return head[4], b.Bytes(), nil
}

func (h *Hello) encode() []byte {
	return appendU64(nil, h.Cluster, h.Number, h.Incarnation, h.Nonce, h.Start, h.Batch)
}

func decodeHello(b []byte) (Hello, error) {
	c := cursor{b: b}
	h := Hello{c.u64(), c.u64(), c.u64(), c.u64(), c.u64(), c.u64()}
	return h, c.end()
}

// encode returns the frame of a message.
func (m *Message) encode() []byte {
	b, err := proto.Marshal(m.Raft)
	if err != nil {
		panic(err) // raft's own messages can be encoded
	}
	return frame(frameMessage, append(appendU64(nil, m.Life, m.Batch), b...))
}

// decodeMessage reads a message of the member from.
func decodeMessage(b []byte, from uint64) (Message, error) {
	c := cursor{b: b}
	m := Message{From: from, Life: c.u64(), Batch: c.u64(), Raft: new(raftpb.Message)}
	if c.err != nil {
		return m, c.err
	}
	return m, proto.Unmarshal(c.b, m.Raft)
}

func unmet(own Hello, why error) []byte {
	return frame(frameUnmet, append(own.encode(), why.Error()...))
}

// decodeUnmet reads who has answered, and why it does not take this node yet.
func decodeUnmet(b []byte) (h Hello, why, err error) {
	n := min(len(b), len(h.encode()))
	h, err = decodeHello(b[:n])
	return h, &StrangerError{textOf(b[n:])}, err
}

// A refusal says why, and whether for good.
const (
	refusalLater = iota
	refusalOutdated
	refusalFormer
)

func refusal(err error) []byte {
	kind := uint8(refusalLater)
	if e, ok := errors.AsType[*OutdatedError](err); ok {
		kind = refusalOutdated
		if e.Former {
			kind = refusalFormer
		}
	}
	return frame(frameRefusal, append([]byte{kind}, err.Error()...))
}

func decodeRefusal(b []byte) error {
	c := cursor{b: b}
	kind := c.u8()
	text := textOf(c.b)
	if kind == refusalOutdated || kind == refusalFormer {
		return &OutdatedError{Why: text, Former: kind == refusalFormer}
	}
	return &StrangerError{text}
}

// textOf is what a peer says, for a log.
func textOf(b []byte) string {
	if isText(b) {
		return string(b)
	}
	return fmt.Sprintf("%q", b)
}

func isText(b []byte) bool {
	for _, x := range b {
		if x < ' ' || x > '~' {
			return false
		}
	}
	return len(b) < 4096
}

// long is a frame that is sent in parts, so that others are not behind it: a snapshot, or a change of a MiB, may take minutes over a slow link, and heartbeats
// that came after it would be missed. A part has which one it is (1 byte), and octets of the frame from its type on.
type long struct {
	b    []byte // the frame from its type on
	sent int    // octets of b

	snapshot bool
}

// Parts.
const (
	partFirst = 1 << iota
	partLast
)

// partSize is short enough that a link of 100 KB/s has a heartbeat behind a part in 40 ms.
const partSize = 4 << 10

// next returns the frame of the next part, and how many octets of b it has.
func (l *long) next() (part []byte, n int) {
	var which uint8
	if n = min(partSize, len(l.b)-l.sent); l.sent == 0 {
		which |= partFirst
	}
	if l.sent+n == len(l.b) {
		which |= partLast
	}
	return frame(framePart, append([]byte{which}, l.b[l.sent:l.sent+n]...)), n
}

// parts are what has come of a frame.
type parts struct{ b []byte }

// take takes the payload of a part. After the last one it returns the frame; before that kind is 0.
func (p *parts) take(payload []byte) (kind uint8, b []byte, err error) {
	if len(payload) < 2 {
		return 0, nil, errShort
	}
	which, octets := payload[0], payload[1:]
	if which&partFirst != 0 { // another frame has taken the place of one
		p.b = nil
	} else if p.b == nil {
		return 0, nil, errors.New("a part of a frame came, and not the first one")
	}
	if len(p.b)+len(octets) > maxFrame {
		return 0, nil, fmt.Errorf("the parts of a frame have more than %d bytes", maxFrame)
	}
	if p.b = append(p.b, octets...); which&partLast == 0 {
		return 0, nil, nil
	}
	b, p.b = p.b, nil
	return b[0], b[1:], nil
}
