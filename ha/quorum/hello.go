package quorum

import (
	"fmt"
	"maps"
)

// Hello is what two members tell each other when they connect, before anything else.
type Hello struct {
	Cluster     uint64
	Number      uint64
	Incarnation uint64
	Nonce       uint64
	Start       uint64 // the first batch of this life: all before it were on the disk when it began
	Batch       uint64 // the newest one
}

// Errors with which a member is refused. Each says what to do, at both ends.
type (
	// StrangerError: not one of this cluster.
	StrangerError struct{ Why string }
	// OutdatedError: a member whose promises cannot be relied on. It must not take part under its number again.
	OutdatedError struct {
		Why string
		// Former: the cluster goes on without this node for good. A node of an older version serves its mirrors on unless it reads that.
		Former bool
	}
	// RunningError: a member that is connected in another life. It goes away when that one has ended.
	RunningError struct{ Why string }
	// UnmetError: a member in a life that this one has not met at the member's address. It is taken when it answers there.
	UnmetError struct{ Why string }
)

func (e *StrangerError) Error() string { return e.Why }
func (e *OutdatedError) Error() string { return e.Why }
func (e *RunningError) Error() string  { return e.Why }
func (e *UnmetError) Error() string    { return e.Why }

func replacedError(name string) error {
	return &OutdatedError{Former: true, Why: fmt.Sprintf("node %s was replaced or removed, and this machine is the former one: to use it again, empty its state directory and run `target ha join` with a new token", name)}
}

// formerError is for members of the cluster that this node was one of before it was forced to be one of its own.
func formerError(by string) error {
	return &OutdatedError{Former: true, Why: fmt.Sprintf("the cluster was forced to go on without this node (target ha force on node %s), and the node is of its former generation: what it has written since is in no other copy. To give that up, end this node, and run `target ha rejoin --discard-mine` on it, with a token of `target ha token`", by)}
}

func cloneError(name string) error {
	return &OutdatedError{Why: fmt.Sprintf("node %s has run with a newer state than this: this machine is a clone of it, or its state directory was set back to an older one. If it is a clone, end it; if node %s itself was set back, run `target ha replace %s` on another node, and join anew: it may have forgotten what it has promised", name, name, name)}
}

func setBackError(name string, had, has uint64) error {
	return &OutdatedError{Why: fmt.Sprintf("the state directory of node %s was set back to an older one: its log had %d batches, and has %d. It may have forgotten what it has promised: run `target ha replace %s` on another node, and join anew", name, had, has, name)}
}

// Hello returns what this member says of itself.
func (c *Core) Hello() Hello {
	id := &c.log.id
	return Hello{id.Cluster, id.Number, id.Incarnation, id.Nonce, c.log.start, c.log.newest()}
}

// Seen returns how far the logs of the members had come when they were last heard.
func (c *Core) Seen() map[uint64]Seen {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	return maps.Clone(c.log.seen)
}

// Admit checks the hello of a member that its certificate names. connected says that another life of it is
// connected, and was heard within the election timeout. there says that the hello was made at the address at which this node looks for the member:
// a life that is not known yet is taken nowhere else, or a clone would have the place of a node that is cut off. When it returns nil connections
// of other lives have to end.
//
// before is what Seen said of the member before it made the hello. A hello may be late: what the member has written since
// then it may have told over its other connection already.
func (c *Core) Admit(h Hello, before Seen, connected, there bool) error {
	if h.Cluster != c.log.id.Cluster {
		return &StrangerError{fmt.Sprintf("this is cluster %016x, and the node is of cluster %016x: look at the addresses in `cluster.nodes` of both", c.log.id.Cluster, h.Cluster)}
	}
	name := fmt.Sprintf("%d", h.Number)
	m := c.state.member(h.Number)
	if m != nil {
		name = m.Name
	}
	if m == nil && h.Number < c.state.next || m != nil && m.Leaving != Stays {
		return replacedError(name)
	}
	seen := c.log.seenOf(h.Number)
	if m != nil && m.Incarnation > seen.Incarnation {
		seen.Incarnation, seen.Nonce = m.Incarnation, m.Nonce
	}
	switch {
	case h.Number == c.log.id.Number:
		return cloneError(name)
	case h.Incarnation < seen.Incarnation, h.Incarnation == seen.Incarnation && h.Nonce != seen.Nonce:
		return cloneError(name)
	case h.Incarnation == seen.Incarnation:
		if h.Incarnation == before.Incarnation && h.Batch < before.Batch {
			return setBackError(name, before.Batch, h.Batch)
		}
	case h.Start <= seen.Batch:
		return setBackError(name, seen.Batch, h.Start-1)
	case connected:
		return &RunningError{fmt.Sprintf("node %s is connected already, from another machine or in a life that is about to end: if this one is a clone, end it", name)}
	case !there:
		return &UnmetError{fmt.Sprintf("node %s has started, and was not found at the address that `cluster.nodes` has of it yet; it is tried again. If that goes on look at that address, or, if this machine is a clone of the node, end it", name)}
	}
	c.log.note(h.Number, Seen{h.Incarnation, h.Nonce, h.Batch})
	return nil
}
