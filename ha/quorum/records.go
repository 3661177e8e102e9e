package quorum

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Update changes a record to what change makes of it, and again if somebody else was faster, until it has or ctx ends.
// old is nil if there is no record; change keeps nothing of it. If change returns the same, nothing is written.
func (n *Node) Update(ctx context.Context, k Key, change func(old []byte) ([]byte, error)) error {
	for {
		r, err := n.Get(ctx, k)
		if err != nil {
			return err
		}
		var version uint64
		var old []byte
		if r != nil {
			version = r.Version
		}
		if r != nil && !r.Deleted {
			old = r.Value
		}
		value, err := change(old)
		if err != nil || old != nil && bytes.Equal(old, value) {
			return err
		}
		_, err = n.Put(ctx, k, version, value)
		if err != ErrConflict && err != ErrUnknown || ctx.Err() != nil {
			return err
		}
	}
}

// NodeInfo is the record of KindNode: what a node says of itself.
type NodeInfo struct {
	Version string // of its software
	Parts   []Part // of its configuration
}

// Part is a part of a configuration, and a digest of it.
type Part struct {
	Name string
	Sum  [16]byte
}

// Encode returns the value of the record.
func (n *NodeInfo) Encode() []byte {
	b := appendBytes([]byte{1}, n.Version)
	for _, p := range n.Parts {
		b = append(appendBytes(b, p.Name), p.Sum[:]...)
	}
	return b
}

// DecodeNodeInfo reads the value of a record.
func DecodeNodeInfo(b []byte) (*NodeInfo, error) {
	c := cursor{b: b}
	if v := c.u8(); c.err == nil && v != 1 {
		return nil, fmt.Errorf("what a node says of itself has format %d, which this version does not know", v)
	}
	n := &NodeInfo{Version: c.string()}
	for c.err == nil && len(c.b) > 0 {
		n.Parts = append(n.Parts, Part{c.string(), [16]byte(c.fixed(16))})
	}
	return n, c.end()
}

// errOther says that a state is not the one that was meant.
func errOther(what, has, want string) error {
	if want == "" || has == want || has == "" {
		return nil
	}
	return errors.New("the state is that of " + what + " " + has + ", and this is " + what + " " + want + ": give each a directory of its own")
}
