package server

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"oneshot/endpoint/object"
	"oneshot/ha/heap"
	objects "oneshot/ha/heap/service"
)

// A store in which objects are kept does not become a disk, nor a disk a store of objects, while it is open: the heap would write over what
// initiators write, and believe to know what is there.
func TestStoreOfObjectsIsNoDisk(t *testing.T) {
	const (
		objects = `
stores: {m: {type: memory, size: 1MiB}, h: {type: memory, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}, {transport: iwarp, listen: "127.0.0.1:0", serve: objects, store: h}]
`
		disk = `
stores: {m: {type: memory, size: 1MiB}, h: {type: memory, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: h}}]
portals: [{listen: "127.0.0.1:0"}]
`
	)
	for was, next := range map[string]string{objects: disk, disk: objects} {
		r := serve(t, was)
		if _, err := r.Apply(r.parse(next)); err == nil || !strings.Contains(err.Error(), "restart") {
			t.Errorf("%v\nfrom%sto%s", err, was, next)
		}
		if n := len(r.heaps.status()); n != strings.Count(was, "serve: objects") {
			t.Errorf("%d heaps", n)
		}
		// In two steps the store is closed in between.
		r.apply(strings.NewReplacer(", 1: h", "", `, {transport: iwarp, listen: "127.0.0.1:0", serve: objects, store: h}`, "").Replace(was))
		r.apply(next)
		for len(r.heaps.status()) != strings.Count(next, "serve: objects") && t.Context().Err() == nil {
			runtime.Gosched() // it is closed in the background
		}
	}
}

// When a reload puts another store in the place of that of a portal for objects, under its name, the portal serves the new one.
func TestObjectsOfAnotherStore(t *testing.T) {
	const text = `
stores: {m: {type: memory, size: 1MiB}, h: {type: file, path: PATH, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}, {transport: iwarp, listen: "127.0.0.1:0", serve: objects, store: h}]
`
	r := serve(t, strings.Replace(text, "PATH", "one.img", 1))
	before := r.heaps.find("h")
	r.apply(strings.Replace(text, "PATH", "two.img", 1))
	host := r.heaps.find("h")
	if host == before || host == nil {
		t.Fatal("the heap is in the old store")
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if len(host.services) != 1 {
		t.Errorf("%d portals serve the heap in the new store", len(host.services))
	}
}

// A reload takes a store of objects and its portal away: the memory of the heap stays until the portal's connections have ended, for what is on its way there
// reads it.
func TestHeapOutlivesItsPortal(t *testing.T) {
	const disk = `
stores: {m: {type: memory, size: 1MiB}, h: {type: memory, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, disk[:strings.LastIndex(disk, "]")]+`, {transport: iwarp, listen: "127.0.0.1:0", serve: objects, store: h}]`)
	p := r.portals[1].portal.(*servicePortal)
	c, err := object.Open(t.Context(), object.Options{Nodes: []string{p.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	leave, applied, left := p.leave, make(chan struct{}), make(chan int)
	p.leave = func() {
		leave()
		<-applied
		if closing := r.retirements.going(); closing != nil {
			<-closing
		}
		left <- p.service.(*objects.Service).Connections()
	}
	r.apply(disk)
	close(applied)
	if n := <-left; n > 0 {
		t.Errorf("%d connections use a heap that is closed", n)
	}
}

// A heap that was opened in a former term of this node's is not served in the next one, though the node was never seen not to be the primary: another node may have
// changed objects in between, and clients that peek would be told for ever that they are gone.
func TestHeapOfAFormerTerm(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	h, err := heap.Open(m)
	if err != nil {
		t.Fatal(err)
	}
	x := &heapHost{name: m.name, store: m, mirror: m, log: slog.New(slog.DiscardHandler)}
	x.ctx, x.stop = context.WithCancel(t.Context())
	x.serve(h, m.Term()-1)
	if !errors.Is(h.Err(), errHandedOver) {
		t.Errorf("it has ended for this reason: %v", h.Err())
	}
}
