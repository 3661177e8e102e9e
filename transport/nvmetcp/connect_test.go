package nvmetcp

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/nvmetcp/nvmetest"
)

// What each fault of Connect is answered with, and where the answer points (Base 2.0 §6.3).
func TestConnectChecks(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.sub.SetAccess(func(host string) bool { return !strings.HasSuffix(host, "stranger") }, nil)
	admin := r.admin(pdu.IC{}, subNQN)
	other := r.admin(pdu.IC{}, nvme.DiscoveryNQN)
	answer, _ := r.dial(pdu.IC{}).Must(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(subNQN, nvme.DynamicController), 0)
	disabled := uint16(answer.DW0)
	type change func(c *nvme.Command, f *nvme.ConnectFields)
	for _, tt := range []struct {
		name string
		io   bool
		with change
		want nvme.Status
		at   uint32 // dword 0
	}{
		{"record format", false, func(c *nvme.Command, _ *nvme.ConnectFields) { c.DWords[0] |= 1 }, nvme.ConnectFormat, 0},
		{"no entries", false, func(c *nvme.Command, _ *nvme.ConnectFields) { c.DWords[1] = 0 }, nvme.ConnectInvalid, 44},
		{"too many for an admin queue", false, func(c *nvme.Command, _ *nvme.ConnectFields) { c.DWords[1] = 32 }, nvme.ConnectInvalid, 44},
		{"too many for an I/O queue", true, func(c *nvme.Command, _ *nvme.ConnectFields) { c.DWords[1] = 128 }, nvme.ConnectInvalid, 44},
		{"subsystem", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.SubNQN += "x" }, nvme.ConnectInvalid, 1<<16 | 256},
		{"name of the host", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostNQN = "nqn.2014-08.org.nvmexpress:uuid:1" }, nvme.ConnectInvalid, 1<<16 | 512},
		{"a host that is not admitted", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostNQN += ":stranger" }, nvme.ConnectInvalidHost, 0},
		{"identifier of the host", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostID = [16]byte{} }, nvme.ConnectInvalid, 1 << 16},
		{"the name of the subsystem as that of the host", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostNQN = f.SubNQN }, nvme.ConnectInvalidHost, 0},
		{"a static controller", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.CNTLID = 1 }, nvme.ConnectInvalid, 1<<16 | 16},
		{"any static controller", false, func(_ *nvme.Command, f *nvme.ConnectFields) { f.CNTLID = 0xfffe }, nvme.ConnectInvalid, 1<<16 | 16},
		{"no such controller", true, func(_ *nvme.Command, f *nvme.ConnectFields) { f.CNTLID += 100 }, nvme.ConnectInvalid, 1<<16 | 16},
		{"a queue for discovery", true, func(_ *nvme.Command, f *nvme.ConnectFields) { f.SubNQN, f.CNTLID = nvme.DiscoveryNQN, other.ID }, nvme.ConnectInvalid, 1<<16 | 16},
		{"another host's controller", true, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostNQN += "x" }, nvme.ConnectInvalid, 1<<16 | 512},
		{"another identifier", true, func(_ *nvme.Command, f *nvme.ConnectFields) { f.HostID[5]++ }, nvme.ConnectInvalid, 1 << 16},
		{"a queue that was not granted", true, func(c *nvme.Command, _ *nvme.ConnectFields) { c.DWords[0] = 65 << 16 }, nvme.ConnectInvalid, 42},
		{"good", true, func(*nvme.Command, *nvme.ConnectFields) {}, nvme.Success, uint32(admin.ID)},
		{"the same queue again", true, func(*nvme.Command, *nvme.ConnectFields) {}, nvme.CommandSequence, 0},
		{"a queue of a controller that is disabled", true, func(_ *nvme.Command, f *nvme.ConnectFields) { f.CNTLID = disabled }, nvme.ConnectInvalid, 42},
	} {
		h := r.dial(pdu.IC{})
		c, f := nvmetest.ConnectCommand(0, 31, 0, 0), nvme.ConnectFields{HostID: nvmetest.HostID, CNTLID: nvme.DynamicController, SubNQN: subNQN, HostNQN: nvmetest.HostNQN}
		if tt.io {
			c, f.CNTLID = nvmetest.ConnectCommand(1, 31, 0, 0), admin.ID
		}
		tt.with(&c, &f)
		e, _ := h.Do(c, f.AppendTo(nil), 0)
		// Its controller may just have ended or be enabled soon, or its former connection have been lost.
		again := tt.want == nvme.Success || tt.io && tt.at>>16 != 0 || tt.name == "the same queue again" || tt.name == "a queue of a controller that is disabled"
		if want := tt.want; e.Status.Code() != want || e.DW0 != tt.at || (e.Status&nvme.DNR != 0) == again {
			t.Errorf("%s: %v, dword 0 %#x; want %v, %#x", tt.name, e.Status, e.DW0, want, tt.at)
		}
	}
	h := r.dial(pdu.IC{})
	if e, _ := h.Do(nvmetest.ConnectCommand(0, 31, 0, 0), make([]byte, 512), 0); e.Status != nvme.DataSGLLength|nvme.DNR {
		t.Errorf("short data: %v", e.Status)
	}
	if e, _ := h.Do(nvmetest.PropertyGet(nvme.PropCAP, 1), nil, 0); e.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("before Connect: %v", e.Status)
	}
	if e, _ := admin.Do(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(subNQN, nvme.DynamicController), 0); e.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("Connect twice: %v", e.Status)
	}
}

// A controller becomes ready, is reset, and shuts down; commands are taken only while it is ready. Properties are what the standard
// says (Base 2.0 §3.1.3, §3.5, §3.6).
func TestProperties(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.dial(pdu.IC{})
	h.Must(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(subNQN, nvme.DynamicController), 0)
	identify := nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}
	status := func(want uint32) {
		t.Helper()
		if e, _ := h.Must(nvmetest.PropertyGet(nvme.PropCSTS, 0), nil, 0); e.DW0 != want {
			t.Errorf("CSTS is %#x, want %#x", e.DW0, want)
		}
	}
	refused := func(when string) {
		t.Helper()
		if e, _ := h.Do(identify, nil, nvme.IdentifyLen); e.Status != nvme.CommandSequence|nvme.DNR {
			t.Errorf("%s: %v", when, e.Status)
		}
	}
	refused("disabled")
	status(0)
	if e, _ := h.Must(nvmetest.PropertyGet(nvme.PropCAP, 1), nil, 0); uint64(e.DW1)<<32|uint64(e.DW0) != 0x200f01007f {
		t.Errorf("CAP is %#x %#x", e.DW1, e.DW0)
	}
	if e, _ := h.Must(nvmetest.PropertyGet(nvme.PropVS, 0), nil, 0); e.DW0 != 0x10400 {
		t.Errorf("VS is %#x", e.DW0)
	}
	for p, want := range map[nvme.Property]nvme.Status{0x07: nvme.InvalidField | nvme.DNR, 0x28: nvme.Success, nvme.PropCRTO: nvme.Success} {
		if e, _ := h.Do(nvmetest.PropertyGet(p, 1), nil, 0); e.Status != want || e.DW0 != 0 {
			t.Errorf("property %#x: %v, %#x", uint32(p), e.Status, e.DW0)
		}
	}
	if e, _ := h.Do(nvmetest.PropertySet(nvme.PropCAP, 1), nil, 0); e.Status != nvme.ConnectInvalid|nvme.DNR {
		t.Errorf("CAP is written: %v", e.Status)
	}
	h.Must(nvmetest.PropertySet(nvme.PropCC, 0x460001|1<<7), nil, 0) // pages of 8 KiB
	status(nvme.CSTSFatal)
	h.Must(nvmetest.PropertySet(nvme.PropCC, 0), nil, 0)
	status(0)

	h.Must(nvmetest.PropertySet(nvme.PropCC, 0x460001), nil, 0)
	status(nvme.CSTSReady)
	e, _ := h.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureQueues), 1<<16 | 7}}, nil, 0)
	if e.DW0 != 1<<16|1 {
		t.Errorf("queues: %#x", e.DW0)
	}
	h.ID, h.Subsystem = 1, subNQN
	q := h.Queue(1, 0)
	q.Must(nvmetest.RW(nvme.Write, 0, 8), pattern(4096, 1), 0)
	if e, _ := h.Do(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureQueues), 0}}, nil, 0); e.Status.Code() != nvme.CommandSequence {
		t.Errorf("queues are changed after one was connected: %v", e.Status)
	}

	h.Must(nvmetest.PropertySet(nvme.PropCC, 0x460000), nil, 0) // reset: the I/O queue ends
	q.Ended()
	for {
		if e, _ := h.Must(nvmetest.PropertyGet(nvme.PropCSTS, 0), nil, 0); e.DW0 == 0 {
			break
		}
	}
	refused("reset")
	h.Must(nvmetest.PropertySet(nvme.PropCC, 0x460001), nil, 0)
	q = h.Queue(1, 0)
	q.Must(nvmetest.RW(nvme.Read, 0, 8), nil, 4096)

	h.Must(nvmetest.PropertySet(nvme.PropCC, 0x464001), nil, 0) // a shutdown
	q.Ended()
	for {
		if e, _ := h.Must(nvmetest.PropertyGet(nvme.PropCSTS, 0), nil, 0); e.DW0 == nvme.CSTSReady|nvme.CSTSShutdownDone {
			break
		}
	}
	refused("shut down")
}

// The discovery log lists the subsystems that the host may reach, in pieces of any size, and its generation moves when they change.
func TestDiscovery(t *testing.T) {
	r := newRig(t, rigConfig{})
	at := netip.MustParseAddrPort(r.l.Addr().String())
	portal := func(id uint16, reached bool) nvmf.Portal {
		return nvmf.Portal{ID: id, Transport: Transport, Reached: func(local netip.AddrPort) (netip.AddrPort, bool) { return at, reached && local == at }}
	}
	r.SetPortals([]nvmf.Portal{portal(3, true), portal(4, false)})
	hidden := r.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN + "2", Admit: func(string) bool { return false }})
	h := r.admin(pdu.IC{}, nvme.DiscoveryNQN)
	read := func(off, n int) []byte {
		t.Helper()
		c := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogDiscovery) | uint32(n/4-1)<<16, uint32(n/4-1) >> 16, uint32(off)}}
		_, b := h.Must(c, nil, n)
		return b
	}
	whole := read(0, 4096)
	current := nvme.DiscoveryEntry{Transport: nvme.TransportTCP, Type: nvme.EntryCurrent, Port: 3, ASQSize: 32, Address: at, SubNQN: nvme.DiscoveryNQN}
	entry := current
	entry.Type, entry.SubNQN = nvme.EntryNVM, subNQN
	if want := entry.AppendTo(current.AppendTo(nil)); whole[8] != 2 || !bytes.Equal(whole[1024:3072], want) || bytes.ContainsFunc(whole[3072:], func(r rune) bool { return r != 0 }) {
		t.Errorf("%d entries", whole[8])
	}
	var pieces []byte
	for off := 0; off < len(whole); off += 1020 {
		pieces = append(pieces, read(off, min(1020, len(whole)-off))...)
	}
	if !bytes.Equal(pieces, whole) {
		t.Error("in pieces the log is another one")
	}
	// Who wants to know of changes is told, once until the log is read.
	h.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), 1 << 31}}, nil, 0)
	aer := h.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
	hidden.SetAccess(nil, nil)
	if e, _ := h.Finish(aer, nil, 0); e.DW0 != nvme.EventDiscovery || e.Status != nvme.Success {
		t.Errorf("%+v", e)
	}
	if again := read(0, 1024); bytes.Equal(again[:8], whole[:8]) || again[8] != 3 {
		t.Errorf("generation % x, %d entries", again[:8], again[8])
	}
	if e, _ := h.Do(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSActiveNamespaces)}}, nil, 4096); e.Status.Code() != nvme.InvalidField {
		t.Errorf("namespaces of the discovery controller: %v", e.Status)
	}
	_, b := h.Must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nil, 4096)
	if b[111] != uint8(nvme.DiscoveryController) {
		t.Errorf("controller type %d", b[111])
	}
	r.RemoveSubsystem(hidden)
}

// Each fault of PDUs is answered with its termination request, and ends the connection; nobody else notices (NVMe/TCP 1.0 §3.5).
func TestFatal(t *testing.T) {
	r := newRig(t, rigConfig{})
	innocent := r.admin(pdu.IC{}, subNQN).Queue(1, 0)
	digests := pdu.IC{HeaderDigest: true, DataDigest: true}
	waiting := func(h *nvmetest.Host) pdu.Ready { // a write whose R2T has come
		h.Start(nvmetest.RW(nvme.Write, 0, 64), pattern(32<<10, 1), 0)
		b, _ := h.PDU()
		return pdu.ParseReady(b)
	}
	data := func(h *nvmetest.Host, d pdu.Data) {
		h.Send(h.WithData(d.AppendTo(nil, pdu.H2CData, 0, pdu.DataLen), make([]byte, d.Len)))
	}
	errors := uint64(0)
	for _, tt := range []struct {
		name  string
		ic    pdu.IC
		act   func(h *nvmetest.Host)
		fatal pdu.Fatal
		info  uint32
	}{
		{"a second ICReq", pdu.IC{}, func(h *nvmetest.Host) { h.Send(new(pdu.IC).AppendTo(nil, pdu.ICReq)) }, pdu.SequenceError, 0},
		{"a PDU of the controller's", pdu.IC{}, func(h *nvmetest.Host) { h.Send([]byte{9, 0, 24, 0, 24, 0, 0, 0}) }, pdu.InvalidHeaderField, 0},
		{"HLEN", pdu.IC{}, func(h *nvmetest.Host) { h.Send([]byte{4, 0, 73, 0, 73, 0, 0, 0}) }, pdu.InvalidHeaderField, 2},
		{"huge PLEN", pdu.IC{}, func(h *nvmetest.Host) { h.Send([]byte{4, 0, 72, 72, 255, 255, 255, 255}) }, pdu.LimitExceeded, 0},
		{"header digest", digests, func(h *nvmetest.Host) {
			b := h.Capsule(&nvme.Command{Opcode: nvme.Read}, nil)
			b[20] ^= 1
			h.Send(b)
		}, pdu.HeaderDigestError, 0xffffffff},
		{"an SGL of another length", pdu.IC{}, func(h *nvmetest.Host) {
			h.Send(h.Capsule(&nvme.Command{Opcode: nvme.Write, SGL: nvme.SGL{Type: nvme.SGLInCapsule, Length: 512}}, make([]byte, 1024)))
		}, pdu.InvalidHeaderField, 4},
		{"data nobody asked for", pdu.IC{}, func(h *nvmetest.Host) { data(h, pdu.Data{CID: 1, Tag: 9, Len: 512}) }, pdu.SequenceError, 0},
		{"data of another command", pdu.IC{}, func(h *nvmetest.Host) {
			x := waiting(h)
			data(h, pdu.Data{CID: x.CID + 1, Tag: x.Tag, Len: 512})
		}, pdu.InvalidHeaderField, 8},
		{"data not in order", pdu.IC{}, func(h *nvmetest.Host) {
			x := waiting(h)
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Offset: 512, Len: 512})
		}, pdu.DataOutOfRange, 0},
		{"more data than asked for", pdu.IC{}, func(h *nvmetest.Host) {
			x := waiting(h)
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Len: x.Len + 512})
		}, pdu.DataOutOfRange, 0},
		{"data for a transfer that is over", pdu.IC{}, func(h *nvmetest.Host) {
			x := waiting(h)
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Len: x.Len})
			h.PDU()
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Len: 512})
		}, pdu.SequenceError, 0},
		{"more commands than entries", pdu.IC{}, func(h *nvmetest.Host) {
			for range 128 {
				h.CID++
				h.Send(h.Capsule(&nvme.Command{Opcode: nvme.Write, NSID: 1, CID: h.CID, SGL: nvme.SGL{Type: nvme.SGLTransport, Length: 512}}, nil))
				h.PDU() // R2T
			}
			h.Send(h.Capsule(&nvme.Command{Opcode: nvme.Write, NSID: 1, SGL: nvme.SGL{Type: nvme.SGLTransport, Length: 512}}, nil))
		}, pdu.LimitExceeded, 0},
	} {
		h := r.admin(tt.ic, subNQN).Queue(1, 0)
		tt.act(h)
		b, _ := h.PDU()
		f, info := pdu.ParseTerm(b)
		if pdu.Header(b).Type() != pdu.C2HTermReq || f != tt.fatal || info != tt.info && tt.info != 0xffffffff {
			t.Errorf("%s: % x", tt.name, b)
		}
		h.Ended()
		errors++
	}
	if got := r.Counters().ProtocolErrors.Load(); got != errors {
		t.Errorf("%d errors of the protocol are counted, of %d", got, errors)
	}
	c := r.dialRaw()
	c.Send([]byte{4, 0, 72, 0, 72, 0, 0, 0})
	if b, _ := c.PDU(); pdu.Header(b).Type() != pdu.C2HTermReq {
		t.Errorf("a command before ICReq: % x", b)
	}
	c = r.dialRaw()
	c.Send((&pdu.IC{Format: 1}).AppendTo(nil, pdu.ICReq))
	b, _ := c.PDU()
	if f, info := pdu.ParseTerm(b); f != pdu.UnsupportedParameter || info != 8 {
		t.Errorf("another format: %s", fmt.Sprint(f, info))
	}
	innocent.Must(nvmetest.RW(nvme.Read, 0, 8), nil, 4096)
}

// A connection that has proved nothing may have few commands outstanding, and no long capsules.
func TestFewBeforeConnect(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.dial(pdu.IC{})
	for range 5 {
		h.CID++
		c := nvmetest.ConnectCommand(0, 31, 0, 0)
		c.CID, c.SGL = h.CID, nvme.SGL{Length: nvme.ConnectDataLen, Type: nvme.SGLTransport}
		h.Send(h.Capsule(&c, nil))
	}
	for i := range 5 {
		b, _ := h.PDU()
		want := pdu.R2T
		if i == 4 {
			want = pdu.C2HTermReq
		}
		if got := pdu.Header(b).Type(); got != want {
			t.Fatalf("PDU %d is of type %#x", i, got)
		}
	}
	h = r.dial(pdu.IC{})
	c := nvmetest.ConnectCommand(0, 31, 0, 0)
	const n = 8<<10 + 512
	c.SGL = nvme.SGL{Length: n, Type: nvme.SGLInCapsule}
	h.Send(h.Capsule(&c, make([]byte, n)))
	if b, _ := h.PDU(); pdu.Header(b).Type() != pdu.C2HTermReq {
		t.Errorf("% x in answer to a long capsule", b)
	}
}

// Where the host has flow control of the submission queue disabled, SQHD is FFFFh in the answer to Connect, and reserved after that; elsewhere it is
// the head of the queue (Base 2.0 §6.3).
func TestSQHD(t *testing.T) {
	r := newRig(t, rigConfig{})
	admin := r.admin(pdu.IC{}, subNQN)
	for _, c := range []struct {
		cattr uint8
		want  [3]uint16
	}{{0, [3]uint16{1, 2, 3}}, {4, [3]uint16{0xffff, 0, 0}}} {
		h := r.dial(pdu.IC{})
		got := [3]uint16{}
		e, _ := h.Must(nvmetest.ConnectCommand(uint16(c.cattr+1), 31, c.cattr, 0), nvmetest.ConnectData(subNQN, admin.ID), 0)
		got[0] = e.SQHD
		for i := range got[1:] {
			e, _ = h.Must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, 0)
			got[i+1] = e.SQHD
		}
		if got != c.want {
			t.Errorf("CATTR %d: SQHD %#x, want %#x", c.cattr, got, c.want)
		}
	}
}

// Byte 1 of the entries of commands of fabrics is reserved (Base 2.0 §6): a host that clears it is understood, and what describes its data is the
// descriptor. In other commands it says that the data are described by SGLs.
func TestByteOneOfFabrics(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.dial(pdu.IC{})
	send := func(c nvme.Command, data []byte) nvme.Status {
		h.CID++
		c.CID, c.SGL = h.CID, nvme.SGL{Length: uint32(len(data)), Type: nvme.SGLTransport}
		if data != nil {
			c.SGL.Type = nvme.SGLInCapsule
		}
		b := h.Capsule(&c, data)
		b[pdu.CommonLen+1] = 0
		h.Send(b)
		answer, _ := h.PDU()
		return nvme.ParseCQE(answer[pdu.CommonLen:]).Status
	}
	for _, c := range []struct {
		nvme.Command
		data []byte
	}{
		{nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(subNQN, nvme.DynamicController)},
		{nvmetest.PropertyGet(nvme.PropCSTS, 0), nil},
		{nvmetest.PropertySet(nvme.PropCC, 0x460001), nil},
	} {
		if s := send(c.Command, c.data); s != nvme.Success {
			t.Errorf("type %#x: %v", c.NSID, s)
		}
	}
	if s := send(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil); s != nvme.InvalidField|nvme.DNR {
		t.Errorf("Keep Alive: %v", s)
	}
}
