package storm

import (
	"math/rand/v2"
	"net"
	"testing"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/test/attack"
	"oneshot/transport/nvmetcp/nvmetest"
)

const nqn = "nqn.2026-11.example.oneshot:t"

// nvmeRig is a daemon that hostile hosts of NVMe attack, and two witnesses who notice nothing: a host with two queues, and an
// initiator.
type nvmeRig struct {
	*greedy
	addr     string           // of the portal for hosts
	host     *host.Controller // the witness
	innocent *attack.Witness
	idle     int // descriptors of the daemon with the witnesses alone
}

// startNVMe starts the daemon, whose subsystem has access in its configuration, and the witnesses: a host with o.
func startNVMe(t *testing.T, access string, o host.Options) *nvmeRig {
	t.Helper()
	d := start(t, `
stores:
  a: {type: memory, size: 16MiB}
  b: {type: file, path: $DIR/b.img, size: 16MiB}
  c: {type: memory, size: 16MiB}
  f: {type: file, path: $DIR/f.img, size: 16MiB}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b}}]
subsystems: [{nqn: "`+nqn+`", namespaces: {1: c, 2: f}`+access+`}]
portals: [{listen: $PORTAL}, {transport: nvme-tcp, listen: $PORTAL2}]
management: {socket: $DIR/socket}
limits: {connections: 300, login_timeout: 1h, memory: 64MiB, memory_per_connection: 4MiB}
`)
	raiseDescriptors(t, 4000)
	r := &nvmeRig{greedy: &greedy{d, t, d.watch()}, addr: d.Portals[1]}
	o.Queues = 2
	var err error
	if r.host, err = host.Dial(t.Context(), host.URL{Address: r.addr, Subsystem: nqn}, o); err != nil {
		t.Fatal(err)
	}
	var disks []attack.Disk
	for id := range uint32(2) {
		n, err := r.host.Namespace(t.Context(), 1+id)
		if err != nil {
			t.Fatal(err)
		}
		disks = append(disks, n)
	}
	r.innocent = attack.Watch(t, attack.Often, disks, r.host.Close)
	r.innocent.Works()
	d.status() // whose connection stays
	r.idle = d.descriptors()
	return r
}

// endures has the daemon suffer one attack after the other. After each the witnesses work, and nothing of the attackers is left.
func (r *nvmeRig) endures(list []assault, after func(a assault)) {
	for _, a := range list {
		r.suffer([]assault{a})
		r.innocent.Works()
		after(a)
		r.until("the hosts of "+a.name+" are gone", func() bool {
			return r.status().NVMe.Connected == 1 && r.descriptors() <= r.idle
		})
		if r.t.Failed() {
			return
		}
	}
}

// nvmeStorm is hosts that break the rules.
type nvmeStorm struct{ *nvmeRig }

// TestNVMeStorm attacks one daemon with hosts of NVMe/TCP that break the rules, or keep them to do harm. Each is told which rule it
// has broken, or is cut off; none costs more memory than its bound, or leaves anything behind.
func TestNVMeStorm(t *testing.T) {
	s := &nvmeStorm{startNVMe(t, "", host.Options{})}
	s.endures([]assault{
		{"garbage", 40, s.garbage},
		{"broken rules", 40, s.brokenRules},
		{"commands that are out of place", 40, s.outOfPlace},
		{"half of everything, from more hosts than there is room for", 60, s.halfOpen},
		{"Asynchronous Event Requests without end", 40, s.eventFlood},
		{"a keep-alive that is lost", 40, s.silence},
		{"queues that close in the middle of a transfer", 60, s.torn},
		{"Reads, unread, for more than all I/O memory", 150, s.hogs},
	}, func(assault) {})
	if x := s.status(); x.NVMe.Counters.ProtocolErrors == 0 || x.NVMe.Counters.DigestErrors != 1 {
		t.Errorf("%+v", x.NVMe.Counters)
	}
}

// admin returns the admin queue of a controller that is ready.
func (s *nvmeStorm) admin(ic pdu.IC) *nvmetest.Host {
	s.t.Helper()
	return nvmetest.Admin(s.t, s.addr, ic, nqn)
}

// told wants the host cut off for that reason.
func (s *nvmeStorm) told(name string, h *nvmetest.Host, want pdu.Fatal) {
	s.t.Helper()
	b, _ := h.PDU()
	if f, _ := pdu.ParseTerm(b); pdu.Header(b).Type() != pdu.C2HTermReq || f != want {
		s.t.Errorf("%s: % x, want %v", name, b, want)
	}
	h.Ended()
	_ = h.C.Close()
}

// garbage sends random octets, alone, and in the place of capsules. What is not a PDU ends the connection.
func (s *nvmeStorm) garbage() {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		b := make([]byte, 4096)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		b[0] |= 0x80 // of no type that there is
		var h *nvmetest.Host
		if i%2 == 0 {
			h = nvmetest.DialRaw(s.t, s.addr)
		} else {
			h = s.admin(pdu.IC{})
		}
		_, _ = h.C.Write(b)
		s.told("garbage", h, pdu.InvalidHeaderField)
	}
}

// brokenRules breaks each rule of the transport once.
func (s *nvmeStorm) brokenRules() {
	digests := pdu.IC{HeaderDigest: true, DataDigest: true}
	write := func(h *nvmetest.Host) pdu.Ready { // one whose R2T has come
		h.Start(nvmetest.RW(nvme.Write, 0, 64), make([]byte, 32<<10), 0)
		b, _ := h.PDU()
		return pdu.ParseReady(b)
	}
	data := func(h *nvmetest.Host, d pdu.Data) {
		h.Send(h.WithData(d.AppendTo(nil, pdu.H2CData, 0, pdu.DataLen), make([]byte, d.Len)))
	}
	for _, tt := range []struct {
		name  string
		ic    pdu.IC
		act   func(h *nvmetest.Host)
		fatal pdu.Fatal
	}{
		{"ICReq twice", pdu.IC{}, func(h *nvmetest.Host) { h.Send(new(pdu.IC).AppendTo(nil, pdu.ICReq)) }, pdu.SequenceError},
		{"H2CData nobody asked for", pdu.IC{}, func(h *nvmetest.Host) { data(h, pdu.Data{CID: 1, Len: 512}) }, pdu.SequenceError},
		{"H2CData beyond the R2T", pdu.IC{}, func(h *nvmetest.Host) {
			x := write(h)
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Len: x.Len + 512})
		}, pdu.DataOutOfRange},
		{"H2CData in another order", pdu.IC{}, func(h *nvmetest.Host) {
			x := write(h)
			data(h, pdu.Data{CID: x.CID, Tag: x.Tag, Offset: 4096, Len: 512})
		}, pdu.DataOutOfRange},
		{"huge PLEN", pdu.IC{}, func(h *nvmetest.Host) { h.Send([]byte{4, 0, 72, 72, 255, 255, 255, 255}) }, pdu.LimitExceeded},
		{"a header digest", digests, func(h *nvmetest.Host) {
			b := h.Capsule(&nvme.Command{Opcode: nvme.Read}, nil)
			b[20] ^= 1
			h.Send(b)
		}, pdu.HeaderDigestError},
	} {
		admin := s.admin(tt.ic)
		h := admin.Queue(1, 0)
		tt.act(h)
		s.told(tt.name, h, tt.fatal)
		_ = admin.C.Close()
	}
	// A data digest fails its command only.
	admin := s.admin(digests)
	h := admin.Queue(1, 0)
	c := nvmetest.RW(nvme.Write, 0, 1)
	c.CID, c.SGL = 77, nvme.SGL{Type: nvme.SGLInCapsule, Length: 512}
	b := h.Capsule(&c, make([]byte, 512))
	b[len(b)-1] ^= 1
	h.Send(b)
	if e, _ := h.Finish(77, nil, 0); e.Status != nvme.TransientTransport {
		s.t.Errorf("a data digest: %v", e.Status)
	}
	h.Must(nvmetest.RW(nvme.Read, 0, 1), nil, 512)
	_, _ = h.C.Close(), admin.C.Close()
}

// outOfPlace sends commands before Connect, Connect again, and Connect to controllers of others: each gets its status, and does no
// harm.
func (s *nvmeStorm) outOfPlace() {
	admin := s.admin(pdu.IC{})
	for range 50 {
		h := nvmetest.Dial(s.t, s.addr, pdu.IC{})
		if e, _ := h.Do(nvmetest.RW(nvme.Read, 0, 1), nil, 512); e.Status != nvme.CommandSequence|nvme.DNR {
			s.t.Errorf("a Read before Connect: %v", e.Status)
		}
		if e, _ := h.Do(nvmetest.ConnectCommand(1, 31, 0, 0), nvmetest.ConnectData(nqn, admin.ID+1000), 0); e.Status != nvme.ConnectInvalid || e.DW0 != nvme.InvalidParameter(true, nvme.OffCNTLID) {
			s.t.Errorf("a CNTLID of nobody: %v, %#x", e.Status, e.DW0)
		}
		f := nvme.ConnectFields{HostID: nvmetest.HostID, CNTLID: admin.ID, SubNQN: nqn, HostNQN: nvmetest.HostNQN + ":other"}
		if e, _ := h.Do(nvmetest.ConnectCommand(1, 31, 0, 0), f.AppendTo(nil), 0); e.Status != nvme.ConnectInvalid {
			s.t.Errorf("another host's controller: %v", e.Status)
		}
		_ = h.C.Close()
	}
	if e, _ := admin.Do(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(nqn, nvme.DynamicController), 0); e.Status != nvme.CommandSequence|nvme.DNR {
		s.t.Errorf("Connect twice: %v", e.Status)
	}
	_ = admin.C.Close()
}

// halfOpen leaves connections in each stage of their beginning: more than there is room for. The oldest give way; who has a
// controller stays.
func (s *nvmeStorm) halfOpen() {
	admin := s.admin(pdu.IC{})
	var open []*nvmetest.Host
	ic := new(pdu.IC).AppendTo(nil, pdu.ICReq)
	for i := range 400 {
		h := nvmetest.DialRaw(s.t, s.addr)
		switch i % 4 {
		case 1:
			_, _ = h.C.Write(ic[:50])
		case 2:
			_, _ = h.C.Write(ic)
		case 3:
			c := nvmetest.ConnectCommand(1, 31, 0, 0)
			c.SGL = nvme.SGL{Type: nvme.SGLInCapsule, Length: nvme.ConnectDataLen}
			_, _ = h.C.Write(append(ic, h.Capsule(&c, make([]byte, nvme.ConnectDataLen))[:100]...))
		}
		open = append(open, h)
	}
	admin.Must(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil, 0)
	for _, h := range append(open, admin) {
		_ = h.C.Close()
	}
}

// eventFlood sends Asynchronous Event Requests without end: those that are too many are refused, each time.
func (s *nvmeStorm) eventFlood() {
	h := s.admin(pdu.IC{})
	for range 4 {
		h.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
	}
	for range 2000 {
		if e, _ := h.Do(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0); e.Status != nvme.AsyncEventLimit|nvme.DNR {
			s.t.Fatalf("one too many: %v", e.Status)
		}
	}
	_ = h.C.Close()
}

// silence makes controllers whose hosts are not heard of again: they end, and their queues with them.
func (s *nvmeStorm) silence() {
	var all []*nvmetest.Host
	for range 5 {
		h := nvmetest.Dial(s.t, s.addr, pdu.IC{})
		e, _ := h.Must(nvmetest.ConnectCommand(0, 31, 0, 1000), nvmetest.ConnectData(nqn, nvme.DynamicController), 0)
		h.ID, h.Subsystem = uint16(e.DW0), nqn
		h.Must(nvmetest.PropertySet(nvme.PropCC, 0x460001), nil, 0)
		all = append(all, h.Queue(1, 0), h)
	}
	for _, h := range all {
		h.Ended()
		_ = h.C.Close()
	}
}

// torn closes queues while their commands wait for data, are in the store, and are on their way back, and leaves Writes whose
// data never come.
func (s *nvmeStorm) torn() {
	for i := range 30 {
		admin := s.admin(pdu.IC{})
		h := admin.Queue(1, 0)
		for range 8 {
			h.Start(nvmetest.RW(nvme.Write, 0, 256), make([]byte, 128<<10), 0)
			h.Start(nvmetest.RW(nvme.Read, 0, 256), nil, 128<<10)
		}
		if i%3 > 0 { // half of the data of a Write
			b, _ := h.PDU()
			if pdu.Header(b).Type() == pdu.R2T {
				r := pdu.ParseReady(b)
				d := pdu.Data{CID: r.CID, Tag: r.Tag, Len: r.Len}
				_, _ = h.C.Write(append(d.AppendTo(nil, pdu.H2CData, pdu.FlagLast, pdu.DataLen), make([]byte, r.Len/2)...))
			}
		}
		if i%2 == 0 {
			_ = admin.C.Close()
			_ = h.C.Close()
			continue
		}
		_ = h.C.Close()
		admin.Must(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil, 0)
		_ = admin.C.Close()
	}
	s.until("no I/O memory is in use but the input of witnesses", func() bool { return s.status().Buffers.InUse <= 1<<20 })
}

// hogs are queues that ask for more data than there is I/O memory, and take none of it. The target drops those that go on without taking
// anything. The witnesses, who read from files as well, go on meanwhile.
func (s *nvmeStorm) hogs() {
	const queues, reads, each = 30, 100, 1 << 20
	admin := s.admin(pdu.IC{})
	var all []*nvmetest.Host
	for i := range queues {
		h := admin.Queue(uint16(1+i), 0)
		c := nvmetest.RW(nvme.Read, 0, each/512)
		if c.NSID = 2; i == 0 {
			h.Must(c, nil, each) // what is asked for is there
		}
		_ = h.C.(*net.TCPConn).SetReadBuffer(4096)
		for range reads {
			h.Start(c, nil, each)
		}
		all = append(all, h)
	}
	s.crowded(s.innocent)
	s.until("those who take nothing are dropped", func() bool { return s.logged("the host has taken no answers for") > 0 })
	for _, h := range append(all, admin) {
		_ = h.C.Close()
	}
}
