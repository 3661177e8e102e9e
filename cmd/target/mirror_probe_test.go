//go:build !race

package main

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/initiator"
)

// probe reads through each node, again and again, what a load has written last. Each read may be answered late, but with what was
// acknowledged before it began, or newer. It knows when the first one was answered after something had failed: so it sees how long a mirror
// pauses, without the time that a host needs to change its path.
type probe struct {
	t    *testing.T
	load *load
	sent map[string]*atomic.Int64 // by node

	mu   sync.Mutex
	cut  time.Time     // guarded by mu
	over chan struct{} // closed by the first answer to what was asked after the cut; nil: there was one. Guarded by mu
	took time.Duration // until then; guarded by mu
}

// newProbe begins one, which ends with the load.
func newProbe(ctx context.Context, s *site, l *load) *probe {
	p := &probe{t: s.t, load: l, sent: map[string]*atomic.Int64{}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	s.t.Cleanup(func() { cancel(); wg.Wait() })
	for i, at := range s.at[3:] {
		u, err := initiator.ParseURL("iscsi://" + at + "/iqn.2026-11.example.oneshot:lab/0")
		if err != nil {
			s.t.Fatal(err)
		}
		sent := new(atomic.Int64)
		p.sent[[]string{"a", "b"}[i]] = sent
		wg.Go(func() {
			for ctx.Err() == nil && !l.stop.Load() {
				p.path(ctx, u, sent)
				pauseFor(ctx, pace)
			}
		})
	}
	return p
}

// path logs in, and reads until the session ends. A read that is not answered is followed by others.
func (p *probe) path(ctx context.Context, u initiator.URL, sent *atomic.Int64) {
	in, cancel := context.WithTimeout(ctx, time.Second) // as a host that looks for a path
	defer cancel()
	session, err := initiator.Dial(in, u, initiator.Options{})
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer session.Close()
	lu, err := session.LU(in, 0)
	if err != nil {
		return
	}
	var ended atomic.Bool
	for ctx.Err() == nil && !p.load.stop.Load() && !ended.Load() {
		answered := make(chan struct{})
		wg.Go(func() {
			defer close(answered)
			if !p.read(ctx, session, lu, int(p.load.newest.Load())) {
				ended.Store(true)
			}
		})
		sent.Add(1)
		select {
		case <-answered:
			pauseFor(ctx, pace)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// read reads a block. false: the session has ended.
func (p *probe) read(ctx context.Context, session *initiator.Session, lu *initiator.LU, no int) bool {
	b := make([]byte, block)
	c := &initiator.Command{In: b}
	if err := lu.Prepare(c, int64(no)*block); err != nil {
		p.t.Error(err)
		return false
	}
	began, floor := time.Now(), p.load.blocks[no].floor.Load()
	if err := session.Do(ctx, c); err != nil {
		return isStatus(err)
	}
	if count := binary.BigEndian.Uint64(b[8:]); count < floor {
		p.t.Errorf("block %d has count %d, and %d was acknowledged before it was read", no, count, floor)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil && began.After(p.cut) {
		p.took = time.Since(p.cut)
		close(p.over)
		p.over = nil
	}
	return true
}

// after does something, and returns what waits for the first answer to a question of afterwards, and says how long that took.
func (p *probe) after(do func()) (wait func() time.Duration) {
	do()
	over := make(chan struct{})
	p.mu.Lock()
	p.cut, p.over = time.Now(), over
	p.mu.Unlock()
	return func() time.Duration {
		p.t.Helper()
		select {
		case <-over:
		case <-time.After(time.Minute):
			p.t.Fatal("nobody serves the mirror, a minute after something has failed")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.took
	}
}

// asks waits until n more reads were sent through a node.
func (p *probe) asks(name string, n int64) {
	p.t.Helper()
	until, give := p.sent[name].Load()+n, time.After(time.Minute)
	for p.sent[name].Load() < until {
		select {
		case <-time.After(time.Millisecond):
		case <-give:
			p.t.Fatalf("node %s is not asked", name)
		}
	}
}
