package server

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/initiator"
	"oneshot/scsi"
)

// stopping is a store whose reads, while it is armed, say that they have come, and wait in the hands of the connection.
type stopping struct {
	backend.Store
	mu     sync.Mutex
	armed  bool
	inside chan struct{}
	goOn   chan struct{}
}

func (s *stopping) Submit(op *backend.Op) bool {
	s.mu.Lock()
	stop := s.armed && op.Kind == backend.Read
	s.mu.Unlock()
	if stop {
		s.inside <- struct{}{}
		<-s.goOn
	}
	return s.Store.Submit(op)
}

func (s *stopping) arm(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = on
}

// A reload gives a target to another initiator, with another store. The commands of the first one that have come already, in one batch with
// one that is being handled, do not see the new store.
func TestTargetGoesToAnotherInitiator(t *testing.T) {
	a := &stopping{inside: make(chan struct{}), goOn: make(chan struct{})}
	inner := opener
	t.Cleanup(func() { opener = inner })
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		s, err := inner(c, o)
		if c.Name == "a" && err == nil {
			a.Store = s
			return a, nil
		}
		return s, err
	}
	text := func(who, store string) string {
		return `
stores: {a: {type: memory, size: 8MiB}, b: {type: memory, size: 8MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", initiators: ["iqn.2026-11.example.client:` + who + `"], luns: {0: ` + store + `}}]
portals: [{listen: "127.0.0.1:0", moderation: false}]
`
	}
	r := serve(t, text("x", "a"))
	dial := func(who string) (*initiator.Session, error) {
		return initiator.Dial(t.Context(), initiator.URL{Address: r.Addrs()[0].String(), Target: iqn + "a", LUN: -1}, initiator.Options{InitiatorName: "iqn.2026-11.example.client:" + who})
	}
	x, err := dial("x")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	attentions(t, x, 0)
	var over sync.WaitGroup
	read := func() *initiator.Command {
		c := &initiator.Command{CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, In: make([]byte, 512), Done: func(*initiator.Command) { over.Done() }}
		over.Add(1)
		x.Start(c)
		return c
	}
	if _, err := unit(t, x, 0).WriteAt(bytes.Repeat([]byte{1}, 512), 0); err != nil {
		t.Fatal(err)
	}
	a.arm(true)
	read()
	<-a.inside // and what comes now is one batch
	_, last := read(), []*initiator.Command{read(), read(), read()}
	a.goOn <- struct{}{}
	<-a.inside
	a.arm(false)

	st := r.targets[iqn+"a"]
	before := st.Stats()[0].LU
	next := r.parse(text("y", "b"))
	applied := make(chan error, 1)
	go func() {
		_, err := r.Apply(next)
		applied <- err
	}()
	for !showsOther(st, before) && !waitsForConnections() {
		runtime.Gosched()
	}
	a.goOn <- struct{}{}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	over.Wait()
	for i, c := range last {
		if c.Failure() == nil && c.In[0] != 1 {
			t.Errorf("read %d of those that came before the reload has %d of the new store, which is for another initiator", i, c.In[0])
		}
	}
	if _, err := dial("x"); err == nil {
		t.Error("the first initiator logs in still")
	}
	y, err := dial("y")
	if err != nil {
		t.Fatal(err)
	}
	works(t, y, 0)
	_ = y.Close()
	if err := r.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// showsOther reports whether LUN 0 is another one.
func showsOther(st *scsi.Target, before *scsi.LogicalUnit) bool {
	return !slices.ContainsFunc(st.Stats(), func(s scsi.LUNStats) bool { return s.LUN == 0 && s.LU == before })
}

// waitsForConnections reports whether a change waits until no connection is in somebody's hands.
func waitsForConnections() bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "iscsi.(*Node).Quiesce")
}
