package server

import (
	"bytes"
	"encoding/binary"
	"testing"

	"oneshot/mgmt"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

// TestSubsystemOptions: what the configuration says of a subsystem, its namespaces and its portals is what a host sees, from the start on.
func TestSubsystemOptions(t *testing.T) {
	r := serve(t, `
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 1MiB}}
subsystems:
  - nqn: `+nqn+`one
    serial: S7
    cntlids: 70-71
    hosts: ["`+nvmetest.HostNQN+`"]
    namespaces: {1: a, 2: {store: b, block_size: 4096, readonly: true, uuid: 3d0f9cf1-6a56-4c5e-8f0e-0f4f5f7c9a10}}
  - {nqn: `+nqn+`secret, auth: {dhchap_secret: "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"}}
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}, {transport: nvme-tcp, listen: "127.0.0.1:0", group: 9}]
limits: {commands: 200, memory_per_connection: 2MiB}
`)
	near, far := r.Addrs()[0].String(), r.Addrs()[1].String()
	first, second := nvmetest.Admin(t, near, pdu.IC{}, nqn+"one"), nvmetest.Admin(t, far, pdu.IC{}, nqn+"one")
	if ids := [2]uint16{first.ID, second.ID}; ids != [2]uint16{70, 71} && ids != [2]uint16{71, 70} {
		t.Errorf("controllers %v", ids)
	}
	connect := func(f nvme.ConnectFields) nvme.CQE {
		h := nvmetest.Dial(t, near, pdu.IC{})
		e, _ := h.Do(nvmetest.ConnectCommand(0, 31, 0, 0), f.AppendTo(nil), 0)
		return e
	}
	host := nvme.ConnectFields{HostID: nvmetest.HostID, CNTLID: nvme.DynamicController, SubNQN: nqn + "one", HostNQN: nvmetest.HostNQN}
	if connect(host).Status == nvme.Success {
		t.Error("there is a third controller")
	}
	host.HostNQN = nvmetest.HostNQN + "2"
	if got := connect(host).Status; got != nvme.ConnectInvalidHost|nvme.DNR {
		t.Errorf("a host that hosts does not name: %v", got)
	}
	host.SubNQN = nqn + "secret"
	if got := connect(host); got.Status != nvme.Success || got.DW0&nvme.ConnectATR == 0 {
		t.Errorf("a subsystem with a secret asks for no proof: %v, %#x", got.Status, got.DW0)
	}
	if e, _ := first.Must(nvmetest.PropertyGet(nvme.PropCAP, 1), nil, 0); e.DW0&0xffff != 199 {
		t.Errorf("queues have %d entries", e.DW0&0xffff+1)
	}
	identify := func(cns nvme.CNS, nsid uint32) []byte {
		_, b := first.Must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid, DWords: [6]uint32{uint32(cns)}}, nil, nvme.IdentifyLen)
		return b
	}
	c := identify(nvme.CNSController, 0)
	if got := string(bytes.TrimSpace(c[4:24])); got != "S7" {
		t.Errorf("the serial number is %q", got)
	}
	// A command may have half of the memory at once, in powers of two pages, and 256 KiB of that come in its capsule.
	const offMDTS, offIOCCSZ = 77, 1792 // the latter in units of 16 bytes
	if got := c[offMDTS]; 4096<<got != 2<<20/2 {
		t.Errorf("a command has at most %d bytes", 4096<<got)
	}
	if got, want := binary.LittleEndian.Uint32(c[offIOCCSZ:])*16, uint32(64+256<<10); got != want {
		t.Errorf("a capsule has %d bytes, want %d", got, want)
	}
	for nsid, want := range map[uint32]struct {
		blocks   uint64
		readOnly byte
		uuid     string
	}{1: {2048, 0, ""}, 2: {256, 1, "3d0f9cf1-6a56-4c5e-8f0e-0f4f5f7c9a10"}} {
		b := identify(nvme.CNSNamespace, nsid)
		if got := binary.LittleEndian.Uint64(b); got != want.blocks || b[99] != want.readOnly {
			t.Errorf("namespace %d has %d blocks, write protected: %d", nsid, got, b[99])
		}
		const typeUUID = 3 // of a descriptor: 4 octets, and the UUID
		var uuid [16]byte
		for d := identify(nvme.CNSDescriptors, nsid); d[1] != 0; d = d[4+int(d[1]):] {
			if d[0] == typeUUID {
				copy(uuid[:], d[4:])
			}
		}
		if got := uuidText(uuid); uuid == [16]byte{} || want.uuid != "" && got != want.uuid {
			t.Errorf("namespace %d has the UUID %s", nsid, got)
		}
	}
	// The portals are of two groups, which have access states of their own.
	io, io2 := first.Queue(1, 0), second.Queue(1, 0)
	if _, err := r.SetAccess(t.Context(), mgmt.AccessChange{Target: nqn + "one", Group: 9, State: "unavailable"}); err != nil {
		t.Fatal(err)
	}
	io.Must(nvmetest.RW(nvme.Read, 0, 1), nil, 512)
	if e, _ := io2.Do(nvmetest.RW(nvme.Read, 0, 1), nil, 512); e.Status == nvme.Success {
		t.Error("a Read through a group that is unavailable")
	}
}
