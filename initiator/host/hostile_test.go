package host_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
)

// fake is a controller that does what the standard says until a command comes on its I/O queue: then it does what the test says.
type fake struct {
	t     *testing.T
	io    func(c *wire, e nvme.SQE)
	terms chan pdu.Fatal // of termination requests
	mqes  uint32
	alive func() bool // answers Keep Alive; nil: always
}

// wire is a connection of a fake.
type wire struct {
	net.Conn
	ic pdu.IC
}

// listen starts a fake, which ends with the test.
func listen(t *testing.T, io func(*wire, nvme.SQE)) (string, *fake) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, io: io, terms: make(chan pdu.Fatal, 8), mqes: 127}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(&wire{Conn: c})
		}
	}()
	return l.Addr().String(), f
}

// pdu reads a PDU as a whole.
func (w *wire) pdu() ([]byte, error) {
	b := make([]byte, pdu.CommonLen)
	if _, err := io.ReadFull(w, b); err != nil {
		return nil, err
	}
	b = append(b, make([]byte, int(pdu.Header(b).Len())-len(b))...)
	_, err := io.ReadFull(w, b[pdu.CommonLen:])
	return b, err
}

// header sends a header with its digest, and data with theirs.
func (w *wire) header(b, data []byte) {
	if w.ic.HeaderDigest {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	b = append(b, data...)
	if w.ic.DataDigest && len(data) > 0 {
		b = pdu.Digest(0).Update(data).AppendTo(b)
	}
	_, _ = w.Write(b)
}

func (w *wire) flags(data bool) (f uint8) {
	if w.ic.HeaderDigest {
		f |= pdu.FlagHeaderDigest
	}
	if w.ic.DataDigest && data {
		f |= pdu.FlagDataDigest
	}
	return f
}

func (w *wire) answer(e nvme.CQE) { w.header(pdu.AppendResponse(nil, w.flags(false), &e), nil) }

func (w *wire) data(cid uint16, off int, data []byte, flags uint8) {
	at := pdu.DataStart(pdu.DataLen, w.ic.HeaderDigest, 0)
	d := pdu.Data{CID: cid, Offset: uint32(off), Len: uint32(len(data))}
	w.header(d.AppendTo(nil, pdu.C2HData, w.flags(true)|flags, at), data)
}

func (f *fake) serve(w *wire) {
	defer w.Close()
	b, err := w.pdu()
	if err != nil {
		return
	}
	w.ic = pdu.ParseIC(b)
	resp := pdu.IC{HeaderDigest: w.ic.HeaderDigest, DataDigest: w.ic.DataDigest, Max: 1 << 20}
	if _, err := w.Write(resp.AppendTo(nil, pdu.ICResp)); err != nil {
		return
	}
	qid := uint16(0)
	for {
		b, err := w.pdu()
		if err != nil {
			return
		}
		switch pdu.Header(b).Type() {
		case pdu.H2CTermReq:
			fatal, _ := pdu.ParseTerm(b)
			f.terms <- fatal
			continue
		case pdu.CapsuleCmd:
		default:
			continue
		}
		e := nvme.SQE(b[pdu.CommonLen:pdu.CapsuleCmdLen])
		c := nvme.CQE{CID: e.CID()}
		switch {
		case e.Opcode() == nvme.Fabrics && e.FCType() == nvme.Connect:
			qid, c.DW0 = nvme.ConnectCommand{SQE: e}.QID(), 1
		case e.Opcode() == nvme.Fabrics && nvme.Property(e.DWord(11)) == nvme.PropCAP:
			c.DW0 = f.mqes
		case e.Opcode() == nvme.Fabrics && e.FCType() == nvme.PropertyGet:
			c.DW0 = nvme.CSTSReady | nvme.CSTSShutdownDone
		case qid != 0:
			f.io(w, e)
			continue
		case e.Opcode() == nvme.AdminKeepAlive && f.alive != nil && !f.alive():
			continue
		case e.Opcode() == nvme.AdminSetFeatures:
			c.DW0 = e.DWord(11) // as many queues as are asked for
		case e.Opcode() == nvme.AdminIdentify && nvme.CNS(e.DWord(10)) == nvme.CNSController:
			d := nvme.Controller{Type: nvme.IOController, IOCCSZ: (nvme.SQELen + 8192) / 16, NN: 1}
			w.data(e.CID(), 0, d.AppendTo(nil), pdu.FlagLast)
		case e.Opcode() == nvme.AdminIdentify && nvme.CNS(e.DWord(10)) == nvme.CNSNamespace:
			d := nvme.Namespace{Blocks: 1 << 20, BlockShift: 9}
			w.data(e.CID(), 0, d.AppendTo(nil), pdu.FlagLast)
		case e.Opcode() == nvme.AdminIdentify:
			w.data(e.CID(), 0, make([]byte, nvme.IdentifyLen), pdu.FlagLast)
		}
		w.answer(c)
	}
}

// Whatever the controller breaks, the command ends with an error, and the controller is told which rule that was
// (NVMe/TCP 1.0 §3.5).
func TestBrokenController(t *testing.T) {
	digests := host.URL{HeaderDigest: true, DataDigest: true}
	read := func(h *host.Command) { h.In = make([]byte, 4096) }
	write := func(h *host.Command) { h.Out = make([]byte, 64<<10) }
	for _, tt := range []struct {
		name string
		url  host.URL
		with func(*host.Command)
		act  func(w *wire, e nvme.SQE)
		want pdu.Fatal // 0: none
		text string
	}{
		{"a response to nothing", host.URL{}, read, func(w *wire, e nvme.SQE) { w.answer(nvme.CQE{CID: e.CID() ^ 0x400}) }, pdu.SequenceError, "not under way"},
		{"a slot that there is not", host.URL{}, read, func(w *wire, _ nvme.SQE) { w.answer(nvme.CQE{CID: 0xffff}) }, pdu.SequenceError, "not under way"},
		{"data of nothing", host.URL{}, read, func(w *wire, e nvme.SQE) { w.data(e.CID()^0x400, 0, make([]byte, 512), 0) }, pdu.SequenceError, "not under way"},
		{"data not in order", host.URL{}, read, func(w *wire, e nvme.SQE) { w.data(e.CID(), 512, make([]byte, 512), 0) }, pdu.DataOutOfRange, "at 512"},
		{"more data than asked for", host.URL{}, read, func(w *wire, e nvme.SQE) { w.data(e.CID(), 0, make([]byte, 4608), 0) }, pdu.DataOutOfRange, "of 4096"},
		{"data of a Write", host.URL{}, write, func(w *wire, e nvme.SQE) { w.data(e.CID(), 0, make([]byte, 512), 0) }, pdu.DataOutOfRange, "of 0"},
		{"lengths that differ", host.URL{}, read, func(w *wire, e nvme.SQE) {
			b := (&pdu.Data{CID: e.CID(), Len: 512}).AppendTo(nil, pdu.C2HData, 0, pdu.DataLen)
			binary.LittleEndian.PutUint32(b[16:], 511)
			w.header(b, make([]byte, 512))
		}, pdu.InvalidHeaderField, "511"},
		{"SUCCESS in the middle", host.URL{}, read, func(w *wire, e nvme.SQE) { w.data(e.CID(), 0, make([]byte, 512), pdu.FlagSuccess) }, pdu.InvalidHeaderField, "SUCCESS"},
		{"an R2T for a Read", host.URL{}, read, func(w *wire, e nvme.SQE) { w.header((&pdu.Ready{CID: e.CID(), Len: 512}).AppendTo(nil, 0), nil) }, pdu.DataOutOfRange, "of 0"},
		{"an R2T behind the end", host.URL{}, write, func(w *wire, e nvme.SQE) {
			w.header((&pdu.Ready{CID: e.CID(), Offset: 0xffffff00, Len: 512}).AppendTo(nil, 0), nil)
		}, pdu.DataOutOfRange, "of 65536"},
		{"an R2T for nothing", host.URL{}, write, func(w *wire, e nvme.SQE) { w.header((&pdu.Ready{CID: e.CID()}).AppendTo(nil, 0), nil) }, pdu.DataOutOfRange, "0 bytes"},
		{"a PDU of the host's", host.URL{}, read, func(w *wire, _ nvme.SQE) { _, _ = w.Write([]byte{4, 0, 72, 0, 72, 0, 0, 0}) }, pdu.InvalidHeaderField, "type 0x04"},
		{"HLEN", host.URL{}, read, func(w *wire, _ nvme.SQE) { _, _ = w.Write([]byte{5, 0, 23, 0, 24, 0, 0, 0}) }, pdu.InvalidHeaderField, "23 bytes"},
		{"huge PLEN", host.URL{}, read, func(w *wire, _ nvme.SQE) { _, _ = w.Write([]byte{7, 0, 24, 24, 255, 255, 255, 255}) }, pdu.LimitExceeded, "allowed"},
		{"a response with data", host.URL{}, read, func(w *wire, _ nvme.SQE) { _, _ = w.Write([]byte{5, 0, 24, 24, 32, 0, 0, 0}) }, pdu.InvalidHeaderField, "data in a PDU"},
		{"header digest", digests, read, func(w *wire, e nvme.SQE) {
			_, _ = w.Write(append(pdu.AppendResponse(nil, w.flags(false), &nvme.CQE{CID: e.CID()}), 1, 2, 3, 4))
		}, pdu.HeaderDigestError, "digest"},
		{"no digest", digests, read, func(w *wire, e nvme.SQE) {
			_, _ = w.Write(pdu.AppendResponse(nil, 0, &nvme.CQE{CID: e.CID()}))
		}, pdu.InvalidHeaderField, "negotiated"},
		{"termination", host.URL{}, read, func(w *wire, _ nvme.SQE) {
			_, _ = w.Write(pdu.AppendTerm(nil, pdu.C2HTermReq, &pdu.Error{Fatal: pdu.LimitExceeded}, make([]byte, 72)))
		}, 0, "limit exceeded"},
		{"the end", host.URL{}, read, func(w *wire, _ nvme.SQE) { _ = w.Close() }, 0, "closed the connection"},
		{"the end in the middle of data", host.URL{}, read, func(w *wire, e nvme.SQE) {
			_, _ = w.Write((&pdu.Data{CID: e.CID(), Len: 4096}).AppendTo(nil, pdu.C2HData, 0, pdu.DataLen))
			_ = w.Close()
		}, 0, "closed the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, f := listen(t, tt.act)
			tt.url.Address = addr
			c := dial(t, tt.url, host.Options{})
			n, err := c.Namespace(within(t), 1)
			if err != nil {
				t.Fatal(err)
			}
			x := new(host.Command)
			tt.with(x)
			if err := n.Prepare(x, 0); err != nil {
				t.Fatal(err)
			}
			if err := c.Do(within(t), 0, x); err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("the command ends with %v, want %q", err, tt.text)
			}
			if tt.want == 0 {
				return
			}
			select {
			case got := <-f.terms:
				if got != tt.want {
					t.Errorf("the controller is told %v, want %v", got, tt.want)
				}
			case <-within(t).Done():
				t.Error("the controller is told nothing")
			}
		})
	}
}

// A controller whose queues have room for nothing is refused, instead of being waited for.
func TestNoDepth(t *testing.T) {
	addr, f := listen(t, nil)
	f.mqes = 0
	if _, err := host.Dial(within(t), host.URL{Address: addr, Subsystem: nqn}, host.Options{}); err == nil || !strings.Contains(err.Error(), "CAP.MQES 0") {
		t.Error(err)
	}
}

// A controller that no longer answers Keep Alive is lost, and the commands of all queues end with that; at most one Keep Alive is
// under way.
func TestSilentController(t *testing.T) {
	var asked atomic.Int64
	addr, f := listen(t, func(*wire, nvme.SQE) {})
	f.alive = func() bool { return asked.Add(1) < 3 }
	c := dial(t, host.URL{Address: addr}, host.Options{KeepAlive: 20 * time.Millisecond, Queues: 2})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	for queue := range 2 {
		x := &host.Command{In: make([]byte, 4096)}
		if err := n.Prepare(x, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Do(within(t), queue, x); err == nil || !strings.Contains(err.Error(), "Keep Alive") {
			t.Errorf("a command of queue %d ends with %v", queue, err)
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("%d Keep Alives were sent, the third of which was not answered", n)
	}
}

// Data whose digest does not match fail their command, and nothing else: the queue goes on.
func TestDataDigest(t *testing.T) {
	broken := true
	addr, _ := listen(t, func(w *wire, e nvme.SQE) {
		data := pattern(4096, 1)
		at := pdu.DataStart(pdu.DataLen, true, 0)
		b := (&pdu.Data{CID: e.CID(), Len: 4096}).AppendTo(nil, pdu.C2HData, w.flags(true)|pdu.FlagLast|pdu.FlagSuccess, at)
		b = pdu.Digest(0).Update(b).AppendTo(b)
		b = append(b, data...)
		b = pdu.Digest(0).Update(data).AppendTo(b)
		if broken {
			b[len(b)-1] ^= 1
		}
		broken = false
		_, _ = w.Write(b)
	})
	c := dial(t, host.URL{Address: addr, HeaderDigest: true, DataDigest: true}, host.Options{})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	if _, err := n.ReadAt(b, 0); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("bad data: %v", err)
	}
	if _, err := n.ReadAt(b, 0); err != nil || string(b) != string(pattern(4096, 1)) {
		t.Errorf("afterwards: %v", err)
	}
}

// A controller may fetch data in pieces, one R2T after the other, and small ones; it may refuse a command whose data are on
// their way, and the memory is the command's until they have left.
func TestReadyInPieces(t *testing.T) {
	want := pattern(64<<10, 3)
	got := make(chan []byte, 1)
	addr, _ := listen(t, func(w *wire, e nvme.SQE) {
		var all []byte
		for off := 0; off < len(want); off += 24 << 10 {
			k := min(24<<10, len(want)-off)
			w.header((&pdu.Ready{CID: e.CID(), Tag: uint16(off), Offset: uint32(off), Len: uint32(k)}).AppendTo(nil, 0), nil)
			for k > 0 {
				b, err := w.pdu()
				if err != nil {
					return
				}
				d := pdu.ParseData(b)
				if int(d.Offset) != len(all) || d.Tag != uint16(off) || d.CID != e.CID() || pdu.Header(b).Flags()&pdu.FlagLast == 0 {
					t.Errorf("%+v after %d bytes", d, len(all))
				}
				all = append(all, b[pdu.DataLen:]...)
				k -= int(d.Len)
			}
		}
		got <- all
		w.answer(nvme.CQE{CID: e.CID(), Status: nvme.WriteFault | nvme.DNR})
	})
	c := dial(t, host.URL{Address: addr}, host.Options{})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.WriteAt(want, 0); err == nil || !strings.Contains(err.Error(), "write fault") {
		t.Error(err)
	}
	if string(<-got) != string(want) {
		t.Error("other bytes have come")
	}
}

// Answers to ICReq that the standard excludes end the connection.
func TestBadICResp(t *testing.T) {
	for text, ic := range map[string]pdu.IC{
		"version 1": {Format: 1, Max: 4096}, "aligned by 32": {Align: 32, Max: 4096}, "at most 4092": {Max: 4092}, "digests": {Max: 4096, DataDigest: true},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = (&wire{Conn: c}).pdu()
			_, _ = c.Write(ic.AppendTo(nil, pdu.ICResp))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
		if _, err := host.Dial(within(t), host.URL{Address: l.Addr().String(), Subsystem: nqn}, host.Options{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
		_ = l.Close()
	}
}

// A command that ends while its data are on their way keeps its memory until they have left; a second R2T meanwhile is an error.
func TestAnswerBeforeData(t *testing.T) {
	const size = 32 << 20 // more than sockets hold
	for _, again := range []bool{false, true} {
		release := make(chan struct{})
		count, write := 0, uint16(0)
		addr, _ := listen(t, func(w *wire, e nvme.SQE) {
			if count++; count == 1 { // the Write comes first, and the Flush is behind it: nothing else is read meanwhile
				write = e.CID()
				return
			}
			r := pdu.Ready{CID: write, Len: size}
			w.header(r.AppendTo(nil, 0), nil)
			if again {
				w.header(r.AppendTo(nil, 0), nil)
			} else {
				w.answer(nvme.CQE{CID: write, Status: nvme.WriteFault | nvme.DNR})
				w.answer(nvme.CQE{CID: e.CID()})
			}
			<-release
		})
		c := dial(t, host.URL{Address: addr}, host.Options{Depth: 2})
		over := make(chan string, 2)
		x := &host.Command{Opcode: nvme.Write, Out: make([]byte, size), Done: func(*host.Command) { over <- "write" }}
		y := &host.Command{Opcode: nvme.Flush, Done: func(*host.Command) { over <- "flush" }}
		c.Start(0, x, y)
		if !again {
			if got := <-over; got != "flush" {
				t.Errorf("the %s ends first, before its data have left", got)
			}
		}
		close(release)
		if again {
			<-over
		}
		if got := <-over; !again && (got != "write" || x.Failure() == nil) {
			t.Errorf("%s ends with %v", got, x.Failure())
		}
		if again && (x.Err == nil || !strings.Contains(x.Err.Error(), "which is being sent")) {
			t.Errorf("a second R2T: %v", x.Err)
		}
	}
}

// namespaceAt connects to the target there, and returns its namespace.
func namespaceAt(t *testing.T, addr string) *host.Namespace {
	t.Helper()
	u, err := host.ParseURL("nvme+tcp://" + addr + "/nqn.2026-11.example:t/1")
	if err != nil {
		t.Fatal(err)
	}
	c, err := host.Dial(t.Context(), u, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	n, err := c.Namespace(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A pair that nobody waits for any more is executed with the bytes that were given, not with those that are in their place by now.
func TestCompareAndWriteCanceled(t *testing.T) {
	const size = 16 << 10 // more than a capsule holds
	ctx, cancel := context.WithCancel(t.Context())
	changed, fetched := make(chan struct{}), make(chan []byte, 1)
	var first atomic.Bool
	addr, _ := listen(t, func(w *wire, e nvme.SQE) {
		if first.Swap(true) {
			return
		}
		cancel()
		<-changed
		w.header((&pdu.Ready{CID: e.CID(), Len: size}).AppendTo(nil, w.flags(false)), nil)
		for {
			b, err := w.pdu()
			if err != nil || pdu.Header(b).Type() == pdu.H2CData {
				fetched <- b
				return
			}
		}
	})
	n := namespaceAt(t, addr)
	old, now := bytes.Repeat([]byte("o"), size), bytes.Repeat([]byte("n"), size)
	if _, err := n.CompareAndWrite(ctx, 0, old, now); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	clear(old)
	close(changed)
	if b := <-fetched; !bytes.HasSuffix(b, bytes.Repeat([]byte("o"), size)) {
		t.Errorf("other bytes are compared: % x", b[:min(len(b), 40)])
	}
}

// A pair may be answered when nobody waits for it any more: what it ends with then is not looked at.
func TestCompareAndWriteAnsweredLate(t *testing.T) {
	addr, _ := listen(t, func(w *wire, e nvme.SQE) { w.answer(nvme.CQE{CID: e.CID(), Status: nvme.CompareFailure}) })
	n := namespaceAt(t, addr)
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if same, err := n.CompareAndWrite(ctx, 0, make([]byte, 512), make([]byte, 512)); same || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", same, err)
		}
	}
}
