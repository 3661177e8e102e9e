package nic

import (
	"oneshot/internal/ring"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// tags are the STags that the card has set aside for a queue pair. The lock of the queue pair guards them.
type tags struct {
	slots []tag
	at    map[uint32]int32 // by the index in the card's table
	free  ring.Ring[int32] // of slots: the one that was used longest ago is next
}

const keyBits = 8

// use is what an STag is in use for.
type use uint8

const (
	unused    use = iota
	advertise     // one-shot
	revoking      // one-shot, which is being taken back
	binding       // a window
)

// tag is an STag, or the next one of an index that is not in use.
type tag struct {
	stag rdma.STag
	use  use
	// going: the invalidation of a window is posted.
	going  bool
	window *window
	done   func() // revoking
}

// add takes what the card has set aside.
func (t *tags) add(list []rdma.STag) {
	if t.at == nil {
		t.at = make(map[uint32]int32)
	}
	for _, s := range list {
		i := int32(len(t.slots))
		t.slots = append(t.slots, tag{stag: s})
		t.at[uint32(s)>>keyBits] = i
		t.free.Push(i)
	}
}

// take returns an STag that is not in use, or nil.
func (t *tags) take(u use) *tag {
	if t.free.Len() == 0 {
		return nil
	}
	x := &t.slots[*t.free.At(t.free.Head)]
	t.free.Head++
	x.use = u
	return x
}

// find returns an STag that is in use, or nil.
func (t *tags) find(s rdma.STag) *tag {
	i, ok := t.at[uint32(s)>>keyBits]
	if !ok || t.slots[i].stag != s || t.slots[i].use == unused {
		return nil
	}
	return &t.slots[i]
}

// give ends the use of an STag that the card does not use any more. The next use of the index has the next key, as
// in the card's table.
func (t *tags) give(x *tag) {
	i := t.at[uint32(x.stag)>>keyBits]
	*x = tag{stag: x.stag&^0xff | rdma.STag(uint8(x.stag)+1)}
	t.free.Push(i)
}

// moreTags is how many STags are asked for when there are none left.
const moreTags = 64

// more asks the card for STags. The lock is not held.
func (q *queuePair) more() error {
	a, err := q.dev.ask(&shm.Message{Op: shm.OpSTags, Number: q.number, Depth: moreTags})
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.tags.add(a.STags)
	q.mu.Unlock()
	return nil
}

// unbound notes that the binding of a window has ended. The lock is held.
func (q *queuePair) unbound(s rdma.STag) {
	t := q.tags.find(s)
	if t == nil || t.use != binding {
		return
	}
	w := t.window
	w.mu.Lock()
	if w.tag == s {
		w.qp, w.going = nil, false
	}
	w.mu.Unlock()
	q.tags.give(t)
}
