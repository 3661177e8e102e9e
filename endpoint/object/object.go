// Package object keeps objects in the memory of a target, which may be a cluster: insert, update, read and delete, by pointers
// that stay as they are when a node is lost. It imports nothing of the target.
//
//	c, err := object.Open(ctx, object.Options{Nodes: []string{"192.0.2.1:7261", "192.0.2.2:7261"}})
//	p, err := c.Insert(ctx, []byte("hello"))
//	b, err := c.Read(ctx, p)
//
// # What is promised
//
// A change is answered when the store of the heap has it; that of a mirror, when as many nodes have it as the mirror demands. It
// takes place once, however often it has to be sent: the client has an ID, and numbers its requests. Read returns what was
// written last. Peek may return what is older.
//
// When a node does not answer, or is not the primary, the client asks the others, until the context of the call ends. If it
// ends while a change is under way, that may take place, or not.
package object

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"oneshot/ha/heap/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// Pointer names an object, on every node of the cluster. String gives its text, and ParsePointer reads that.
type Pointer = wire.Pointer

// ParsePointer reads the text of a pointer.
func ParsePointer(text string) (Pointer, error) { return wire.ParsePointer(text) }

// MaxObject is the length of the longest object, in octets.
const MaxObject = wire.MaxObject

// What an error may be (errors.Is).
var (
	ErrKey       = errors.New("the pointer is of another heap")
	ErrRange     = errors.New("the pointer names no place of the heap")
	ErrStale     = errors.New("the object was deleted, and its place may have another one")
	ErrState     = errors.New("the place is damaged, or was being changed each time")
	ErrFull      = errors.New("the heap is full: delete objects")
	ErrTooLong   = fmt.Errorf("the object is longer than %d bytes", MaxObject)
	ErrForgotten = errors.New("the heap has forgotten this client while its request was under way: nobody knows whether that was done")
	ErrDenied    = errors.New("the name or the secret of the client is wrong")
	ErrClosed    = errors.New("the client is closed")
)

var errOf = map[wire.Status]error{
	wire.Key: ErrKey, wire.Range: ErrRange, wire.Stale: ErrStale, wire.Changing: ErrState, wire.Full: ErrFull, wire.TooLong: ErrTooLong,
	wire.Denied: ErrDenied,
}

// Options say whose heap it is, and who wants it.
type Options struct {
	Nodes  []string // HOST:PORT of one node, or of more. They tell of the others
	Name   string   // of the client; empty: the heap has no names
	Secret []byte   // of the client
	// Patience is how long a node may take for an answer before the others are asked; 2 s. It is not how long that takes: the end
	// of a connection is noticed at once.
	Patience time.Duration
	// Device is the RDMA device; nil: RDMA in user space. The client does not close it.
	Device rdma.Device
}

// Client uses a heap. Its methods may be called from any goroutine; there is one request at a time, so who wants more at once opens
// more clients.
type Client struct {
	o     Options
	dev   rdma.Device
	turn  chan struct{} // holds one element while somebody uses what is below
	over  bool
	nodes []string // the most promising first
	link  *link    // to the primary; nil: there is none

	id     uint64
	number uint64 // of the last change
	joined bool   // the heap knows id
}

// maxKnown bounds the nodes that a client remembers.
const maxKnown = 64

// pause is the time between two rounds of questions to all nodes.
const pause = 20 * time.Millisecond

// Open returns a client that has found the primary.
func Open(ctx context.Context, o Options) (*Client, error) {
	if len(o.Nodes) == 0 || len(o.Nodes) > maxKnown {
		return nil, fmt.Errorf("objects: there are %d nodes: name 1 to %d", len(o.Nodes), maxKnown)
	}
	if len(o.Name) > wire.MaxName {
		return nil, fmt.Errorf("objects: the name has more than %d bytes", wire.MaxName)
	}
	if o.Patience <= 0 {
		o.Patience = 2 * time.Second
	}
	c := &Client{o: o, dev: o.Device, turn: make(chan struct{}, 1), nodes: slices.Clone(o.Nodes)}
	if c.dev == nil {
		var err error
		if c.dev, err = iwarp.Open(iwarp.Config{}); err != nil {
			return nil, err
		}
	}
	c.renew()
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// renew gives the client another ID.
func (c *Client) renew() {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	c.id, c.number, c.joined = max(1, binary.BigEndian.Uint64(b[:])), 0, false
}

// Close ends the connection.
func (c *Client) Close() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.over {
		return nil
	}
	c.over = true
	err := c.drop()
	if c.o.Device == nil {
		err = errors.Join(err, c.dev.Close())
	}
	return err
}

// Insert keeps a copy of b, of up to MaxObject octets, and returns the pointer to it.
func (c *Client) Insert(ctx context.Context, b []byte) (Pointer, error) {
	m, err := c.change(ctx, wire.Message{Op: wire.Insert, Data: b})
	return m.Pointer, err
}

// Update replaces an object by a copy of b. The pointer that it returns is p, unless the object has outgrown its place: then p is stale.
func (c *Client) Update(ctx context.Context, p Pointer, b []byte) (Pointer, error) {
	m, err := c.change(ctx, wire.Message{Op: wire.Update, Pointer: p, Data: b})
	return m.Pointer, err
}

// Delete ends an object. Its pointer is stale from then on.
func (c *Client) Delete(ctx context.Context, p Pointer) error {
	_, err := c.change(ctx, wire.Message{Op: wire.Delete, Pointer: p})
	return err
}

// Read returns an object, as it was written last.
func (c *Client) Read(ctx context.Context, p Pointer) ([]byte, error) {
	m, err := c.request(ctx, wire.Message{Op: wire.Read, Pointer: p})
	return m.Data, err
}

// Primary returns the address of the node that has served the last request.
func (c *Client) Primary() string {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.link == nil {
		return ""
	}
	return c.link.node
}

func (c *Client) change(ctx context.Context, m wire.Message) (wire.Message, error) {
	if len(m.Data) > MaxObject {
		return wire.Message{}, fmt.Errorf("objects: %v: %w", m.Op, ErrTooLong)
	}
	return c.request(ctx, m)
}

// enter waits until it is the caller's turn.
func (c *Client) enter(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.over {
		<-c.turn
		return ErrClosed
	}
	return nil
}

// request sends a request until a primary has answered it.
func (c *Client) request(ctx context.Context, m wire.Message) (wire.Message, error) {
	if err := c.enter(ctx); err != nil {
		return wire.Message{}, err
	}
	defer func() { <-c.turn }()
	fail := func(err error) (wire.Message, error) {
		return wire.Message{}, fmt.Errorf("objects: %v: %w", m.Op, err)
	}
	changes := m.Op != wire.Read
	sent := 0 // how often; if more than once, perhaps a node has done it
	for {
		if err := c.connect(ctx); err != nil {
			return fail(err)
		}
		if changes && !c.joined {
			a, err := c.link.ask(ctx, wire.Message{Op: wire.Join, Client: c.id}, c.o.Patience)
			if err != nil || a.Status != wire.OK {
				if err := c.lost(ctx, a, err); err != nil {
					return fail(err)
				}
				continue
			}
			c.joined = true
		}
		if m.Client = c.id; changes && sent == 0 {
			c.number++
			m.Number = c.number
		}
		sent++
		a, err := c.link.ask(ctx, m, c.o.Patience)
		switch {
		case err != nil || a.Status == wire.Moved:
			if err := c.lost(ctx, a, err); err != nil {
				return fail(err)
			}
		case a.Status == wire.Unknown && changes:
			c.renew()
			if sent > 1 {
				return fail(ErrForgotten)
			}
			sent = 0
		case a.Status == wire.OK:
			return a, nil
		case errOf[a.Status] != nil:
			return fail(errOf[a.Status])
		default:
			return fail(fmt.Errorf("the service says: %v", a.Status))
		}
	}
}

// lost ends a connection that is of no use. The error is that of ctx, or one that another node would have, too.
func (c *Client) lost(ctx context.Context, a wire.Message, err error) error {
	node := c.link.node
	_ = c.drop()
	if err == nil && a.Status != wire.Moved {
		return fmt.Errorf("the service says: %v", a.Status)
	}
	if i := slices.Index(c.nodes, node); i >= 0 { // the others first
		c.nodes = append(slices.Delete(c.nodes, i, i+1), node)
	}
	return ctx.Err()
}

func (c *Client) drop() error {
	l := c.link
	c.link = nil
	if l == nil {
		return nil
	}
	return l.close()
}

// connect finds the primary, unless there is a connection to it.
func (c *Client) connect(ctx context.Context) error {
	var last error
	for c.link == nil {
		for _, node := range slices.Clone(c.nodes) {
			l, w, err := c.dial(ctx, node)
			switch {
			case errors.Is(err, ErrDenied):
				return err
			case err != nil:
				last = fmt.Errorf("%s: %w", node, err)
			default:
				c.learn(w.Nodes)
				if w.Primary {
					c.link = l
					return nil
				}
				_ = l.close()
				last = fmt.Errorf("%s: %v", node, wire.Moved)
			}
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), last)
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-time.After(pause):
		}
	}
	return nil
}

func (c *Client) dial(ctx context.Context, node string) (*link, *wire.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Patience)
	defer cancel()
	return dial(ctx, c.dev, node, c.o.Name, c.o.Secret, c.o.Patience)
}

// learn puts nodes that were told of before the others.
func (c *Client) learn(nodes []string) {
	for _, n := range slices.Backward(nodes) {
		if i := slices.Index(c.nodes, n); i >= 0 {
			c.nodes = slices.Delete(c.nodes, i, i+1)
		} else if len(c.nodes) == maxKnown {
			continue
		}
		c.nodes = slices.Insert(c.nodes, 0, n)
	}
}
