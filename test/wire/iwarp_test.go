package wire

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// TestIWARP has two queue pairs exchange every message of standard RDMAP that the provider
// sends, and compares what tshark reads with what was posted, header field by header field.
func TestIWARP(t *testing.T) {
	const ethernet = 1442
	for name, c := range map[string]struct {
		device iwarp.Config
		mulpdu int
	}{
		"enhanced MPA":    {iwarp.Config{}, 1 << 16},
		"MPA revision 1":  {iwarp.Config{PlainMPA: true}, 1 << 16},
		"client server":   {iwarp.Config{ClientServer: true}, 1 << 16},
		"without CRC":     {iwarp.Config{NoCRC: true}, 1 << 16},
		"Ethernet frames": {iwarp.Config{MaxULPDU: ethernet}, ethernet},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newEnd(t, c.device), newEnd(t, c.device)
			l, err := server.device.Listen("127.0.0.1:0")
			check(t, err)
			defer l.Close()
			_, port, err := net.SplitHostPort(l.Addr().String())
			check(t, err)
			capture, err := startCapture(t.Context(), port)
			check(t, err)
			toServer, toClient := exchange(t, client, server, l, &c.device, c.mulpdu)
			pcapng, err := capture.stop(t.Context())
			check(t, err)
			judgeIWARP(t, pcapng, port, toServer, toClient)
			if t.Failed() {
				keep(t, pcapng)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// values are what tshark is to say of a frame: numbers by the name of the field.
type values map[string]uint64

// exchange connects the two, goes through the messages and returns what each of them sends.
func exchange(t *testing.T, client, server *end, l rdma.Listener, c *iwarp.Config, mulpdu int) (toServer, toClient []values) {
	client.connect(server, l)
	startup := values{"iwarp_mpa.marker_flag": 0, "iwarp_mpa.crc_flag": flag(!c.NoCRC), "iwarp_mpa.rej_flag": 0, "iwarp_mpa.rev": 2, "iwarp_mpa.res": 0x10, "iwarp_mpa.pdlength": 8}
	if c.PlainMPA {
		maps.Copy(startup, values{"iwarp_mpa.rev": 1, "iwarp_mpa.res": 0, "iwarp_mpa.pdlength": 4})
	}
	toServer, toClient = []values{startup}, []values{startup}
	if !c.PlainMPA && !c.ClientServer {
		toServer = append(toServer, tagged(opWrite, 0, 0, 0, mulpdu)...) // ready to receive
	}

	theirs, base := uint64(server.region.STag()), server.region.Base()
	source := rdma.Work{Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(512, 2000), RemoteSTag: server.region.STag(), RemoteOffset: base + 4096}
	client.post(
		rdma.Work{Op: rdma.OpSend, SGL: client.sge(0, 77)},
		rdma.Work{Op: rdma.OpSend},
		rdma.Work{Op: rdma.OpSend, Flags: rdma.Solicited, SGL: client.sge(0, 8)},
		rdma.Work{Op: rdma.OpWrite, SGL: client.sge(1, 3001), RemoteSTag: server.region.STag(), RemoteOffset: base + 4096},
		rdma.Work{Op: rdma.OpSend, SGL: client.sge(0, 3000)},
		source,
	)
	client.wait(rdma.OpRead)
	sink := values{"iwarp_rdma.sinkto": client.region.Base() + 512, "iwarp_rdma.rdmardsz": 2000, "iwarp_rdma.srcstag": theirs, "iwarp_rdma.srcto": base + 4096}
	toServer = slices.Concat(toServer,
		untagged(opSend, 0, 1, 77, mulpdu), untagged(opSend, 0, 2, 0, mulpdu), untagged(opSendSE, 0, 3, 8, mulpdu),
		tagged(opWrite, theirs, base+4096, 3001, mulpdu), untagged(opSend, 0, 4, 3000, mulpdu),
		with(untagged(opReadRequest, 1, 1, 28, mulpdu), sink))
	toClient = append(toClient, tagged(opReadResponse, anything, client.region.Base()+512, 2000, mulpdu)...)

	window, err := client.domain.NewWindow()
	check(t, err)
	defer func() { check(t, window.Free()) }()
	client.post(rdma.Work{Op: rdma.OpBind, Flags: rdma.Signaled, Window: window, SGL: client.sge(0, 64), Access: rdma.AccessRemoteRead | rdma.AccessRemoteInvalidate})
	client.wait(rdma.OpBind)
	server.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Invalidate, STag: window.STag(), SGL: server.sge(0, 100)})
	client.wait(rdma.OpReceive)
	toClient = append(toClient, with(untagged(opSendInvalidate, 0, 1, 100, mulpdu), values{"iwarp_rdma.inval_stag": uint64(window.STag())})...)

	// An STag that nobody has given: remote protection error, invalid STag, with the headers
	// of DDP and RDMAP that it was in.
	const forged = 0x12345678
	source.RemoteSTag = forged
	client.post(source)
	client.ended()
	server.ended()
	sink = maps.Clone(sink)
	sink["iwarp_rdma.srcstag"] = forged
	toServer = append(toServer, with(untagged(opReadRequest, 1, 2, 28, mulpdu), sink)...)
	return toServer, append(toClient, with(untagged(opTerminate, 2, 1, 52, mulpdu), values{
		"iwarp_rdma.term_layer": 0, "iwarp_rdma.term_etype_rdma": 1, "iwarp_rdma.term_errcode_rdma": 0,
		"iwarp_rdma.term_hdrct_m": 1, "iwarp_rdma.hdrct_d": 1, "iwarp_rdma.hdrct_r": 1,
	})...)
}

// anything stands for an STag that is not known beforehand.
const anything = 1 << 40

// tagged lists the segments of a message of n octets to a tagged buffer.
func tagged(opcode, stag, to uint64, n, mulpdu int) []values {
	return segments(opcode, n, mulpdu, taggedLen, func(at int) values {
		v := values{"iwarp_ddp.tagged_flag": 1, "iwarp_ddp.stag": stag, "iwarp_ddp.tagged_offset": to + uint64(at)}
		if stag == anything {
			delete(v, "iwarp_ddp.stag")
		}
		return v
	})
}

// untagged lists the segments of a message of n octets to a queue.
func untagged(opcode, queue, msn uint64, n, mulpdu int) []values {
	return segments(opcode, n, mulpdu, untaggedLen, func(at int) values {
		return values{"iwarp_ddp.tagged_flag": 0, "iwarp_ddp.qn": queue, "iwarp_ddp.msn": msn, "iwarp_ddp.mo": uint64(at)}
	})
}

func segments(opcode uint64, n, mulpdu, header int, ddp func(at int) values) (list []values) {
	for at := 0; at < n || at == 0; at += mulpdu - header {
		size := min(n-at, mulpdu-header)
		list = append(list, with([]values{ddp(at)}, values{
			"iwarp_rdma.opcode": opcode, "iwarp_rdma.version": 1, "iwarp_ddp.dv": 1, "iwarp_ddp.rsvd": 0, "iwarp_rdma.rsv": 0,
			"iwarp_ddp.last_flag": flag(at+size == n), "iwarp_mpa.ulpdulength": uint64(header + size),
		})...)
	}
	return list
}

// with adds values to each of a list.
func with(list []values, more values) []values {
	for _, v := range list {
		maps.Copy(v, more)
	}
	return list
}

// judgeIWARP compares a capture with what was sent.
func judgeIWARP(t *testing.T, pcapng []byte, port string, toServer, toClient []values) {
	packets, err := decodeIWARP(t.Context(), pcapng)
	check(t, err)
	complain(t, packets)
	var got [2][]fpdu
	for _, f := range fpdus(packets, port) {
		got[flag(f.fromTarget)] = append(got[flag(f.fromTarget)], f)
	}
	for i, want := range [2][]values{toServer, toClient} {
		who := [2]string{"client", "server"}[i]
		if len(got[i]) != len(want) {
			t.Errorf("the %s has sent %d frames, want %d", who, len(got[i]), len(want))
			continue
		}
		for n, f := range got[i] {
			for name, value := range want[n] {
				if v, ok := number(f.fields, name); !ok || v != value {
					t.Errorf("%s, MPA frame %d (packet %s): %s is %#x (%v), want %#x", who, n, f.frame, name, v, ok, value)
				}
			}
		}
	}
}

// end is one of two devices that are connected.
type end struct {
	t      *testing.T
	device rdma.Device
	domain rdma.Domain
	region rdma.Region
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	wake   chan struct{}
	gone   chan error
}

func newEnd(t *testing.T, c iwarp.Config) *end {
	t.Helper()
	const depth, receives, receiveLen = 16, 8, 4 << 10
	e := &end{t: t, wake: make(chan struct{}, 1), gone: make(chan error, 1)}
	var err error
	e.device, err = iwarp.Open(c)
	check(t, err)
	e.domain, err = e.device.NewDomain()
	check(t, err)
	b := make([]byte, 64<<10)
	e.region, err = e.domain.Register(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(t, err)
	e.cq, err = e.device.NewCompletionQueue(2*depth, func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	e.qp, err = e.device.NewQueuePair(rdma.QueuePairConfig{
		Domain: e.domain, SendCQ: e.cq, RecvCQ: e.cq, MaxWork: depth, MaxRecv: depth,
		Disconnected: func(err error) { e.gone <- err },
	})
	check(t, err)
	for i := range receives {
		_, err = e.qp.PostReceive([]rdma.Receive{{SGL: e.sge(len(b)-(i+1)*receiveLen, receiveLen)}})
		check(t, err)
	}
	t.Cleanup(func() {
		for _, err := range []error{e.qp.Close(), e.cq.Close(), e.region.Deregister(), e.domain.Close(), e.device.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return e
}

func (e *end) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: e.region.Bytes()[off:][:n], Region: e.region}}
}

// connect connects e to server, which l is of. Both send four octets of private data.
func (e *end) connect(server *end, l rdma.Listener) {
	e.t.Helper()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept()
		if err == nil {
			err = req.Accept(server.qp, rdma.ConnParams{PrivateData: make([]byte, 4)})
		}
		accepted <- err
	}()
	check(e.t, e.device.Connect(e.t.Context(), e.qp, l.Addr().String(), rdma.ConnParams{PrivateData: make([]byte, 4)}))
	check(e.t, <-accepted)
}

func (e *end) post(ws ...rdma.Work) {
	e.t.Helper()
	_, err := e.qp.Post(ws)
	check(e.t, err)
}

// wait waits for the next completion, which has to be a good one of op.
func (e *end) wait(op rdma.Opcode) {
	e.t.Helper()
	var c [1]rdma.Completion
	for e.cq.Poll(c[:]) == 0 {
		if e.cq.Arm() {
			<-e.wake
		}
	}
	if c[0].Op != op || c[0].Status != rdma.StatusOK {
		e.t.Fatalf("%v: %v (%v), want %v", c[0].Op, c[0].Status, c[0].Err, op)
	}
}

// ended waits for the end of the connection, which is to have a reason.
func (e *end) ended() {
	e.t.Helper()
	if err := <-e.gone; err == nil {
		e.t.Fatal(fmt.Errorf("the connection has ended in good order"))
	}
}
