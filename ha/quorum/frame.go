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
