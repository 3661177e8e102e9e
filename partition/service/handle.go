package service

import (
	"errors"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// handle is a partition in use by a connection. It is guarded by the connection's lock, except what does not change.
type handle struct {
	c        *conn
	client   string // whose it is; does not change
	number   uint32
	session  uint64
	qp       rdma.QueuePair // to the endpoint
	endpoint Endpoint
	guards   guarder // endpoint, or nil
	info     rdma.Endpoint
	order    rdma.Order
	gone     atomic.Pointer[error]
	direct   *direct // nil: the partition is not in memory

	first, last *command // that are not posted yet, in the order in which they came
	posts       []rdma.Work
	commands    int      // without a response
	left        bool     // the client has ended it
	over        bool     // a request has ended the use of the handle
	isCut       bool     // what is not posted will not be
	detach      *command // waits for the others

	results results
	known   bool // results are those of the session
	failed  bool // one of them was a failure, of which the endpoint does not know: the next fence is not executed (O6)

	once sync.Once
	end  chan struct{} // closed when the endpoint is; made by closed
	mu   sync.Mutex    // guards end; a leaf
}

// guarder is what an Endpoint may be, too: Guard returns what ends when others come to change any of the octets.
type guarder interface {
	Guard(off, n int64) backend.Guard
}

// age is how long a request that is posted has been here.
func (h *handle) age(id uint64) (ticks uint8, g backend.Guard) {
	x := h.c.commands[id]
	ticks, g = x.ticks, x.guard
	x.guard = nil
	return ticks, g
}

// closed returns what is closed when nothing of the handle is under way any more.
func (h *handle) closed() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil {
		h.end = make(chan struct{})
	}
	return h.end
}

// enlist puts x behind those that are not posted.
func (h *handle) enlist(x *command) {
	x.prev, x.next = h.last, nil
	if h.last == nil {
		h.first = x
	} else {
		h.last.next = x
	}
	h.last = x
}

func (h *handle) delist(x *command) {
	if x.prev == nil {
		h.first = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		h.last = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// advance moves the commands whose data has arrived to posts. The endpoint decides from the order of posting which
// of them may start. So no command passes a fence and no fence passes a command; on a strict handle only relaxed
// commands pass others. While the data of a fence is on its way, everything behind it waits, which is more than O5
// asks.
func (h *handle) advance() {
	if h.isCut {
		h.drain()
		return
	}
	for x := h.first; x != nil; {
		next := x.next
		fence := x.fenced() || x.r.Op == wire.Flush && h.order&rdma.FreeStart == 0 // O8
		free := h.order&rdma.FreeStart != 0 || x.r.Flags&wire.Relaxed != 0
		if x.ready && (x.prev == nil || free && !fence) {
			h.delist(x)
			h.posts = append(h.posts, x.work())
		} else if fence {
			return
		}
		x = next
	}
}

// cut sees to it that nothing more is posted to the endpoint: a request was not executed, behind which others may have to stay.
func (h *handle) cut() { h.over, h.isCut = true, true }

// drain ends the commands that will not be posted. One whose data is on its way keeps its memory until that has come or is lost.
func (h *handle) drain() {
	for x := h.first; x != nil; {
		next := x.next
		if x.ready {
			h.delist(x)
			x.answer(h.ending(), 0)
		}
		x = next
	}
}

// flush posts to the endpoint, and reports whether there was something.
func (h *handle) flush() bool {
	h.advance()
	if len(h.posts) == 0 {
		return false
	}
	ws := h.posts
	for len(ws) > 0 {
		n, err := h.qp.Post(ws)
		ws = ws[n:]
		if err == nil {
			continue
		}
		x := h.c.commands[ws[0].ID]
		st := h.ending()
		if _, wrong := errors.AsType[*rdma.WorkError](err); wrong {
			st = wire.Malformed
		}
		x.answer(st, 0)
		h.cut()
		for i := range ws[1:] {
			h.c.commands[ws[1+i].ID].answer(h.ending(), 0)
		}
		break
	}
	clear(h.posts)
	h.posts = h.posts[:0]
	return true
}

// ending is the status of requests that come after the use of the handle has ended.
func (h *handle) ending() wire.Status {
	switch why := h.gone.Load(); {
	case why == nil:
		return wire.Ended
	case errors.Is(*why, rdma.ErrReplaced):
		return wire.Replaced
	}
	return wire.Gone
}

// close ends the endpoint and waits until the store has let go of it. No lock is held.
func (h *handle) close() {
	h.once.Do(func() {
		if h.direct != nil {
			h.direct.end()
		}
		_ = h.qp.Close()
		h.c.mu.Lock()
		h.c.work() // how everything has ended that was posted
		invariant.Check(h.commands == 0, "partition/service: results are still to come of a session that is remembered")
		h.c.mu.Unlock()
		h.c.s.remember(h)
		close(h.closed())
	})
}

// status returns the status on the wire for one of the endpoint's completions.
func (h *handle) status(s rdma.Status) wire.Status {
	switch s {
	case rdma.StatusOK:
		return wire.OK
	case rdma.StatusMedium:
		return wire.Medium
	case rdma.StatusSpace:
		return wire.NoSpace
	case rdma.StatusLost:
		return wire.Lost
	case rdma.StatusFenced:
		return wire.Fenced
	case rdma.StatusRemoteAccess:
		if h.gone.Load() == nil {
			return wire.Denied
		}
	}
	return h.ending()
}
