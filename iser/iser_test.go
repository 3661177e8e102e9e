package iser

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	iqn       = "iqn.2026-11.example.oneshot:test"
	storeSize = 8 << 20
)

// bench is a target that serves a memory store over user-space iWARP.
type bench struct {
	t      testing.TB
	device rdma.Device
	node   *iscsi.Node
	pool   *mem.Pool
	target *Target
	l      rdma.Listener
	disk   *scsi.Target
	volume *volume.Volume
	store  backend.Store
	leases int // of the target's receives
	said   *record
}

// record keeps what a log says.
type record struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return newBenchOf(t, 64<<20, iwarp.Config{})
}

// newBenchOf returns one with so many bytes of I/O memory, and with a device of a kind.
func newBenchOf(t testing.TB, limit int64, c iwarp.Config) *bench {
	t.Helper()
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	device, err := iwarp.Open(c)
	check(t, err)
	return newBenchOn(t, limit, device, "127.0.0.1:0")
}

// newBenchOn returns one with so many bytes of I/O memory, over a device, which it closes.
func newBenchOn(t testing.TB, limit int64, device rdma.Device, address string) *bench {
	t.Helper()
	store, err := memory.New(storeSize)
	check(t, err)
	return newBenchOver(t, limit, device, address, store)
}

// newBenchOver is newBenchOn with a store.
func newBenchOver(t testing.TB, limit int64, device rdma.Device, address string, store backend.Store) *bench {
	t.Helper()
	said := new(record)
	log := slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), said), nil))
	pool := mem.NewPool(limit)
	node := iscsi.NewNode(iscsi.Config{
		Login: login.DefaultConfig(), Connections: 10, Sessions: 10, Commands: 32, MemoryPerConnection: 16 << 20,
		LoginTimeout: 15, NOPInterval: 30, NOPTimeout: 10, ReadTimeout: 70, Pool: pool, Logger: log, Rand: rand.Reader,
	})
	v, err := volume.New(volume.Config{Store: store})
	check(t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LUConfig{Volume: v, Serial: "1", TPGS: scsi.ALUAImplicit | scsi.ALUAExplicit})
	check(t, err)
	st := scsi.NewTarget(scsi.TargetConfig{Name: iqn})
	st.SetLU(0, lu)
	node.AddTarget(&iscsi.Target{Name: iqn, SCSI: st})
	target, err := NewTarget(Config{
		Node: node, Device: device, Pool: pool, Commands: 32, Logger: log,
	})
	check(t, err)
	offer := &rdma.OneShotOffer{Flags: true, Opcodes: true, Validated: true, Advertise: true, Close: true, Window: 32}
	l, err := device.Listen(address)
	check(t, err)
	served := make(chan error, 1)
	go func() { served <- target.Serve(l, offer, nil) }()
	b := &bench{
		t: t, device: device, node: node, pool: pool, target: target, l: l, disk: st, volume: v, store: store, leases: pool.Stats().Leases,
		said: said,
	}
	t.Cleanup(func() {
		check(t, l.Close())
		check(t, <-served)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		check(t, node.Shutdown(ctx))
		check(t, target.Close())
		check(t, device.Close())
		check(t, lu.Close())
		check(t, v.Close())
		if n := pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		pool.Close()
	})
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client is an initiator of either framing. Its buffer of a command is buf, all of it.
type client struct {
	offending bool // what it does next ends the connection
	t         testing.TB
	device    rdma.Device
	domain    rdma.Domain
	cq        rdma.CompletionQueue
	qp        rdma.QueuePair
	wake      chan struct{}
	direct    bool
	inval     bool
	region    rdma.Region // receives in front, then what is sent, then buf
	buf       []byte
	out       []byte
	window    rdma.Window
	cmdSN     serial.SN
	itt       uint32
	isid      byte
	turn      int
	deaf      bool          // posts no more receives
	nudge     func() func() // begins, and ends, what keeps a peer awake during the login; nil: nothing
	over      chan struct{} // closed at the end of the connection
	one       [1]rdma.Completion
}

const (
	slots    = 8
	outs     = 4
	slotSize = 9 << 10
	bufSize  = 1 << 20
)

func (b *bench) dial(direct bool) *client {
	b.t.Helper()
	device, err := iwarp.Open(iwarp.Config{})
	check(b.t, err)
	p := rdma.ConnParams{PrivateData: []byte{noZBVA, 0, 0, 0}}
	if direct {
		p.OneShot = &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: 16}
	}
	return dial(b.t, device, b.l.Addr().String(), p)
}

// dial connects to a target over a device, which it closes in the end.
func dial(t testing.TB, device rdma.Device, address string, p rdma.ConnParams) *client {
	t.Helper()
	c := &client{t: t, device: device, direct: p.OneShot != nil, inval: len(p.PrivateData) == 0 || p.PrivateData[0]&noInvalidate == 0, wake: make(chan struct{}, 1), over: make(chan struct{}), cmdSN: 1}
	var err error
	c.domain, err = c.device.NewDomain()
	check(t, err)
	memory := make([]byte, (slots+outs)*slotSize+bufSize)
	c.region, err = c.domain.Register(memory, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(t, err)
	c.out, c.buf = memory[slots*slotSize:][:outs*slotSize], memory[(slots+outs)*slotSize:]
	c.cq, err = c.device.NewCompletionQueue(256, func() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	c.qp, err = c.device.NewQueuePair(rdma.QueuePairConfig{
		Domain: c.domain, SendCQ: c.cq, RecvCQ: c.cq, MaxWork: 64, MaxRecv: slots, Disconnected: func(error) { close(c.over) },
	})
	check(t, err)
	if device.Limits().Windows {
		c.window, err = c.domain.NewWindow()
		check(t, err)
	}
	for i := range slots {
		c.repost(i)
	}
	check(t, c.device.Connect(t.Context(), c.qp, address, p))
	t.Cleanup(func() {
		_ = c.qp.Close()
		_ = c.cq.Close()
		if c.window != nil {
			_ = c.window.Free()
		}
		_ = c.region.Deregister()
		_ = c.domain.Close()
		_ = c.device.Close()
	})
	return c
}

func (c *client) slot(i int) rdma.SGE {
	b := c.region.Bytes()[i*slotSize:][:slotSize]
	return rdma.SGE{Bytes: b, Region: c.region}
}

func (c *client) repost(i int) {
	if c.deaf {
		return
	}
	_, err := c.qp.PostReceive([]rdma.Receive{{ID: uint64(i), SGL: []rdma.SGE{c.slot(i)}}})
	if !errors.Is(err, rdma.ErrDisconnected) { // which is told later
		check(c.t, err)
	}
}

// completion waits for the next one.
func (c *client) completion() rdma.Completion {
	for c.cq.Poll(c.one[:]) == 0 {
		if c.cq.Arm() {
			<-c.wake
		}
	}
	return c.one[0]
}

// answer is a PDU of the target's, and its completion.
type answer struct {
	h    pdu.Header
	data []byte
	c    rdma.Completion
}

// receive waits for the target's next PDU; ok is false if the connection has ended.
func (c *client) receive() (a answer, ok bool) {
	for {
		w := c.completion()
		if w.Status != rdma.StatusOK {
			return answer{c: w}, false
		}
		if w.Op != rdma.OpReceive {
			continue
		}
		b := bytes.Clone(c.slot(int(w.ID)).Bytes[:w.Bytes])
		c.repost(int(w.ID))
		if !c.direct {
			if b[0] != opControl<<4 {
				c.t.Fatalf("no iSER header: % x", b)
			}
			b = b[headerLen:]
		}
		h, data, whole := split(b)
		if !whole {
			c.t.Fatalf("short PDU: % x", b)
		}
		return answer{bytes.Clone(h), bytes.Clone(data), w}, true
	}
}

// send sends a PDU. write and read say whether buf from off on, n octets, is what the target
// is to read or write.
func (c *client) send(bhs, data []byte, write, read bool, off, n int) rdma.STag {
	w := []rdma.Work{{Op: rdma.OpSend}}
	if !c.direct { // the queue has room again when it completes
		w[0].Flags = rdma.Signaled
	}
	c.turn = (c.turn + 1) % outs // what was sent before may still be on its way
	b := c.out[c.turn*slotSize:][:0:slotSize]
	memory := rdma.SGE{Bytes: c.buf[off : off+n], Region: c.region}
	access := rdma.AccessRemoteRead
	if read {
		access = rdma.AccessRemoteWrite
	}
	advertise := (write || read) && n > 0
	switch {
	case c.direct && advertise:
		w[0].Flags, w[0].Memory, w[0].Access = rdma.Advertise, []rdma.SGE{memory}, access
	case !c.direct:
		var h [headerLen]byte
		h[0] = opControl << 4
		if advertise {
			if c.window != nil {
				bind := rdma.Work{Op: rdma.OpBind, Window: c.window, SGL: []rdma.SGE{memory}, Access: access | rdma.AccessRemoteInvalidate}
				_, err := c.qp.Post([]rdma.Work{bind})
				check(c.t, err)
			}
			at := 4
			h[0] |= flagWSV
			va := uint64(0)
			if read {
				at, h[0] = 16, opControl<<4|flagRSV
			} else {
				va = uint64(len(data))
			}
			binary.BigEndian.PutUint32(h[at:], uint32(c.stag()))
			binary.BigEndian.PutUint64(h[at+4:], c.windowBase(memory.Bytes)+va)
		}
		b = append(b, h[:]...)
	}
	b = append(append(b, bhs...), data...)
	w[0].SGL = []rdma.SGE{{Bytes: b, Region: c.region}}
	_, err := c.qp.Post(w)
	if c.offending && errors.Is(err, rdma.ErrDisconnected) {
		return 0 // the target has ended the connection already
	}
	check(c.t, err)
	switch {
	case !advertise:
		return 0
	case c.direct:
		return w[0].STag
	}
	return c.stag()
}

// stag names the buffer of the last command of iSER: its window, or all of the region where there are no windows.
func (c *client) stag() rdma.STag {
	if c.window == nil {
		return c.region.STag()
	}
	return c.window.STag()
}

// windowBase is the tagged offset of b in the window bound to it.
func (c *client) windowBase(b []byte) uint64 {
	return c.region.Base() + uint64(len(c.region.Bytes())-cap(b))
}

func (c *client) logIn(keys string) answer {
	c.t.Helper()
	if c.nudge != nil {
		defer c.nudge()()
	}
	text := "InitiatorName=iqn.2026-11.example:client\x00TargetName=" + iqn + "\x00" + keys
	if !c.direct {
		text += "RDMAExtensions=Yes\x00InitialR2T=No\x00ImmediateData=Yes\x00InitiatorRecvDataSegmentLength=262144\x00TargetRecvDataSegmentLength=8192\x00"
	} else {
		text += "ImmediateData=Yes\x00"
	}
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80, 0, 0, 0, 0, c.isid}, CmdSN: c.cmdSN, ITT: 1, DataSegmentLength: len(text),
	}
	c.send(f.AppendTo(nil), []byte(text), false, false, 0, 0)
	a, ok := c.receive()
	if !ok || a.h.Opcode() != pdu.OpLoginResponse || a.h[36] != 0 {
		c.t.Fatalf("login: %v % x %q", ok, a.h, a.data)
	}
	return a
}

// start sends a command with n octets of buf from off on, of which the first immediate come
// with it.
func (c *client) start(cdb []byte, write, read bool, off, n, immediate int) rdma.STag {
	c.itt++
	f := pdu.SCSICommandFields{
		Final: true, Write: write, Read: read, ITT: c.itt, CmdSN: c.cmdSN, CDB: cdb, EDTL: uint32(n), DataSegmentLength: immediate,
	}
	c.cmdSN++
	return c.send(f.AppendTo(nil), c.buf[off:off+immediate], write && immediate < n, read, off, n)
}

// do runs a command and returns its response.
func (c *client) do(cdb []byte, write, read bool, n, immediate int) pdu.SCSIResponse {
	c.t.Helper()
	stag := c.start(cdb, write, read, 0, n, immediate)
	a, ok := c.receive()
	if !ok || a.h.Opcode() != pdu.OpSCSIResponse || a.h.ITT() != c.itt {
		c.t.Fatalf("% x: %v %v % x", cdb, ok, a.c.Err, a.h)
	}
	if (write || read) && n > 0 && immediate < n {
		want := rdma.Invalidated
		switch {
		case c.direct:
			want = rdma.Closed
		case !c.inval:
			want, stag = 0, 0
		}
		if a.c.Flags != want || a.c.STag != stag {
			c.t.Fatalf("% x: STag %#x: flags %v, STag %#x", cdb, stag, a.c.Flags, a.c.STag)
		}
	}
	r, err := pdu.ParseSCSIResponse(a.h)
	check(c.t, err)
	return r
}

// An initiator that has no Send with Invalidate gets plain Sends (RFC 7145 §7.3.5): its STags stay its own.
func TestNothingInvalidated(t *testing.T) {
	b := newBench(t)
	for i, op := range []byte{0x8a, 0x88} {
		device, err := iwarp.Open(iwarp.Config{})
		check(t, err)
		c := dial(t, device, b.l.Addr().String(), rdma.ConnParams{PrivateData: []byte{noZBVA | noInvalidate, 0, 0, 0}})
		c.isid = byte(i)
		c.logIn("")
		for range 2 { // unit attentions
			c.do(make([]byte, 6), false, false, 0, 0)
		}
		if r := c.do(rw16(op, 0, 8), op == 0x8a, op == 0x88, 4096, 0); r.Status() != 0 { // do looks at the flags of the answer
			t.Errorf("%#x: status %#x", op, r.Status())
		}
	}
}

func rw16(op byte, lba uint64, blocks uint32) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
	return cdb
}

// eachFraming runs f with a client of each framing that has logged in and taken its unit
// attention.
func eachFraming(t *testing.T, f func(*testing.T, *bench, *client)) {
	for name, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c := b.dial(direct)
			c.logIn("")
			if r := c.do(make([]byte, 6), false, false, 0, 0); r.Status() != 2 {
				t.Fatalf("the unit attention: status %d", r.Status())
			}
			f(t, b, c)
		})
	}
}

func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>8)*3 + byte(i)*7 + seed
	}
}

func TestReadAndWrite(t *testing.T) {
	eachFraming(t, func(t *testing.T, _ *bench, c *client) {
		for i, s := range []struct{ n, immediate int }{
			{512, 0}, {512, 512}, {4096, 0}, {4096, 4096}, {8192, 8192}, {64 << 10, 0}, {64 << 10, 4096}, {1 << 20, 0}, {1 << 20, 8192},
		} {
			pattern(c.buf[:s.n], byte(i))
			want := bytes.Clone(c.buf[:s.n])
			if r := c.do(rw16(0x8a, uint64(i), uint32(s.n/512)), true, false, s.n, s.immediate); r.Status() != 0 || r.ResidualCount() != 0 {
				t.Fatalf("WRITE of %d with %d immediate: % x", s.n, s.immediate, r.Header)
			}
			clear(c.buf)
			if r := c.do(rw16(0x88, uint64(i), uint32(s.n/512)), false, true, s.n, 0); r.Status() != 0 || r.ResidualCount() != 0 {
				t.Fatalf("READ of %d: % x", s.n, r.Header)
			}
			if !bytes.Equal(c.buf[:s.n], want) {
				t.Fatalf("%d octets with %d immediate came back otherwise", s.n, s.immediate)
			}
		}
	})
}

// Data that commands make, residuals, and errors.
func TestOtherCommands(t *testing.T) {
	eachFraming(t, func(t *testing.T, _ *bench, c *client) {
		r := c.do([]byte{0x12, 0, 0, 1, 0, 0}, false, true, 256, 0) // INQUIRY
		if r.Status() != 0 || !r.Underflow() || r.ResidualCount() != 256-96 || !bytes.HasPrefix(c.buf[8:], []byte("ONESHOT")) {
			t.Errorf("INQUIRY: % x, % x", r.Header, c.buf[:40])
		}
		clear(c.buf)
		r = c.do(rw16(0x88, 0, 4), false, true, 1024, 0)
		if r.Status() != 0 || !r.Overflow() || r.ResidualCount() != 1024 {
			t.Errorf("READ of more than there is room for: % x", r.Header)
		}
		r = c.do(rw16(0x88, 1<<40, 1), false, true, 512, 0)
		if r.Status() != 2 {
			t.Errorf("READ beyond the end: % x", r.Header)
		}
		r = c.do(rw16(0x8a, 1<<40, 1), true, false, 512, 0)
		if r.Status() != 2 {
			t.Errorf("WRITE beyond the end: % x", r.Header)
		}
	})
}

// libiscsi before 1.20 announces immediate data and sends none.
func TestImmediateDataNotSent(t *testing.T) {
	b := newBench(t)
	c := b.dial(false)
	c.logIn("")
	c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
	const n = 8192
	pattern(c.buf[:n], 5)
	want := bytes.Clone(c.buf[:n])
	c.itt++
	f := pdu.SCSICommandFields{
		Final: true, Write: true, ITT: c.itt, CmdSN: c.cmdSN, CDB: rw16(0x8a, 3, n/512), EDTL: n, DataSegmentLength: n,
	}
	c.cmdSN++
	c.send(f.AppendTo(nil), nil, true, false, 0, n)
	a, ok := c.receive()
	if !ok || a.h.Opcode() != pdu.OpSCSIResponse || a.h[3] != 0 {
		t.Fatalf("WRITE: %v %v % x", ok, a.c.Err, a.h)
	}
	clear(c.buf)
	if r := c.do(rw16(0x88, 3, n/512), false, true, n, 0); r.Status() != 0 || !bytes.Equal(c.buf[:n], want) {
		t.Errorf("READ: status %d, or other bytes than written", r.Status())
	}
}

// What a peer must not do ends its connection, and nobody else's.
func TestViolations(t *testing.T) {
	command := func(f pdu.SCSICommandFields) func(*client) {
		return func(c *client) {
			f.ITT, f.CmdSN, f.Final = 99, c.cmdSN, true
			c.send(f.AppendTo(nil), c.buf[:f.DataSegmentLength], false, false, 0, 0)
		}
	}
	raw := func(b []byte) func(*client) {
		return func(c *client) {
			n := copy(c.out, b)
			_, err := c.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: c.out[:n], Region: c.region}}}})
			check(c.t, err)
		}
	}
	for name, offend := range map[string]func(*client){
		"nothing":   raw(nil),
		"too short": raw(make([]byte, 40)),
		"shorter than its data": func(c *client) {
			f := pdu.SCSICommandFields{Write: true, EDTL: 512, CDB: rw16(0x8a, 0, 1), DataSegmentLength: 512, CmdSN: c.cmdSN}
			c.send(f.AppendTo(nil), nil, false, false, 0, 0)
		},
		"shorter than its data, with a buffer": func(c *client) {
			f := pdu.SCSICommandFields{Write: true, EDTL: 512, CDB: rw16(0x8a, 0, 1), DataSegmentLength: 512, CmdSN: c.cmdSN}
			c.send(f.AppendTo(nil), c.buf[:256], true, false, 0, 512)
		},
		"Data-Out": func(c *client) {
			f := pdu.DataOutFields{ITT: 99, TTT: pdu.ReservedTag, Final: true}
			c.send(f.AppendTo(nil), nil, false, false, 0, 0)
		},
		"more than announced":      command(pdu.SCSICommandFields{Write: true, EDTL: 512, CDB: rw16(0x8a, 0, 1), DataSegmentLength: 1024}),
		"data without a buffer":    command(pdu.SCSICommandFields{Read: true, EDTL: 512, CDB: rw16(0x88, 0, 1)}),
		"Hello":                    raw(append([]byte{opHello << 4}, make([]byte, 27)...)),
		"no header at all":         raw(append([]byte{0x80, 0x80}, make([]byte, 46)...)),
		"header in place of a PDU": raw(append([]byte{opControl << 4}, make([]byte, 27)...)),
	} {
		t.Run(name, func(t *testing.T) {
			eachFraming(t, func(t *testing.T, b *bench, c *client) {
				if c.direct && name == "no header at all" {
					return // there is none
				}
				other := b.dial(!c.direct)
				other.isid = 2
				other.logIn("")
				c.offending = true
				offend(c)
				for {
					if _, ok := c.receive(); !ok {
						break
					}
				}
				if r := other.do(make([]byte, 6), false, false, 0, 0); r.Status() != 2 {
					t.Errorf("the other session: status %d", r.Status())
				}
			})
		})
	}
}

// The session is over when its initiator hears so, not when it disconnects: what it held is
// free (RFC 7143 §11.15.1: closed successfully).
func TestLogoutEndsNexus(t *testing.T) {
	eachFraming(t, func(t *testing.T, b *bench, c *client) {
		other := b.dial(c.direct)
		other.isid = 2
		other.logIn("")
		other.do(make([]byte, 6), false, false, 0, 0)                                    // takes the unit attention
		if r := c.do([]byte{0x16, 0, 0, 0, 0, 0}, false, false, 0, 0); r.Status() != 0 { // RESERVE(6)
			t.Fatalf("RESERVE: % x", r.Header)
		}
		if r := other.do(make([]byte, 6), false, false, 0, 0); r.Status() != 0x18 {
			t.Fatalf("no RESERVATION CONFLICT: % x", r.Header)
		}
		f := pdu.LogoutRequestFields{Immediate: true, Reason: pdu.LogoutCloseSession, ITT: 1000, CmdSN: c.cmdSN}
		c.send(f.AppendTo(nil), nil, false, false, 0, 0)
		if a, ok := c.receive(); !ok || a.h.Opcode() != pdu.OpLogoutResponse {
			t.Fatalf("no Logout Response: %v % x", a.c.Err, a.h)
		}
		if r := other.do(make([]byte, 6), false, false, 0, 0); r.Status() != 0 {
			t.Errorf("after the logout: % x", r.Header)
		}
	})
}

// A task that is aborted while its data is fetched; an initiator that dies then.
func TestAbortAndDeath(t *testing.T) {
	eachFraming(t, func(t *testing.T, b *bench, c *client) {
		c.start(rw16(0x8a, 0, 2048), true, false, 0, 1<<20, 0)
		f := pdu.TaskManagementRequestFields{
			Immediate: true, Function: pdu.TaskAbortTask, ITT: 1000, ReferencedTaskTag: c.itt, RefCmdSN: c.cmdSN - 1, CmdSN: c.cmdSN,
		}
		c.send(f.AppendTo(nil), nil, false, false, 0, 0)
		seen, bound := 0, true
		for {
			a, ok := c.receive()
			if !ok {
				t.Fatalf("connection lost: %v", a.c.Err)
			}
			seen++
			bound = bound && a.c.Flags == 0
			if a.h.Opcode() == pdu.OpTaskManagementResponse {
				if c.direct && seen == 1 && a.c.Flags&rdma.Closed == 0 {
					t.Error("the STag of the aborted task is not closed")
				}
				break
			}
		}
		if !c.direct && bound {
			_, err := c.qp.Post([]rdma.Work{{Op: rdma.OpLocalInvalidate, STag: c.window.STag()}})
			check(t, err)
		}
		// Whatever the outcome of the race, the session goes on.
		if r := c.do(rw16(0x88, 0, 8), false, true, 4096, 0); r.Status() != 0 {
			t.Errorf("READ afterwards: status %d", r.Status())
		}
		for range 3 {
			c.start(rw16(0x8a, 0, 2048), true, false, 0, 1<<20, 0)
			if !c.direct {
				break // one window
			}
		}
		c.qp.Abort(nil)
		for {
			if a, ok := c.receive(); !ok && a.c.Op == rdma.OpReceive {
				break
			}
		}
	})
}

// Discovery over iSER, a ping and a logout.
func TestDiscoveryAndLogout(t *testing.T) {
	b := newBench(t)
	c := b.dial(false)
	text := "InitiatorName=iqn.2026-11.example:client\x00SessionType=Discovery\x00MaxRecvDataSegmentLength=32768\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: 1, ITT: 1, DataSegmentLength: len(text),
	}
	c.send(f.AppendTo(nil), []byte(text), false, false, 0, 0)
	if a, ok := c.receive(); !ok || a.h[36] != 0 {
		t.Fatalf("login: % x", a.h)
	}
	ask := pdu.TextRequestFields{Final: true, ITT: 2, TTT: pdu.ReservedTag, CmdSN: 1, DataSegmentLength: 16}
	c.send(ask.AppendTo(nil), []byte("SendTargets=All\x00"), false, false, 0, 0)
	if a, ok := c.receive(); !ok || !bytes.Contains(a.data, []byte("TargetName="+iqn+"\x00")) {
		t.Fatalf("SendTargets: % x %q", a.h, a.data)
	}
	nop := pdu.NOPOutFields{ITT: 3, TTT: pdu.ReservedTag, CmdSN: 2}
	c.send(nop.AppendTo(nil), nil, false, false, 0, 0)
	if a, ok := c.receive(); !ok || a.h.Opcode() != pdu.OpNOPIn || a.h.ITT() != 3 {
		t.Fatalf("ping: % x", a.h)
	}
	bye := pdu.LogoutRequestFields{Reason: pdu.LogoutCloseSession, ITT: 4, CmdSN: 3}
	c.send(bye.AppendTo(nil), nil, false, false, 0, 0)
	if a, ok := c.receive(); !ok || a.h.Opcode() != pdu.OpLogoutResponse || a.h[2] != 0 {
		t.Fatalf("logout: % x", a.h)
	}
	c.qp.Disconnect()
	if _, ok := c.receive(); ok {
		t.Fatal("something comes after the logout")
	}
}

// TestLoginKeys: what Linux offers is answered as it wants, and nothing is sent unasked.
func TestLoginKeys(t *testing.T) {
	b := newBench(t)
	c := b.dial(false)
	a := c.logIn("HeaderDigest=None\x00MaxBurstLength=16776192\x00FirstBurstLength=262144\x00MaxConnections=1\x00ErrorRecoveryLevel=0\x00")
	want := "TargetPortalGroupTag=1\x00HeaderDigest=None\x00MaxBurstLength=16776192\x00FirstBurstLength=8192\x00" +
		"MaxConnections=1\x00ErrorRecoveryLevel=0\x00RDMAExtensions=Yes\x00InitialR2T=Yes\x00ImmediateData=Yes\x00" +
		"InitiatorRecvDataSegmentLength=262144\x00TargetRecvDataSegmentLength=8192\x00"
	if string(a.data) != want {
		t.Errorf("answer %q\nwant   %q", a.data, want)
	}
}
