package nvmf

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/nvme"
)

// An event comes while an Asynchronous Event Request is being aborted: the next request tells it. An aborted one cannot, and the event would
// stay masked until the host reads a log that it has not been told of.
func TestEventBesideAbort(t *testing.T) {
	x := newTarget(t, nil, false)
	h, _ := x.admin(0)
	h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESNamespace}}, 0, nil, false)
	request := nvme.Command{Opcode: nvme.AdminAsyncEvent}
	h.start(request, 0, nil, false)
	h.q.Lock() // the Abort and the event wait for whoever has the queue
	parked := h.q.ctrl.events.parked[0]
	h.q.post(func() { parked.abortWith(nvme.Aborted) })
	x.sub.changed([]uint32{1})
	x.tell()
	h.q.Unlock()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Aborted || got[0].DW0 != 0 {
		t.Fatalf("the request that is aborted: %v", got)
	}
	h.start(request, 0, nil, false)
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success || got[0].DW0 != nvme.EventNamespaces {
		t.Errorf("the next request: %v", got)
	}
}

// A namespace in whose place another one comes is told twice, the second time some seconds after the host has read of it: Linux takes away
// its device the first time, and makes one of the other namespace the second time. One that is shown anew is told once.
func TestReplacedIsToldTwice(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	p := x.party(2, 1)
	p.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESNamespace}}, 0, nil, false)
	p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	told := func(want bool) {
		t.Helper()
		if got := p.told(); (len(got) == 1 && got[0] == nvme.EventNamespaces) != want {
			t.Errorf("told %x, and it should be told: %v", got, want)
		}
	}
	read := func() uint32 {
		const n = 4096
		c := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogChanged) | (n/4-1)<<16}}
		return binary.LittleEndian.Uint32(p.admin.must(c, n, nil, false).data)
	}
	show := func(n *target, uuid [16]byte) {
		t.Helper()
		ns, err := NewNamespace(NamespaceConfig{Volume: n.v, UUID: uuid})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: ns}})
	}
	show(x, x.ns.uuid)
	told(true)
	read()
	x.pass(2 * retellTicks)
	told(false)

	for id := range byte(8) { // many reloads, and each namespace is remembered once
		show(y, [16]byte{7, id})
	}
	told(true)
	if list := p.admin.q.ctrl.retell.list; len(list) != 1 {
		t.Errorf("told again are %v", list)
	}
	x.pass(2 * retellTicks) // the host has not read of it
	told(false)
	if first := read(); first != 1 {
		t.Errorf("the log names namespace %d", first)
	}
	x.pass(retellTicks - 1)
	told(false)
	x.pass(1)
	told(true)
	if first := read(); first != 1 {
		t.Errorf("the second time the log names namespace %d", first)
	}
	x.pass(2 * retellTicks)
	told(false)
}

// It is told twice, too, while others are told of something else.
func TestReplacedBesideOthers(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	y.ns.uuid[0]++
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 1}}) })
	p := x.party(1, 1)
	for i := range 2000 {
		var wg sync.WaitGroup
		var over atomic.Bool
		wg.Go(func() {
			for !over.Load() {
				x.tell()
			}
		})
		x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: []*Namespace{y.ns, x.ns}[i%2]}})
		over.Store(true)
		wg.Wait()
		x.tell()
		p.admin.q.Lock()
		again := len(p.admin.q.ctrl.retell.list)
		p.admin.q.ctrl.retell = retell{}
		p.admin.q.Unlock()
		if again != 1 {
			t.Fatalf("change %d: %d namespaces are told again", i, again)
		}
	}
}
