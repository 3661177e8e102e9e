package object

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oneshot/ha/heap/wire"
	"oneshot/transport/rdma"
)

const (
	// firstPeek is how much is read before the length of the object is known.
	firstPeek = 4096
	// peekPause is the time between two looks at a place that is being changed. Whoever changes it may have lost its
	// processor in the middle, so a place is looked at again for Options.Patience.
	peekPause = 100 * time.Microsecond
)

// Peek returns an object by RDMA Reads of its place, in which the node's processors have no part where the device has one of its own.
// So nobody has looked whether that node is still the primary: what it returns was the object once, and may be old, or deleted since.
// A place that changes is read again.
func (c *Client) Peek(ctx context.Context, p Pointer) ([]byte, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { <-c.turn }()
	n := firstPeek
	for until := time.Now().Add(c.o.Patience); time.Now().Before(until); {
		if err := c.connect(ctx); err != nil {
			return nil, fmt.Errorf("objects: peek: %w", err)
		}
		b, size, s, err := c.link.read(ctx, c, p, n)
		switch {
		case errors.Is(err, errPointer):
			return nil, fmt.Errorf("objects: peek: %w", errOf[s])
		case err != nil:
			if err := c.lost(ctx, wire.Message{Status: wire.Moved}, err); err != nil {
				return nil, fmt.Errorf("objects: peek: %w", err)
			}
			until = time.Now().Add(c.o.Patience)
		case s == wire.OK:
			return append([]byte{}, b...), nil
		case s == wire.TooLong:
			n = wire.HeaderLen + size // it may become longer in the meantime
		case s == wire.Changing:
			time.Sleep(peekPause)
		default:
			return nil, fmt.Errorf("objects: peek: %w", errOf[s])
		}
	}
	return nil, fmt.Errorf("objects: peek: %w", ErrState)
}

// errPointer: nothing was read, because the status says what is wrong with the pointer.
var errPointer = errors.New("the pointer is wrong")

// read reads the first n octets of a place, as far as the heap has so many.
func (l *link) read(ctx context.Context, c *Client, p Pointer, n int) (object []byte, size int, s wire.Status, err error) {
	switch {
	case p.Key != l.w.Key:
		return nil, 0, wire.Key, errPointer
	case p.Addr < l.w.Base || p.Addr-l.w.Base >= l.w.Length || (p.Addr-l.w.Base)%wire.Unit != 0:
		return nil, 0, wire.Range, errPointer
	}
	n = int(min(uint64(n), uint64(wire.MaxPlace), l.w.Length-(p.Addr-l.w.Base)))
	b := l.peek.Bytes()[:n]
	_, err = l.qp.Post([]rdma.Work{{
		ID: idRead, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: b, Region: l.peek}},
		RemoteSTag: rdma.STag(p.Key), RemoteOffset: p.Addr,
	}})
	if err == nil {
		_, err = l.await(ctx, c.o.Patience)
	}
	if err != nil {
		return nil, 0, 0, err
	}
	object, size, s = wire.ReadPlace(b, p)
	return object, size, s, nil
}
