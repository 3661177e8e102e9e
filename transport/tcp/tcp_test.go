package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	iqn       = "iqn.2026-11.example.oneshot:t"
	storeSize = 8 << 20
	blockSize = 512
)

// bench is a node with one target of one LUN, and what serves its connections.
type bench struct {
	cfg  Config
	t    testing.TB
	node *iscsi.Node
	pool *mem.Pool
	l    *net.TCPListener
	lu   *scsi.LogicalUnit

	target *scsi.Target
	volume *volume.Volume
	wg     sync.WaitGroup

	mu     sync.Mutex
	movers []*Mover // guarded by mu
}

// at looks at the mover of the target's end of p.
func (b *bench) at(p *peer, look func(m *Mover)) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.movers {
		if m.Peer() == p.c.LocalAddr().String() {
			m.conn.Lock()
			look(m)
			m.conn.Unlock()
			return
		}
	}
	b.t.Fatal("no such connection")
}

// newBench serves store; tune may change the limits. When the test ends nothing may be left:
// no goroutine, no connection, no lease.
func newBench(t testing.TB, store backend.Store, tune func(*iscsi.Config)) *bench {
	t.Helper()
	return newBenchOf(t, store, tune, false)
}

// newBenchOf is newBench with moderation switched off or not.
func newBenchOf(t testing.TB, store backend.Store, tune func(*iscsi.Config), noModeration bool) *bench {
	t.Helper()
	b := &bench{t: t, pool: mem.NewPool(64 << 20)}
	cfg := iscsi.Config{
		Login: login.DefaultConfig(), Connections: 100, Sessions: 100, Commands: 32, MemoryPerConnection: 16 << 20,
		LoginTimeout: 15, NOPInterval: 30, NOPTimeout: 30, ReadTimeout: 70, Pool: b.pool, Logger: slog.New(slog.DiscardHandler), Rand: rand.Reader,
	}
	if tune != nil {
		tune(&cfg)
	}
	b.pool = cfg.Pool
	b.node = iscsi.NewNode(cfg)
	b.cfg = Config{Node: b.node, Pool: b.pool, NoModeration: noModeration, Counters: new(Counters)}
	var err error
	if b.volume, err = volume.New(volume.Config{Store: store, Logger: cfg.Logger}); err != nil {
		t.Fatal(err)
	}
	if b.lu, err = scsi.NewLogicalUnit(scsi.LUConfig{Volume: b.volume, Serial: "1", Logger: cfg.Logger}); err != nil {
		t.Fatal(err)
	}
	b.target = scsi.NewTarget(scsi.TargetConfig{Name: iqn})
	b.target.SetLU(0, b.lu)
	b.node.AddTarget(&iscsi.Target{Name: iqn, SCSI: b.target})
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.l = l.(*net.TCPListener)
	b.wg.Go(b.accept)
	t.Cleanup(b.close)
	return b
}

func (b *bench) accept() {
	for {
		c, err := b.l.AcceptTCP()
		if err != nil {
			return
		}
		if !b.node.Admit() {
			_ = c.Close()
			continue
		}
		m, err := b.cfg.connect(c)
		if err != nil {
			b.t.Error(err)
			continue
		}
		b.mu.Lock()
		b.movers = append(b.movers, m)
		b.mu.Unlock()
		b.wg.Go(func() { _ = m.serve() })
	}
}

func (b *bench) close() {
	b.l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no grace
	if err := b.node.Shutdown(ctx); err != nil {
		b.t.Errorf("shutdown: %v", err)
	}
	b.wg.Wait()
	if err := errors.Join(b.lu.Close(), b.volume.Close()); err != nil {
		b.t.Errorf("closing the store: %v", err)
	}
	if n := b.pool.Stats().Leases; n != 0 {
		b.t.Errorf("%d leases are outstanding", n)
	}
}

// until looks again and again until what is awaited holds.
func (b *bench) until(holds func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() { // only a hang reaches it
		if time.Now().After(deadline) {
			b.t.Fatal("what is awaited does not come")
		}
	}
}

func newMemory(t testing.TB) *memory.Store {
	t.Helper()
	s, err := memory.New(storeSize)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// peer is an initiator that does what the tests tell it, right or wrong.
type peer struct {
	t             testing.TB
	c             net.Conn
	header, data  bool // digests in force
	cmdSN         uint32
	shared        *atomic.Uint32 // instead of cmdSN, with other connections of a session
	itt           uint32
	chop          *mathrand.Rand // sends in random pieces
	corruptHeader bool           // the next PDU's header digest
	corruptData   bool
}

// dial logs in with keys besides the names.
func (b *bench) dial(keys ...string) *peer {
	b.t.Helper()
	c, err := net.Dial("tcp4", b.l.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // only a hang reaches it
	p := &peer{t: b.t, c: c, cmdSN: 100}
	b.t.Cleanup(func() { c.Close() })
	text := strings.Join(append([]string{"InitiatorName=iqn.2026-11.example:" + c.LocalAddr().String(), "TargetName=" + iqn}, keys...), "\x00") + "\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, ISID: pdu.ISID{0x80}, CmdSN: 100,
		ITT: 1, DataSegmentLength: len(text),
	}
	p.send(f.AppendTo(nil), []byte(text))
	h, data := p.receive()
	if h.Opcode() != pdu.OpLoginResponse || h[36] != 0 {
		b.t.Fatalf("login: % x", []byte(h))
	}
	answer := func(key string) string {
		_, rest, found := strings.Cut("\x00"+string(data), "\x00"+key+"=")
		if !found {
			return ""
		}
		value, _, _ := strings.Cut(rest, "\x00")
		return value
	}
	p.header, p.data = answer("HeaderDigest") == "CRC32C", answer("DataDigest") == "CRC32C"
	p.finish(p.command(make([]byte, 6), 0, false, false, true, nil), nil) // takes the unit attention
	return p
}

// send sends a PDU, with digests if agreed.
func (p *peer) send(bhs, data []byte) {
	b := append([]byte(nil), bhs...)
	if p.header {
		b = pdu.Digest(0).Update(b).AppendTo(b)
		if p.corruptHeader {
			b[len(b)-1] ^= 1
		}
	}
	if len(data) > 0 {
		start := len(b)
		b = append(b, data...)
		b = append(b, make([]byte, pdu.PaddedLen(len(data))-len(data))...)
		if p.data {
			b = pdu.Digest(0).Update(b[start:]).AppendTo(b)
			if p.corruptData {
				b[len(b)-1] ^= 1
			}
		}
	}
	for p.chop != nil && len(b) > 0 {
		n := min(len(b), 1+p.chop.IntN(200))
		if _, err := p.c.Write(b[:n]); err != nil {
			p.t.Fatalf("write: %v", err)
		}
		b = b[n:]
	}
	if _, err := p.c.Write(b); err != nil {
		p.t.Logf("write: %v", err)
	}
}

// receive reads a PDU and checks its digests.
func (p *peer) receive() (pdu.Header, []byte) {
	p.t.Helper()
	h, data, err := p.tryReceive()
	if err != nil {
		p.t.Fatalf("receive: %v", err)
	}
	return h, data
}

func (p *peer) tryReceive() (pdu.Header, []byte, error) {
	b := make([]byte, pdu.BHSLen)
	if _, err := io.ReadFull(p.c, b); err != nil {
		return nil, nil, err
	}
	h := pdu.Header(b)
	check := func(b []byte, what string) error {
		wire := make([]byte, pdu.DigestLen)
		if _, err := io.ReadFull(p.c, wire); err != nil {
			return err
		}
		if !pdu.Digest(0).Update(b).Matches(wire) {
			return errors.New(what + " digest does not match")
		}
		return nil
	}
	if p.header {
		if err := check(b, "header"); err != nil {
			return nil, nil, err
		}
	}
	n := h.DataSegmentLen()
	data := make([]byte, pdu.PaddedLen(n))
	if _, err := io.ReadFull(p.c, data); err != nil {
		return nil, nil, err
	}
	if p.data && n > 0 {
		if err := check(data, "data"); err != nil {
			return nil, nil, err
		}
	}
	return h, data[:n], nil
}

func rw16(op byte, off, n int) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint64(cdb[2:], uint64(off/blockSize))
	binary.BigEndian.PutUint32(cdb[10:], uint32(n/blockSize))
	return cdb
}

// command sends a SCSI Command PDU with immediate data.
func (p *peer) command(cdb []byte, edtl int, read, write, final bool, immediate []byte) uint32 {
	p.itt++
	f := pdu.SCSICommandFields{
		Final: final, Read: read, Write: write, Attr: pdu.AttrSimple, ITT: p.itt, EDTL: uint32(edtl), CDB: cdb,
		DataSegmentLength: len(immediate),
	}
	f.CmdSN = serial.SN(p.cmdSN)
	p.cmdSN++
	if p.shared != nil {
		f.CmdSN = serial.SN(p.shared.Add(1) - 1)
	}
	p.send(f.AppendTo(nil), immediate)
	return p.itt
}

// finish collects what comes for a command until its status, answering R2Ts from out.
func (p *peer) finish(itt uint32, out []byte) (status byte, in []byte, sense []byte) {
	p.t.Helper()
	for {
		h, data := p.receive()
		if h.ITT() != itt && h.Opcode() != pdu.OpReject {
			p.t.Fatalf("a PDU for command %d instead of %d: %v", h.ITT(), itt, h.Opcode())
		}
		switch h.Opcode() {
		case pdu.OpDataIn:
			d := pdu.DataIn{Header: h}
			if int(d.BufferOffset()) != len(in) {
				p.t.Fatalf("Data-In at %d, want %d", d.BufferOffset(), len(in))
			}
			in = append(in, data...)
			if d.HasStatus() {
				return d.Status(), in, nil
			}
		case pdu.OpR2T:
			r := pdu.R2T{Header: h}
			from := int(r.BufferOffset())
			p.sequence(itt, r.TTT(), out[from:from+int(r.DesiredDataTransferLength())], from, 3000)
		case pdu.OpSCSIResponse:
			if len(data) > 2 {
				sense = data[2:]
			}
			return pdu.SCSIResponse{Header: h}.Status(), in, sense
		case pdu.OpReject:
		default:
			p.t.Fatalf("%v in the middle of a command", h.Opcode())
		}
	}
}

// sequence sends Data-Out PDUs of at most most bytes.
func (p *peer) sequence(itt, ttt uint32, data []byte, off, most int) {
	for sn := uint32(0); ; sn++ {
		n := min(len(data), most)
		f := pdu.DataOutFields{
			Final: n == len(data), DataSegmentLength: n, ITT: itt, TTT: ttt, DataSN: serial.SN(sn), BufferOffset: uint32(off),
		}
		p.send(f.AppendTo(nil), data[:n])
		data, off = data[n:], off+n
		if len(data) == 0 {
			return
		}
	}
}

// write writes with as much immediate and unsolicited data as said, the rest by R2T.
func (p *peer) write(off int, data []byte, immediate, unsolicited int) {
	p.t.Helper()
	itt := p.command(rw16(0x8a, off, len(data)), len(data), false, true, unsolicited == 0, data[:immediate])
	if unsolicited > 0 {
		p.sequence(itt, pdu.ReservedTag, data[immediate:immediate+unsolicited], immediate, 2000)
	}
	if status, _, sense := p.finish(itt, data); status != 0 {
		p.t.Fatalf("WRITE of %d bytes: status %#x, % x", len(data), status, sense)
	}
}

func (p *peer) read(off, n int) []byte {
	p.t.Helper()
	status, in, sense := p.finish(p.command(rw16(0x88, off, n), n, true, false, true, nil), nil)
	if status != 0 || len(in) != n {
		p.t.Fatalf("READ of %d bytes: status %#x, %d bytes, % x", n, status, len(in), sense)
	}
	return in
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = mathrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// stores are the ways a store can answer: with its memory, at once, or later.
var stores = map[string]func(t *testing.T) backend.Store{
	"lends": func(t *testing.T) backend.Store { return newMemory(t) },
	"later": func(t *testing.T) backend.Store {
		s := faulty.New(newMemory(t), faulty.Seed(t))
		s.Shuffle()
		return s
	},
}

// dialects are settings that lead data along different ways.
var dialects = map[string][]string{
	"defaults":     {"MaxRecvDataSegmentLength=262144"},
	"r2t only":     {"InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=4096", "FirstBurstLength=4096", "MaxOutstandingR2T=4"},
	"small bursts": {"MaxRecvDataSegmentLength=512", "MaxBurstLength=1536", "FirstBurstLength=1024", "InitialR2T=No", "MaxOutstandingR2T=16"},
	"digests":      {"HeaderDigest=CRC32C", "DataDigest=CRC32C", "InitialR2T=No", "FirstBurstLength=8192"},
	"header only":  {"HeaderDigest=CRC32C", "InitialR2T=No", "MaxRecvDataSegmentLength=262144"},
}

// TestDialects drives random reads and writes against a plain model, along every way that
// data can take, whole and in small pieces.
func TestDialects(t *testing.T) {
	for storeName, open := range stores {
		for name, keys := range dialects {
			t.Run(storeName+"/"+name, func(t *testing.T) {
				p := newBench(t, open(t), nil).dial(keys...)
				model := make([]byte, storeSize)
				rnd := mathrand.New(mathrand.NewPCG(1, uint64(len(name))))
				immediate := name != "r2t only"
				unsolicited := immediate && name != "defaults"
				most := 4096
				if name == "small bursts" {
					most = 1024
				}
				for i := range 60 {
					if i == 30 {
						p.chop = rnd
					}
					n := blockSize * (1 + rnd.IntN(64))
					off := blockSize * rnd.IntN((storeSize-n)/blockSize)
					if rnd.IntN(2) == 0 {
						if got := p.read(off, n); !bytes.Equal(got, model[off:off+n]) {
							t.Fatalf("%d bytes at %d are not what was written", n, off)
						}
						continue
					}
					data := random(uint64(i), n)
					imm, uns := 0, 0
					if immediate {
						imm = rnd.IntN(min(n, most)/2 + 1)
					}
					if unsolicited {
						uns = rnd.IntN(min(n, most)/2 + 1)
					}
					p.write(off, data, imm, uns)
					copy(model[off:], data)
				}
				if got := p.read(0, storeSize/4); !bytes.Equal(got, model[:storeSize/4]) {
					t.Error("the store is not as the model")
				}
			})
		}
	}
}

// A Data-Out PDU that is missing, or beyond what was asked for, never ends in GOOD.
func TestWrongDataOut(t *testing.T) {
	for name, c := range map[string]struct {
		sn, off, n int
		dropped    bool
	}{
		"DataSN":   {sn: 1, off: 0, n: 4096},
		"offset":   {sn: 0, off: 512, n: 3584},
		"short":    {sn: 0, off: 0, n: 512},
		"too long": {sn: 0, off: 0, n: 8192, dropped: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newBench(t, newMemory(t), nil).dial("ImmediateData=No", "InitialR2T=Yes")
			itt := p.command(rw16(0x8a, 0, 4096), 4096, false, true, true, nil)
			h, _ := p.receive()
			f := pdu.DataOutFields{
				Final: true, DataSegmentLength: c.n, ITT: itt, TTT: h.TTT(), DataSN: serial.SN(uint32(c.sn)), BufferOffset: uint32(c.off),
			}
			p.send(f.AppendTo(nil), make([]byte, c.n))
			if c.dropped {
				if _, _, err := p.tryReceive(); err == nil {
					t.Error("the connection lives")
				}
				return
			}
			if status, _, sense := p.finish(itt, nil); status != byte(scsi.CheckCondition) || sense[2]&0xf != keyAborted {
				t.Fatalf("status %#x, % x", status, sense)
			}
			p.read(0, 512) // the session lives on
		})
	}
}

const keyAborted = 0xb

func TestBadDigests(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	p := b.dial("HeaderDigest=CRC32C", "DataDigest=CRC32C", "InitialR2T=No")
	data := random(9, 4096)
	p.write(0, data, 4096, 0)
	p.corruptData = true
	itt := p.command(rw16(0x8a, 0, 4096), 4096, false, true, true, make([]byte, 4096))
	p.corruptData = false
	if status, _, sense := p.finish(itt, nil); status != byte(scsi.CheckCondition) || sense[12] != 0x47 {
		t.Fatalf("status %#x, % x", status, sense)
	}
	if got := p.read(0, 4096); !bytes.Equal(got, data) {
		t.Error("damaged bytes have reached the store")
	}
	if n := b.node.Counters().DigestErrors.Load(); n != 1 {
		t.Errorf("%d digest errors counted", n)
	}
	p.corruptHeader = true
	p.command(rw16(0x88, 0, 512), 512, true, false, true, nil)
	if _, _, err := p.tryReceive(); err == nil {
		t.Error("the connection lives after a bad header digest")
	}
}

// Breaches of what was negotiated end the connection, and only that.
func TestViolations(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	witness := b.dial()
	for name, f := range map[string]func(p *peer){
		"immediate data over FirstBurstLength": func(p *peer) { p.command(rw16(0x8a, 0, 2048), 2048, false, true, true, make([]byte, 2048)) },
		"immediate data over EDTL":             func(p *peer) { p.command(rw16(0x8a, 0, 512), 512, false, true, true, make([]byte, 1024)) },
		"garbage":                              func(p *peer) { _, _ = p.c.Write(bytes.Repeat([]byte{0xff}, 4096)) },
		"segment over the maximum": func(p *peer) {
			f := pdu.NOPOutFields{ITT: 7, TTT: pdu.ReservedTag, Immediate: true, DataSegmentLength: maxSegment + 4}
			p.send(f.AppendTo(nil), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := b.dial("FirstBurstLength=1024", "InitialR2T=No")
			f(p)
			for {
				if _, _, err := p.tryReceive(); err != nil {
					break
				}
			}
			witness.read(0, 512)
		})
	}
}

// An initiator that does not read is served no more than fits; others do not notice, and
// when it reads everything is there.
func TestPeerThatDoesNotRead(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	other := b.dial()
	p := b.dial("MaxRecvDataSegmentLength=262144")
	const n, count = 1 << 20, 31
	var itts []uint32
	for range count {
		itts = append(itts, p.command(rw16(0x88, 0, n), n, true, false, true, nil))
	}
	for range 50 {
		other.read(4096, 4096)
	}
	for _, itt := range itts {
		if status, in, _ := p.finish(itt, nil); status != 0 || len(in) != n {
			t.Fatalf("status %#x, %d bytes", status, len(in))
		}
	}
}

// Connections that end in the middle of anything leave nothing behind: the bench checks.
func TestKilledAnywhere(t *testing.T) {
	for storeName, open := range stores {
		t.Run(storeName, func(t *testing.T) {
			b := newBench(t, open(t), nil)
			for i := range 40 {
				p := b.dial("InitialR2T=No", "FirstBurstLength=4096", "DataDigest=None")
				p.command(rw16(0x88, 0, 64<<10), 64<<10, true, false, true, nil)
				itt := p.command(rw16(0x8a, 0, 64<<10), 64<<10, false, true, false, make([]byte, 2048))
				f := pdu.DataOutFields{Final: true, DataSegmentLength: 2048, ITT: itt, TTT: pdu.ReservedTag, BufferOffset: 2048}
				_, _ = p.c.Write(append(f.AppendTo(nil), make([]byte, 50*i)...))
				p.c.Close()
			}
		})
	}
}

// Half a login holds a connection only until the login timeout, by the node's clock.
func TestSlowLogin(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	c, err := net.Dial("tcp4", b.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte{0x43, 0x87}); err != nil {
		t.Fatal(err)
	}
	for b.node.Counters().ProtocolErrors.Load() == 0 {
		b.node.Tick()
		runtime.Gosched()
	}
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
}

// More unsolicited data than there is memory for ends in TASK SET FULL, not in a hang.
func TestNoMemory(t *testing.T) {
	store := faulty.New(newMemory(t), faulty.Seed(t))
	gate := store.Hold(faulty.Match{})
	b := newBench(t, store, func(c *iscsi.Config) { c.MemoryPerConnection = 128 << 10 })
	p := b.dial("FirstBurstLength=65536", "InitialR2T=No")
	write := func() uint32 {
		return p.command(rw16(0x8a, 0, 64<<10), 64<<10, false, true, true, make([]byte, 64<<10))
	}
	first, second := write(), write()
	gate.Await(2)
	if status, _, _ := p.finish(write(), nil); status != byte(scsi.TaskSetFull) {
		t.Errorf("status %#x", status)
	}
	gate.Release()
	for _, itt := range []uint32{first, second} {
		if status, _, _ := p.finish(itt, nil); status != 0 {
			t.Errorf("status %#x of the command that had memory", status)
		}
	}
}

// longest returns how many bytes a transfer may have, by Block Limits.
func (p *peer) longest() int {
	p.t.Helper()
	_, in, _ := p.finish(p.command([]byte{0x12, 1, 0xb0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 64, true, false, true, nil), nil)
	return int(binary.BigEndian.Uint32(in[8:])) * blockSize
}

// TestTransferLimitOfPool: where all I/O memory is less than connections may have, half of it, as a power of two, is what a
// transfer may have. One gets it while another has room for its input and for what came early.
func TestTransferLimitOfPool(t *testing.T) {
	store := faulty.New(newMemory(t), faulty.Seed(t))
	b := newBench(t, store, func(c *iscsi.Config) { c.Pool = mem.NewPool(3 << 20) })
	p, other := b.dial(), b.dial("FirstBurstLength=65536", "InitialR2T=No")
	most := p.longest()
	if most != 1<<20 {
		t.Fatalf("transfers of %d bytes are announced", most)
	}
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	early := other.command(rw16(0x8a, 0, 64<<10), 64<<10, false, true, true, make([]byte, 64<<10))
	gate.Await(1)
	if in := p.read(0, most); len(in) != most {
		t.Errorf("%d bytes were read", len(in))
	}
	if status, _, sense := p.finish(p.command(rw16(0x88, 0, most+blockSize), most+blockSize, true, false, true, nil), nil); status != byte(scsi.CheckCondition) || sense[2] != 5 {
		t.Errorf("a longer transfer: status %#x, sense % x", status, sense)
	}
	gate.Release()
	if status, _, _ := other.finish(early, nil); status != 0 {
		t.Errorf("WRITE of the other: status %#x", status)
	}
}

// What is announced as the longest transfer can be had, and what is longer is refused, whatever the
// limits on memory are. Data that came early does not keep the commands that wait from their memory.
func TestTransferLimit(t *testing.T) {
	store := faulty.New(newMemory(t), faulty.Seed(t))
	b := newBench(t, store, func(c *iscsi.Config) { c.MemoryPerConnection = 256 << 10 })
	p := b.dial("FirstBurstLength=65536", "InitialR2T=No")
	most := p.longest()
	if most != 128<<10 {
		t.Fatalf("transfers of %d bytes are announced", most)
	}
	if in := p.read(0, most); len(in) != most {
		t.Errorf("%d bytes were read", len(in))
	}
	if status, _, sense := p.finish(p.command(rw16(0x88, 0, most+blockSize), most+blockSize, true, false, true, nil), nil); status != byte(scsi.CheckCondition) || sense[2] != 5 {
		t.Errorf("a longer transfer: status %#x, sense % x", status, sense)
	}
	gate := store.Hold(faulty.Match{})
	left := map[uint32]bool{p.command(rw16(0x8a, 0, 64<<10), 64<<10, false, true, true, make([]byte, 64<<10)): true}
	gate.Await(1)
	data := make([]byte, most)
	for range 2 { // one has memory; the other one has room for what came early
		left[p.command(rw16(0x8a, 0, most), most, false, true, true, data[:64<<10])] = true
	}
	for len(left) > 0 {
		h, _ := p.receive()
		switch h.Opcode() {
		case pdu.OpR2T:
			r := pdu.R2T{Header: h}
			from := int(r.BufferOffset())
			p.sequence(h.ITT(), r.TTT(), data[from:from+int(r.DesiredDataTransferLength())], from, 8192)
			gate.Release()
		case pdu.OpSCSIResponse:
			if status := (pdu.SCSIResponse{Header: h}).Status(); status != 0 {
				t.Errorf("WRITE %d: status %#x", h.ITT(), status)
			}
			delete(left, h.ITT())
		default:
			t.Fatalf("%v in the middle of commands", h.Opcode())
		}
	}
}

// ABORT TASK of a command that waits for its data: no answer to it, a response to the
// request, and the session goes on.
func TestAbortWhileFetching(t *testing.T) {
	p := newBench(t, newMemory(t), nil).dial("ImmediateData=No", "InitialR2T=Yes")
	itt := p.command(rw16(0x8a, 0, 4096), 4096, false, true, true, nil)
	r2t, _ := p.receive()
	f := pdu.TaskManagementRequestFields{
		Immediate: true, Function: pdu.TaskAbortTask, ITT: 999, ReferencedTaskTag: itt, CmdSN: serial.SN(p.cmdSN), RefCmdSN: serial.SN(p.cmdSN - 1),
	}
	p.send(f.AppendTo(nil), nil)
	h, _ := p.receive()
	if h.Opcode() != pdu.OpTaskManagementResponse || h[2] != 0 {
		t.Fatalf("%v % x", h.Opcode(), []byte(h))
	}
	p.sequence(itt, r2t.TTT(), make([]byte, 4096), 0, 4096) // too late, and thrown away
	p.read(0, 4096)
}

// The hot path allocates nothing on the target's side. The client allocates nothing either,
// so that the process's count is the target's.
func TestAllocations(t *testing.T) {
	p := newBench(t, newMemory(t), nil).dial("MaxRecvDataSegmentLength=262144", "InitialR2T=No")
	buf := make([]byte, pdu.BHSLen+4096)
	in := make([]byte, pdu.BHSLen+4096)
	cycle := func(cdb []byte, read bool) {
		f := pdu.SCSICommandFields{Final: true, Read: read, Write: !read, ITT: 5, EDTL: 4096, CDB: cdb, CmdSN: serial.SN(p.cmdSN)}
		n, back := pdu.BHSLen, pdu.BHSLen
		if read {
			back += 4096
		} else {
			f.DataSegmentLength = 4096
			n += 4096
		}
		p.cmdSN++
		f.AppendTo(buf[:0])
		if _, err := p.c.Write(buf[:n]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(p.c, in[:back]); err != nil {
			t.Fatal(err)
		}
	}
	for name, read := range map[string]bool{"READ": true, "WRITE": false} {
		op := byte(0x8a)
		if read {
			op = 0x88
		}
		cdb := rw16(op, 8192, 4096)
		p.read(0, 512) // warms up
		if n := testing.AllocsPerRun(2000, func() { cycle(cdb, read) }); n > 0.1 {
			t.Errorf("%s allocates %.2f times", name, n)
		}
	}
}

// FuzzReceive sends anything after a login: the connection may end, the target may not.
func FuzzReceive(f *testing.F) {
	cmd := pdu.SCSICommandFields{Final: true, Read: true, ITT: 1, EDTL: 512, CDB: rw16(0x88, 0, 512), CmdSN: 100}
	f.Add(cmd.AppendTo(nil))
	wr := pdu.SCSICommandFields{Final: false, Write: true, ITT: 2, EDTL: 1024, CDB: rw16(0x8a, 0, 1024), CmdSN: 100, DataSegmentLength: 512}
	out := pdu.DataOutFields{Final: true, DataSegmentLength: 512, ITT: 2, TTT: pdu.ReservedTag, BufferOffset: 512}
	f.Add(append(out.AppendTo(append(wr.AppendTo(nil), make([]byte, 512)...)), make([]byte, 512)...))
	nop := pdu.NOPOutFields{ITT: 3, TTT: pdu.ReservedTag, CmdSN: 100}
	f.Add(nop.AppendTo(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBench(t, newMemory(t), nil)
		p := b.dial("InitialR2T=No")
		_, _ = p.c.Write(data)
		_ = p.c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, p.c)
		b.dial().read(0, 512)
	})
}

// When all I/O memory is in use, sessions go on with what needs none, and logins come: whoever
// holds it would be the only one who can go on otherwise. It is there for all afterwards.
func TestAllMemoryInUse(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	p := b.dial("DataDigest=None", "MaxRecvDataSegmentLength=262144")
	var hog []*mem.Lease
	take := func() (more bool) {
		for n := mem.MaxLease; n >= mem.PageSize; n /= 2 {
			for l := b.pool.Lease(n); l != nil; l = b.pool.Lease(n) {
				hog, more = append(hog, l), true
			}
		}
		return more
	}
	for alone := false; take() || !alone; { // the connection may have yet to give its buffer back
		alone = b.pool.Stats().Leases == len(hog)
	}
	for range 3 {
		p.write(4096, make([]byte, 64<<10), 8<<10, 0)
		p.read(4096, 64<<10)
		b.dial().read(0, 512)
	}
	for _, l := range hog {
		l.Release()
	}
	p.write(4096, make([]byte, 64<<10), 8<<10, 0)
	p.read(4096, 64<<10)
}

// Logins that are not complete hold no I/O memory, whatever has come of them.
func TestHalfLoginsHoldNoMemory(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	p := b.dial()
	f := pdu.LoginRequestFields{CSG: pdu.StageLoginOperationalNegotiation, CmdSN: 100, ITT: 1, DataSegmentLength: 8192}
	half := append(f.AppendTo(nil), make([]byte, 8191)...)
	for range 10 {
		c, err := net.Dial("tcp4", b.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write(half); err != nil {
			t.Fatal(err)
		}
	}
	// What there is to see once they have been received is nothing.
	for b.node.Connections() < 11 {
		p.read(0, 512)
	}
	for range 100 {
		p.read(0, 512)
		if n := b.pool.Stats().Leases; n > 1 {
			t.Fatalf("%d leases", n)
		}
	}
}

// An initiator's hanging up is seen before what it has sent last is read.
func TestHungUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	m, err := newMover(s.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if m.HungUp() {
		t.Error("hung up, with the connection open")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !m.HungUp(); {
		if time.Now().After(deadline) {
			t.Fatal("not hung up, with the connection closed")
		}
	}
}
