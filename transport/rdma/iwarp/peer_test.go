package iwarp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// peer is a peer whose octets the test writes itself.
type peer struct {
	t  *testing.T
	c  net.Conn
	f  ddp.Format
	in []byte
}

// withPeer returns an end connected with a peer. flags are those of one-shot, or 0. The end is Host 1 if
// it is the initiator.
func withPeer(t *testing.T, s setup, flags ddp.OneShotFlags, initiator bool) (*end, *peer) {
	t.Helper()
	e := newEnd(t, s)
	ours, theirs := socketPair(t)
	p := &peer{t: t, c: theirs}
	a := agreed{crc: true, ird: 16, ord: 16, initiator: initiator}
	if flags != 0 {
		a.shot = &ddp.OneShot{Flags: flags, Window: 4}
		host := ddp.Host1
		if initiator {
			host = ddp.Host2
		}
		p.f = a.shot.Format(host)
	}
	q := e.qp.(*queuePair)
	check(t, q.claim())
	check(t, q.start(ours, &a))
	t.Cleanup(func() {
		theirs.Close()
		e.close()
	})
	return e, p
}

const allFlags = ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose

// write sends messages of one segment, each from its ULPDU Length to the end of its ULPDU.
func (p *peer) write(ulpdus ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, u := range ulpdus {
		b = append(b, ddp.AppendFPDUTrailer(bytes.Clone(u), 0)...)
	}
	_, err := p.c.Write(b)
	check(p.t, err)
}

func (p *peer) send(m ddp.Message, s rdma.STag, msn uint32, payload string) []byte {
	b := p.f.AppendUntagged(nil, ddp.Untagged{
		Control: p.f.Control(m, true), STag: uint32(s), MSN: msn, Payload: len(payload),
	})
	return append(b, payload...)
}

func readRequest(msn uint32, s rdma.STag, n int) []byte {
	return ddp.AppendReadRequest(nil, msn, ddp.RDMARead{SinkSTag: 0x77, SinkTO: 8, Size: uint32(n), SrcSTag: uint32(s)})
}

// read reads the next FPDU.
func (p *peer) read() ddp.Segment {
	p.t.Helper()
	head := make([]byte, 2)
	_, err := io.ReadFull(p.c, head)
	check(p.t, err)
	b := make([]byte, ddp.FPDULen(int(head[0])<<8|int(head[1])))
	copy(b, head)
	_, err = io.ReadFull(p.c, b[2:])
	check(p.t, err)
	p.in, _, err = ddp.SplitFPDU(b, true)
	check(p.t, err)
	seg, err := p.f.Parse(p.in)
	check(p.t, err)
	return seg
}

// terminate reads the next FPDU, which has to be a Terminate, and the end of the stream.
func (p *peer) terminate() ddp.TerminateMessage {
	p.t.Helper()
	seg := p.read()
	if seg.Message != ddp.Terminate {
		p.t.Fatalf("%v, want a Terminate", seg.Message)
	}
	m, err := p.f.ParseTerminate(p.in[seg.PayloadOffset():])
	check(p.t, err)
	if n, err := p.c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		p.t.Fatalf("after the Terminate %d octets and %v", n, err)
	}
	return m
}

// one-shot.md §4, §9: a close waits for the Read Responses that refer to the memory.
func TestCloseWaitsForResponses(t *testing.T) {
	e, p := withPeer(t, setup{}, allFlags, true)
	const n = 4 << 20
	e.fill(0, n, 3)
	ws := []rdma.Work{{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: e.sge(n, 48), Access: rdma.AccessRemoteRead, Memory: e.sge(0, n),
	}}
	e.post(ws...)
	e.recv(1, n, 100)
	e.recv(2, n, 100)
	s := ws[0].STag
	if seg := p.read(); seg.Header.STag() != uint32(s) {
		t.Fatalf("advertised %08x", seg.Header.STag())
	}
	p.write(readRequest(1, s, n), readRequest(2, s, n),
		p.send(ddp.SendClose, s, 1, "closed"), p.send(ddp.Send, 0, 2, "behind it"))
	table := e.dev.(*Device).memory.Table
	for table.State(stag.STag(s)) != stag.Closing {
		runtime.Gosched()
	}
	if e.cq.Poll(e.last[:]) != 0 {
		t.Fatalf("%+v while Responses are queued", e.last[0])
	}
	for range 2 {
		for got := 0; got < n; {
			seg := p.read()
			b := p.in[seg.PayloadOffset():]
			if seg.Message != ddp.ReadResponse || !bytes.Equal(b, e.mem.Bytes()[got:got+len(b)]) {
				t.Fatalf("%v at %d is not what was asked", seg.Message, got)
			}
			got += len(b)
		}
	}
	if c := e.want(rdma.OpReceive, 1); c.Flags != rdma.Closed || c.STag != s {
		t.Fatalf("%+v", c)
	}
	e.want(rdma.OpReceive, 2)
	if state := table.State(stag.STag(s)); state != stag.Free {
		t.Fatalf("the STag is %v", state)
	}
}

// Revoking takes access away at once and the memory when the last Response has left.
func TestRevokeWaitsForResponses(t *testing.T) {
	e, p := withPeer(t, setup{}, allFlags, true)
	const n = 4 << 20
	ws := []rdma.Work{{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: e.sge(n, 48), Access: rdma.AccessRemoteRead, Memory: e.sge(0, n),
	}}
	e.post(ws...)
	p.read()
	p.write(readRequest(1, ws[0].STag, n))
	first := p.read()
	done := make(chan struct{})
	check(t, e.qp.Revoke(ws[0].STag, func() { close(done) }))
	for got := first.PayloadLen(); got < n; got += p.read().PayloadLen() {
	}
	<-done
	p.write(readRequest(2, ws[0].STag, 1))
	if m := p.terminate(); m.Cause != ddp.ProtInvalidSTag || !m.HasRead || m.Read.Size != 1 {
		t.Fatalf("%+v", m)
	}
}

// Unbinding a window, by either end or both, waits for the Read Responses that refer to its memory.
func TestUnbindWaitsForResponses(t *testing.T) {
	byPeer := func(e *end, p *peer, w rdma.Window) func() {
		s := w.STag()
		e.recv(1, 0, 100)
		e.recv(2, 0, 100)
		p.write(p.send(ddp.SendInvalidate, s, 1, "ended"), p.send(ddp.Send, 0, 2, "behind it"))
		return func() {
			if c := e.want(rdma.OpReceive, 1); c.Flags != rdma.Invalidated || c.STag != s {
				e.t.Fatalf("%+v", c)
			}
			e.want(rdma.OpReceive, 2)
		}
	}
	free := func(e *end, _ *peer, w rdma.Window) func() {
		done := make(chan error, 1)
		go func() { done <- w.Free() }()
		return func() { check(e.t, <-done) }
	}
	// waits returns when so many wait for the window.
	waits := func(e *end, w rdma.Window, n int) {
		q := e.qp.(*queuePair)
		for waiting := -1; waiting < n; runtime.Gosched() {
			q.mu.Lock()
			waiting = len(q.bound(stag.STag(w.STag())).quiet)
			q.mu.Unlock()
		}
	}
	for name, end := range map[string]func(e *end, p *peer, w rdma.Window) (wait func()){
		"Send with Invalidate": byPeer,
		"both, the peer first": func(e *end, p *peer, w rdma.Window) func() {
			one := byPeer(e, p, w)
			waits(e, w, 1)
			other := free(e, p, w)
			waits(e, w, 2)
			return func() { one(); other() }
		},
		"both, Free first": func(e *end, p *peer, w rdma.Window) func() {
			one := free(e, p, w)
			waits(e, w, 1)
			other := byPeer(e, p, w)
			waits(e, w, 2)
			return func() { one(); other() }
		},
		"LocalInvalidate": func(e *end, _ *peer, w rdma.Window) func() {
			e.post(rdma.Work{ID: 3, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: w.STag()})
			return func() { e.want(rdma.OpLocalInvalidate, 3) }
		},
		"Free": free,
	} {
		t.Run(name, func(t *testing.T) {
			e, p := withPeer(t, setup{depth: 4}, 0, true)
			const n = 4 << 20
			w, err := e.dom.NewWindow()
			check(t, err)
			bind := rdma.Work{ID: 9, Op: rdma.OpBind, Flags: rdma.Signaled, Window: w, SGL: e.sge(0, n), Access: rdma.AccessRemoteRead}
			e.post(bind)
			e.want(rdma.OpBind, 9)
			s := stag.STag(w.STag())
			p.write(readRequest(1, w.STag(), n))
			first := p.read()
			wait := end(e, p, w)
			table := e.dev.(*Device).memory.Table
			for name != "LocalInvalidate" && table.State(s) != stag.Invalid { // a LocalInvalidate has its turn after the Response
				runtime.Gosched()
			}
			if e.cq.Poll(e.last[:]) != 0 {
				t.Fatalf("%+v while a Response is queued", e.last[0])
			}
			for got := first.PayloadLen(); got < n; got += p.read().PayloadLen() {
			}
			wait()
			if state := table.State(s); state != stag.Free {
				t.Errorf("the STag is %v", state)
			}
			e.post(bind) // it is not bound any more
			e.want(rdma.OpBind, 9)
			if w.STag() == rdma.STag(s) {
				t.Error("the STag is the old one")
			}
			check(t, w.Free())
			p.write(readRequest(2, rdma.STag(s), 1))
			if m := p.terminate(); m.Cause != ddp.ProtInvalidSTag {
				t.Errorf("%+v", m)
			}
		})
	}
}

// A close makes room in the window when it has left, even if an earlier Read is not answered.
func TestWindowBehindRead(t *testing.T) {
	e, p := withPeer(t, setup{}, allFlags, false)
	for i := range 6 {
		e.recv(uint64(i), 0, 100)
	}
	for i := range 4 {
		p.write(p.send(ddp.SendAdvertise, rdma.STag(0x100*(i+1)), uint32(i+1), "command"))
		e.want(rdma.OpReceive, uint64(i))
	}
	e.post(
		rdma.Work{ID: 1, Op: rdma.OpRead, SGL: e.sge(0, 10), RemoteSTag: 0x100},
		rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Close | rdma.Signaled, STag: 0x200, SGL: e.sge(0, 10)},
	)
	p.read()
	if m := p.read().Message; m != ddp.SendClose {
		t.Fatalf("%v, want a close", m)
	}
	p.write(p.send(ddp.SendAdvertise, 0x600, 5, "command"))
	if c := e.want(rdma.OpReceive, 4); c.Flags != rdma.Advertised {
		t.Fatalf("%+v", c)
	}
	p.write(p.send(ddp.SendAdvertise, 0x700, 6, "one too many"))
	if m := p.terminate(); m.Cause != ddp.OpCatastrophicStream {
		t.Fatalf("%v", m.Cause)
	}
}

// After four Read Responses the send queue has its turn.
func TestAnswersAlternate(t *testing.T) {
	e, p := withPeer(t, setup{}, 0, false)
	var ws []rdma.Work
	for range 3 {
		ws = append(ws, rdma.Work{Op: rdma.OpSend, SGL: e.sge(0, 10)})
	}
	e.post(ws...) // waits for the first FPDU
	var b [][]byte
	for i := range 16 {
		b = append(b, readRequest(uint32(i+1), e.mem.STag(), 100))
	}
	p.write(b...)
	want := "RRRRSRRRRSRRRRSRRRR"
	got := ""
	for range want {
		switch p.read().Message {
		case ddp.ReadResponse:
			got += "R"
		case ddp.Send:
			got += "S"
		}
	}
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// iwarp.md §5: siw's Terminate is understood, though its bits are the wrong way round.
func TestSiwTerminate(t *testing.T) {
	for _, frame := range []string{
		"001a 4147 00000000 00000002 00000001 00000000 20060300 0012 8000",
		"001a 4147 00000000 00000002 00000001 00000000 0206c000 0012 8000",
		"0016 4147 00000000 00000002 00000001 00000000 20060300",
	} {
		e, p := withPeer(t, setup{}, 0, false)
		p.write(unhex(t, frame))
		e.gonePeer(ddp.OpUnexpectedOpcode)
	}
}

// Messages arrive in whatever pieces the peer sends them.
func TestPieces(t *testing.T) {
	e, p := withPeer(t, setup{}, 0, false)
	const n = 30
	payload := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*i*8) }
	msn := uint32(0)
	for size := 1; size < 20000; size = size*3 + 1 {
		var wire []byte
		for i := range n {
			msn++
			wire = append(wire, ddp.AppendFPDUTrailer(p.send(ddp.Send, 0, msn, string(payload(i))), 0)...)
			e.recv(uint64(i), i*8192, 8192)
		}
		go func() {
			for b := wire; len(b) > 0; {
				k := min(size, len(b))
				_, _ = p.c.Write(b[:k])
				b = b[k:]
			}
		}()
		for i := range n {
			c := e.want(rdma.OpReceive, uint64(i))
			if !bytes.Equal(e.mem.Bytes()[i*8192:][:c.Bytes], payload(i)) {
				t.Fatalf("pieces of %d: message %d has %d octets, or others", size, i, c.Bytes)
			}
		}
	}
}

// Connections end at any moment, from both sides, while everything is in use.
func TestEndsUnderLoad(t *testing.T) {
	for round := range 30 {
		a, b := newEnd(t, setup{shared: true, depth: 1024, client: offer(), server: offer()}), newEnd(t, setup{shared: true, depth: 1024})
		connect(t, a, b, setup{client: offer(), server: offer()})
		for i := range 1024 {
			b.recv(uint64(i), i*64, 64)
		}
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for _, x := range [][2]*end{{a, b}, {b, a}} {
			wg.Go(func() {
				from, to := x[0], x[1]
				ws := []rdma.Work{
					{Op: rdma.OpWrite, SGL: from.sge(0, 100000), RemoteSTag: to.mem.STag(), RemoteOffset: 1 << 20},
					{Op: rdma.OpRead, SGL: from.sge(2<<20, 100000), RemoteSTag: to.mem.STag()},
				}
				if from == a {
					ws = append(ws, rdma.Work{
						Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteRead, Memory: a.sge(3<<20, 5000),
					})
				}
				for {
					_, err := from.qp.Post(ws)
					if errors.Is(err, rdma.ErrDisconnected) {
						return
					}
					select {
					case <-stop:
						return
					default:
						runtime.Gosched()
					}
				}
			})
		}
		ending := []*end{a, b}[round%2]
		switch round % 3 {
		case 0:
			ending.qp.Disconnect()
		case 1:
			ending.qp.Abort(nil)
		default:
			ending.qp.Abort(&ddpError{ddp.OpCatastrophicStream})
		}
		<-a.gone
		<-b.gone
		close(stop)
		wg.Wait()
		a.close()
		b.close()
	}
}

// A peer may use the place of a Read as soon as it has the Response, whatever else this end
// does at that moment.
func TestReadsWithoutRest(t *testing.T) {
	a, b := pair(t, setup{reads: 1})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		ws := []rdma.Work{{Op: rdma.OpWrite, SGL: b.sge(0, 100), RemoteSTag: a.mem.STag(), RemoteOffset: 1 << 20}}
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = b.qp.Post(ws)
				runtime.Gosched()
			}
		}
	})
	ws := make([]rdma.Work, 100)
	for i := range ws {
		ws[i] = rdma.Work{ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(0, 100), RemoteSTag: b.mem.STag()}
	}
	for range 3 {
		a.post(ws...)
		for i := range ws {
			a.want(rdma.OpRead, uint64(i))
		}
	}
}
