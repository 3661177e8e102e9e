package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"oneshot/mgmt"
)

// What is wrong with the disk of a copy its own node knows. It tells the other members, again and again as long as that is so, and once when it is
// over. What has not been said for some time is forgotten, as the node may have ended. Nodes of former versions neither tell nor hear.

const (
	troubleAgain = 2 * time.Second  // trouble is told anew
	troubleTime  = 10 * time.Second // a node that has not told anew for so long has none any more
)

// troubles are those of other nodes' copies.
type troubles struct {
	mu    sync.Mutex
	known map[troubled]told // guarded by mu
}

// troubled is the copy of a node.
type troubled struct{ mirror, node string }

// told is what its node has said of it.
type told struct {
	mgmt.CopyTrouble
	at time.Time
}

func (t *troubles) know(of troubled, what mgmt.CopyTrouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if what.Reason == "" {
		delete(t.known, of)
		return
	}
	if t.known == nil {
		t.known = make(map[troubled]told)
	}
	t.known[of] = told{what, time.Now()}
}

// addTo says what other nodes have told of their copies of a mirror. A copy that is in sync by the view, and of whose disk its node knows nothing, counts
// for nothing there.
func (t *troubles) addTo(m *mgmt.Mirror) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range m.Copies {
		c := &m.Copies[i]
		now, ok := t.known[troubled{m.Name, c.Node}]
		if !ok || time.Since(now.at) > troubleTime {
			continue
		}
		c.Reason = now.Reason
		if now.State == mgmt.CopyDoubted && c.State == mgmt.CopyInSync {
			c.State = now.State
		}
	}
}

// KnowTrouble implements mgmt.Peer.
func (h here) KnowTrouble(name, node string, what mgmt.CopyTrouble) error {
	k, err := h.member.knownMirror(name)
	if err != nil {
		return err
	}
	if node == h.member.name || !slices.Contains(k.Copies, node) {
		return &mgmt.NotFoundError{What: "no other node " + node + " has a copy of " + name}
	}
	h.member.trouble.know(troubled{name, node}, what)
	return nil
}

// tellTrouble tells the other members what is wrong with the copy of this node, until Close.
func (s *mirrored) tellTrouble() {
	again := time.NewTicker(troubleAgain)
	defer again.Stop()
	for isTold := true; ; { // in a former life, perhaps
		select {
		case <-s.ctx.Done():
			return
		case <-again.C:
		}
		st, ok := s.Status()
		if !ok {
			return
		}
		c := s.copyStatus(&st, s.self, s.node)
		if c.Reason == "" && !isTold {
			continue
		}
		isTold = c.Reason != ""
		now := s.quorum.Status()
		var wg sync.WaitGroup
		for _, o := range now.Members {
			if o.Name != s.node && isUp(&now, o.Name) {
				wg.Go(func() { s.tellTroubleTo(o.Name, mgmt.CopyTrouble{State: c.State, Reason: c.Reason}) })
			}
		}
		wg.Wait()
	}
}

func (s *mirrored) tellTroubleTo(node string, what mgmt.CopyTrouble) {
	ctx, cancel := context.WithTimeout(s.ctx, peerTime)
	defer cancel()
	c := s.member.peer(node)
	defer c.Close()
	_ = c.TellTrouble(ctx, s.name, s.node, what) // who does not hear it is told again, or forgets
}
