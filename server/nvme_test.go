package server

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

const nqn = "nqn.2026-11.example.oneshot:"

// namespaces lists the active namespaces of a controller.
func namespaces(h *nvmetest.Host) string {
	_, b := h.Must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSActiveNamespaces)}}, nil, nvme.IdentifyLen)
	var list []uint32
	for ; binary.LittleEndian.Uint32(b) != 0; b = b[4:] {
		list = append(list, binary.LittleEndian.Uint32(b))
	}
	return fmt.Sprint(list)
}

// blocks is the size of a namespace.
func blocks(h *nvmetest.Host, nsid uint32) uint64 {
	_, b := h.Must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid}, nil, nvme.IdentifyLen)
	return binary.LittleEndian.Uint64(b)
}

// Namespaces and subsystems come, go and grow while a host is connected, which is told, and whose I/O goes on. What it may not have any
// more it loses.
func TestSubsystems(t *testing.T) {
	const config = `
stores: {a: {type: file, path: a.img, size: 1MiB}, b: {type: memory, size: 1MiB}}
targets: [{iqn: "` + iqn + `t", luns: {0: {store: a, readonly: true}}}]
subsystems:
  - {nqn: "` + nqn + `one", namespaces: {1: a}}
portals: [{transport: tcp, listen: "127.0.0.1:0"}, {transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	r := serve(t, config)
	addr := r.Addrs()[1].String()
	admin := nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	io := admin.Queue(1, 0)
	want := strings.Repeat("NVMe", 128)
	io.Must(nvmetest.RW(nvme.Write, 3, 1), []byte(want), 0)
	admin.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESNamespace}}, nil, 0)

	// told waits for the event that namespaces have changed, and returns the log of them.
	told := func(change string) string {
		t.Helper()
		cid := admin.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
		done := r.apply(change)
		if e, _ := admin.Finish(cid, nil, 0); e.DW0 != nvme.EventNamespaces {
			t.Errorf("event %#x", e.DW0)
		}
		_, b := admin.Must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogChanged) | 3<<16}}, nil, 16)
		return fmt.Sprintln(done.Done, binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]))
	}
	two := strings.Replace(config, "{1: a}", "{1: a, 5: {store: b, block_size: 4096}}", 1)
	if got, want := told(two), "[namespace 5 of "+nqn+"one added] 5 0\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := namespaces(admin); got != "[1 5]" || blocks(admin, 5) != 256 {
		t.Errorf("namespaces %s, %d blocks", got, blocks(admin, 5))
	}
	larger := strings.Replace(two, "a.img, size: 1MiB}", "a.img, size: 2MiB}", 1)
	if got := told(larger); !strings.HasSuffix(got, "] 1 0\n") || blocks(admin, 1) != 4096 {
		t.Errorf("%s, %d blocks", got, blocks(admin, 1))
	}
	c := nvmetest.RW(nvme.Read, 0, 1)
	c.NSID = 5
	io.Must(c, nil, 4096)
	if got := told(strings.Replace(larger, ", 5: {store: b, block_size: 4096}", "", 1)); !strings.HasSuffix(got, "removed] 5 0\n") {
		t.Error(got)
	}
	if e, _ := io.Do(c, nil, 4096); e.Status != nvme.InvalidNamespace|nvme.DNR {
		t.Errorf("a namespace that is gone: %v", e.Status)
	}
	if _, got := io.Must(nvmetest.RW(nvme.Read, 3, 1), nil, 512); string(got) != want {
		t.Error("other bytes are there after the changes")
	}

	// A host that is not admitted any more, or whose subsystem is gone, is cut off; nobody else is.
	now := strings.Replace(config, "a.img, size: 1MiB}", "a.img, size: 2MiB}", 1)
	r.apply(strings.Replace(now, "{1: a}}", "{1: a}, hosts: [\"nqn.2026-11.example:other\"]}", 1))
	io.Ended()
	admin.Ended()
	r.apply(strings.Replace(now, "{1: a}}", "{1: a}, hosts: [\"nqn.2026-11.com.*\"]}", 1))
	admin = nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	r.apply(strings.Replace(now, ":one", ":two", 1))
	admin.Ended()
	nvmetest.Admin(t, addr, pdu.IC{}, nqn+"two")
}

// The names of a namespace stay what they are over versions, for hosts know their disks by them.
func TestNamespaceNames(t *testing.T) {
	c := (&running{t: t, dir: t.TempDir()}).parse(`
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
`)
	s := &c.Subsystems[0]
	uuid, nguid := namesOf(s.NQN, &s.Namespaces[0])
	if got, want := fmt.Sprintf("%x %x %s", uuid, nguid, serialOf(s)), "4eea1c4ba6ac8afaa45a9690226ad41e 46cd0437ac73d667b2267c9b66036018 7b024fd7e9622bbfc800"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
