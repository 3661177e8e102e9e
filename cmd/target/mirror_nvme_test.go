//go:build !race

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	nvmehost "oneshot/initiator/host"
	"oneshot/nvme"
)

const mirrorSubsystem = "nqn.2026-11.example.oneshot:lab"

const mirrorNVMeText = `
stores:
  disk: {type: mirror, size: 16MiB, copies: {a: {type: file, path: disk.img}, b: {type: file, path: disk.img}}}
subsystems:
  - {nqn: "` + mirrorSubsystem + `", namespaces: {1: disk}}
portals:
  - {node: a, transport: nvme-tcp, listen: "AT3"}
  - {node: b, transport: nvme-tcp, listen: "AT4"}
`

// nvmePaths is a host that has a controller at each node of a mirror.
type nvmePaths struct {
	t    *testing.T
	ctx  context.Context
	urls map[string]nvmehost.URL
	id   [16]byte
	at   map[string]*nvmehost.Controller
}

func newNVMePaths(ctx context.Context, s *site, id byte) *nvmePaths {
	p := &nvmePaths{t: s.t, ctx: ctx, urls: map[string]nvmehost.URL{}, at: map[string]*nvmehost.Controller{}, id: [16]byte{id}}
	for i, name := range []string{"a", "b"} {
		u, err := nvmehost.ParseURL("nvme+tcp://" + s.at[3+i] + "/" + mirrorSubsystem + "/1")
		if err != nil {
			s.t.Fatal(err)
		}
		p.urls[name] = u
		p.connect(name)
	}
	s.t.Cleanup(func() {
		for _, c := range p.at {
			_ = c.Close()
		}
	})
	return p
}

// connect makes a controller at a node, in place of the one that was there.
func (p *nvmePaths) connect(name string) {
	p.t.Helper()
	if c := p.at[name]; c != nil {
		_ = c.Close()
	}
	c, err := nvmehost.Dial(p.ctx, p.urls[name], nvmehost.Options{HostID: p.id, HostNQN: fmt.Sprintf("nqn.2026-11.example:host%d", p.id[0])})
	if err != nil {
		p.t.Fatal(err)
	}
	p.at[name] = c
}

// state is the access state of the disk, as a node tells it.
func (p *nvmePaths) state(name string) nvme.ANAState {
	p.t.Helper()
	b := make([]byte, 64)
	if err := p.at[name].Admin(p.ctx, &nvmehost.Command{Opcode: nvme.AdminGetLogPage, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.LogANA) | 15<<16}, In: b}); err != nil {
		p.t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint16(b[8:]); n != 1 {
		p.t.Fatalf("%d ANA groups", n)
	}
	return nvme.ANAState(b[32])
}

// await waits until a node tells that the disk is in a state.
func (p *nvmePaths) await(name string, want nvme.ANAState) {
	p.t.Helper()
	for p.state(name) != want {
		select {
		case <-time.After(10 * time.Millisecond): // as a host that looks again
		case <-p.ctx.Done():
			p.t.Fatalf("node %s tells %x, want %x", name, p.state(name), want)
		}
	}
}

func (p *nvmePaths) do(name string, x *nvmehost.Command) nvme.Status {
	p.t.Helper()
	x.NSID = 1
	err := p.at[name].Do(p.ctx, 0, x)
	s, ok := errors.AsType[*nvmehost.StatusError](err)
	switch {
	case err == nil:
		return nvme.Success
	case ok:
		return s.Status
	}
	p.t.Fatal(err)
	return 0
}

func (p *nvmePaths) write(name string, b []byte) nvme.Status {
	return p.do(name, &nvmehost.Command{Opcode: nvme.Write, DWords: [6]uint32{2: uint32(len(b)/512 - 1)}, Out: b})
}

// register makes the host a registrant, and replaces the key it had.
func (p *nvmePaths) register(name string, key uint64) nvme.Status {
	const ignoreKey = 8
	return p.do(name, &nvmehost.Command{Opcode: nvme.ReservationRegister, DWords: [6]uint32{nvme.RegisterKey | ignoreKey | uint32(nvme.PersistSet)<<30}, Out: nvme.AppendKeys(nil, 0, key)})
}

// registrants is how many a node reports.
func (p *nvmePaths) registrants(name string) int {
	p.t.Helper()
	const extended = 1
	b := make([]byte, 256)
	if s := p.do(name, &nvmehost.Command{Opcode: nvme.ReservationReport, DWords: [6]uint32{uint32(len(b)/4 - 1), extended}, In: b}); s != nvme.Success {
		p.t.Fatalf("report through %s: %v", name, s)
	}
	return int(binary.LittleEndian.Uint16(b[5:]))
}

// TestMirrorNVMe: a mirror is a namespace on both nodes: one disk with two paths, whose access states say who serves it, before and
// after a switch, and after the node that serves it was killed. The controllers of the nodes have different identifiers.
// Reservations hold at both.
func TestMirrorNVMe(t *testing.T) {
	s := newSiteOf(t, mirrorNVMeText)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	primary := s.level("a")
	p := newNVMePaths(ctx, s, 1)
	if a, b := p.at["a"].ID, p.at["b"].ID; a < 1 || a > nvme.LastCNTLID/2 || b <= nvme.LastCNTLID/2 || b > nvme.LastCNTLID {
		t.Errorf("the controllers have the identifiers %d and %d", a, b)
	}
	var disks []*nvmehost.Namespace
	for _, name := range []string{"a", "b"} {
		d, err := p.at[name].Namespace(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		disks = append(disks, d)
	}
	if disks[0].UUID != disks[1].UUID || disks[0].NGUID != disks[1].NGUID || disks[0].Size() != mirrorSize || disks[1].Size() != mirrorSize {
		t.Error("the nodes show two disks")
	}
	want := bytes.Repeat([]byte("oneshot."), 512)
	serves := func(primary string) {
		t.Helper()
		p.await(primary, nvme.ANAOptimized)
		p.await(other(primary), nvme.ANAInaccessible)
		if s := p.write(primary, want); s != nvme.Success {
			t.Errorf("a write through %s, which serves: %v", primary, s)
		}
		if s := p.write(other(primary), want); s != nvme.Inaccessible {
			t.Errorf("a write through %s, which does not serve: %v", other(primary), s)
		}
	}
	serves(primary)

	if s := p.register(primary, 1); s != nvme.Success {
		t.Fatalf("register: %v", s)
	}
	if s := p.do(primary, &nvmehost.Command{Opcode: nvme.ReservationAcquire, DWords: [6]uint32{nvme.Acquire | uint32(nvme.WriteExclusiveRegistrants)<<8}, Out: nvme.AppendKeys(nil, 1, 0)}); s != nvme.Success {
		t.Fatalf("acquire: %v", s)
	}
	bad := newNVMePaths(ctx, s, 2)
	primary = other(primary)
	s.servedBy(primary)
	serves(primary)
	bad.await(primary, nvme.ANAOptimized)
	if s := bad.write(primary, want); s.Code() != nvme.ReservationConflict {
		t.Errorf("a host without registration writes after the switch: %v", s)
	}
	if n := p.registrants(primary); n != 1 {
		t.Errorf("%d registrants after the switch", n)
	}

	lost := s.loses(s.kill, func(name string) { s.start(name) })
	primary = other(lost)
	p.connect(primary) // a start in between has ended its controller
	p.await(primary, nvme.ANAOptimized)
	got := make([]byte, len(want))
	if s := p.do(primary, &nvmehost.Command{Opcode: nvme.Read, DWords: [6]uint32{2: uint32(len(got)/512 - 1)}, In: got}); s != nvme.Success || !bytes.Equal(got, want) {
		t.Errorf("after the loss of %s: %v, or other bytes", lost, s)
	}
	s.start(lost)
	s.level(primary)
	p.connect(lost)
	serves(primary)
	s.stopAll()
}
