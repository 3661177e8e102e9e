package service

import (
	"cmp"
	"slices"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// results are those of the last requests of a session that change something. A client that has lost its connection does
// not know which requests were done: it sends again what has had no response (wire.Again), and gets the result from
// here. It has at most maxCredits requests without a response, and has had the responses of those before them, for
// responses come in the order of the list: that in which requests end, or are answered again. One that waits for its fence once more has its result
// with it (command.kept): requests of which the client has the responses may pass it, and take the place of the result.
type results struct {
	list  []result // the oldest is at next
	next  int
	ended uint64 // requests that have ended
}

// tagLife is for how many requests a result counts. A client that changes nothing meanwhile leaves it in the list, and comes back to its tag, in
// the case of package remote after 2^26 requests.
const tagLife = 1 << 25

type result struct {
	ended  uint64 // the requests before it that had ended
	tag    uint32
	op     wire.Op
	status wire.Status
	value  uint64
}

// note keeps the result of r, if that is one that counts: r was executed, and may not be executed again; or its fence has kept it from that, and
// what comes behind it may have been executed since. kept: r has found the result here, which becomes the newest.
func (s *results) note(r *wire.Request, st wire.Status, value uint64, kept bool) {
	s.ended++
	switch r.Op {
	case wire.Write, wire.Discard, wire.Swap, wire.Add:
	default:
		return
	}
	switch st {
	case wire.OK, wire.Medium, wire.NoSpace, wire.Lost, wire.Fenced:
	default:
		return
	}
	if kept {
		if i := s.find(r); i >= 0 {
			s.renew(i)
			return
		}
	} else if r.Length == 0 { // it changes nothing, and must not take the place of one whose response is still to come
		return
	}
	x := result{s.ended, r.Tag, r.Op, st, value}
	if len(s.list) < maxCredits {
		s.list = append(s.list, x)
		return
	}
	s.list[s.next] = x
	s.next = (s.next + 1) % maxCredits
}

// renew makes a result the newest.
func (s *results) renew(i int) {
	x := s.list[i]
	x.ended = s.ended
	for k := (i + 1) % len(s.list); k != s.next; k = (i + 1) % len(s.list) {
		s.list[i], i = s.list[k], k
	}
	s.list[i] = x
}

// find returns the index of the result of r, or -1.
func (s *results) find(r *wire.Request) int {
	return slices.IndexFunc(s.list, func(x result) bool {
		return x.tag == r.Tag && x.op == r.Op && s.ended-x.ended < tagLife
	})
}

// again settles x if it is not to be executed: because it was done on an earlier connection of the session, or because it has a fence, and
// what has failed before it was done there.
func (h *handle) again(x *command) {
	if x.r.Flags&wire.Again != 0 && h.known {
		if i := h.results.find(&x.r); i >= 0 {
			r := h.results.list[i]
			h.failed = r.status != wire.OK && r.status != wire.Fenced || h.failed && !x.fenced()
			x.settle(r.status, r.value)
			x.kept = true
			return
		}
	}
	if x.fenced() && h.failed {
		h.failed = false
		x.settle(wire.Fenced, 0)
	}
}

// past is a session without a connection.
type past struct {
	session   uint64
	client    string // whose it is
	partition string // UUID or name
	lineage   uint64 // of its last endpoint
	// generation is that of the numbers of writes. The store of another one was opened anew: what the results tell of may be gone.
	generation uint16
	results    results
}

// maxPast bounds the sessions that are remembered. When there are more, the oldest of the client that has most is forgotten, and that
// client hears that it is not known how its requests have ended.
const maxPast = 256

// forgetOne makes room for one session more. Service.mu is held.
func (s *Service) forgetOne() {
	if len(s.past) < maxPast {
		return
	}
	n := make(map[string]int)
	for _, p := range s.past {
		n[p.client]++
	}
	most := slices.MaxFunc(s.past, func(a, b *past) int { return cmp.Compare(n[a.client], n[b.client]) }) // the first of them
	s.past = slices.DeleteFunc(s.past, func(p *past) bool { return p == most })
}

// remember ends a handle; its session can be gone on with, unless the client has ended it, or can only read: then nothing depends on it.
func (s *Service) remember(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, h.session)
	if h.session == 0 || h.left || !h.info.Rights.Changes() {
		return
	}
	s.forgetOne()
	s.past = append(s.past, &past{h.session, h.client, h.partition(), h.endpoint.Lineage(), h.generation(), h.results})
}

// lineage is that of the last endpoint of a session that a client goes on with; 0: the session is not remembered.
func (s *Service) lineage(session uint64, client string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.sessions[session]; h != nil && h.client == client { // another connection of the client has just gone on with it
		return h.endpoint.Lineage()
	}
	for _, p := range s.past {
		if p.session == session && p.client == client {
			return p.lineage
		}
	}
	return 0
}

// resume gives h the session that its client goes on with, if it is remembered, or a new one. It reports false, and does nothing,
// if another handle has that session: of two connections that have waited for the end of a third one, it was the first.
func (s *Service) resume(h *handle, session uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.sessions[session]; o != nil && o.client == h.client && o.partition() == h.partition() {
		return false
	}
	i := slices.IndexFunc(s.past, func(p *past) bool {
		return p.session == session && p.client == h.client && p.partition == h.partition() && p.generation == h.generation()
	})
	if i >= 0 {
		h.session, h.known, h.results = session, true, s.past[i].results
		s.past = slices.Delete(s.past, i, i+1)
	}
	for h.session == 0 || s.sessions[h.session] != nil {
		h.session = random()
	}
	s.sessions[h.session] = h
	return true
}

// generation is that of the numbers of writes.
func (h *handle) generation() uint16 { return rdma.Generation(h.endpoint.Sequence().Count()) }

// partition identifies what the handle uses.
func (h *handle) partition() string {
	if h.info.UUID != "" {
		return h.info.UUID
	}
	return h.info.Name
}
