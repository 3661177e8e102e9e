package iwarp

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// In the input of FuzzReceive these values stand for STags that the peer knows.
const (
	regionMark = 0xf1f1f1f1
	advertMark = 0xf2f2f2f2
)

// fuzzModes are the connections that are fuzzed.
var fuzzModes = []struct {
	host  ddp.Host
	flags ddp.OneShotFlags
	crc   bool
}{
	{ddp.Host2, 0, true},
	{ddp.Host2, 0, false},
	{ddp.Host1, 0, true},
	{ddp.Host2, ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose, true},
	{ddp.Host1, ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose, true},
	{ddp.Host1, ddp.OfferOpcodes | ddp.OfferValidated | ddp.OfferAdvertise | ddp.OfferClose, true},
	{ddp.Host2, ddp.OfferOpcodes | ddp.OfferValidated | ddp.OfferAdvertise, true},
	{ddp.Host1, ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise, true},
}

// FuzzReceive sends ULPDUs to a queue pair. Each is two octets of length and as many octets; the
// test adds length field, pad and CRC. For any input nothing leaks, and the peer reaches no memory
// to which it has no access.
func FuzzReceive(f *testing.F) {
	for mode := range fuzzModes {
		for _, b := range fuzzSeeds(mode) {
			f.Add(uint8(mode), uint16(0), b)
		}
	}
	f.Fuzz(func(t *testing.T, mode uint8, cut uint16, input []byte) {
		m := fuzzModes[int(mode)%len(fuzzModes)]
		e := newEndOn(t, fuzzDevice(t), setup{depth: 4})
		secret, err := e.dom.Register(bytes.Repeat([]byte("secret, "), 512), rdma.AccessLocalWrite)
		check(t, err)
		ours, theirs := socketPair(t)
		q := e.qp.(*queuePair)
		check(t, q.claim())
		a := agreed{crc: m.crc, ird: 4, ord: 4, initiator: m.host == ddp.Host1}
		if m.flags != 0 {
			a.shot = &ddp.OneShot{Flags: m.flags, Window: 3}
		}
		for i := range 4 {
			e.recv(uint64(i), i*4096, 100<<i)
		}
		check(t, q.start(ours, &a))
		advert := fuzzWork(e, m.host, m.flags)

		out := make(chan []byte)
		go func() {
			b, _ := io.ReadAll(theirs)
			out <- b
		}()
		wire := fuzzWire(input, uint32(e.mem.STag()), uint32(advert))
		if k := int(cut); k < len(wire) {
			_, _ = theirs.Write(wire[:k])
			wire = wire[k:]
		}
		_, _ = theirs.Write(wire)
		_ = theirs.(*net.UnixConn).CloseWrite()
		<-e.gone
		if b := <-out; bytes.Contains(b, []byte("secret")) {
			t.Error("memory without remote access was read")
		}
		if !bytes.Equal(secret.Bytes(), bytes.Repeat([]byte("secret, "), 512)) {
			t.Error("memory without remote access was written")
		}
		check(t, secret.Deregister())
		e.close()
		theirs.Close()
		if n := e.dev.(*Device).memory.Table; n.State(stag.STag(e.mem.STag())) != stag.Free {
			t.Error("a region stays")
		}
	})
}

func fuzzDevice(t testing.TB) rdma.Device {
	dev, err := Open(Config{LingerTime: 5 * time.Second, MaxULPDU: 512, STags: 1024})
	check(t, err)
	return dev
}

// fuzzWork posts what the peer may answer: Reads, and an STag that it may close.
func fuzzWork(e *end, h ddp.Host, flags ddp.OneShotFlags) rdma.STag {
	var ws []rdma.Work
	if h == ddp.Host1 && flags&ddp.OfferAdvertise != 0 {
		ws = append(ws, rdma.Work{
			Op: rdma.OpSend, Flags: rdma.Advertise, SGL: e.sge(0, 48),
			Access: rdma.AccessRemoteRead | rdma.AccessRemoteWrite, Memory: append(e.sge(1<<20, 100), e.sge(2<<20, 3000)...),
		})
	}
	for i := range 2 {
		ws = append(ws, rdma.Work{
			ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: append(e.sge(3<<20, 16), e.sge(4<<20, 16)...), RemoteSTag: 77,
		})
	}
	if _, err := e.qp.Post(ws); err != nil {
		e.t.Fatal(err)
	}
	return ws[0].STag
}

// fuzzWire makes FPDUs of the input.
func fuzzWire(input []byte, region, advert uint32) (wire []byte) {
	input = bytes.Clone(input)
	for _, m := range [...][2]uint32{{regionMark, region}, {advertMark, advert}} {
		old := binary.BigEndian.AppendUint32(nil, m[0])
		input = bytes.ReplaceAll(input, old, binary.BigEndian.AppendUint32(nil, m[1]))
	}
	for len(input) >= 2 {
		n := min(int(input[0])<<8|int(input[1]), len(input)-2)
		start := len(wire)
		wire = binary.BigEndian.AppendUint16(wire, uint16(n))
		wire = append(wire, input[2:2+n]...)
		wire = ddp.AppendFPDUTrailer(wire, start)
		input = input[2+n:]
	}
	return append(wire, input...)
}

// fuzzSeeds returns messages of a correct peer. ULPDUs begin with their length, as the input
// does.
func fuzzSeeds(mode int) (seeds [][]byte) {
	m := fuzzModes[mode]
	var peer ddp.Format
	if m.flags != 0 {
		peer = ddp.OneShot{Flags: m.flags, Window: 3}.Format(ddp.Host1 + ddp.Host2 - m.host)
	}
	send := func(k ddp.Message, s uint32, msn uint32, n int) []byte {
		b := peer.AppendUntagged(nil, ddp.Untagged{Control: peer.Control(k, true), STag: s, MSN: msn, Payload: n})
		return append(b, make([]byte, n)...)
	}
	tagged := func(k ddp.Message, s uint32, to uint64, n int, last bool) []byte {
		b := ddp.AppendTagged(nil, ddp.Tagged{Control: peer.Control(k, last), STag: s, TO: to, Payload: n})
		return append(b, make([]byte, n)...)
	}
	read := func(msn, s uint32, n uint32) []byte {
		return ddp.AppendReadRequest(nil, msn, ddp.RDMARead{SinkSTag: 5, SinkTO: 6, Size: n, SrcSTag: s})
	}
	seeds = append(seeds,
		append(send(ddp.Send, 0, 1, 48), send(ddp.SendSE, 0, 2, 0)...),
		append(tagged(ddp.Write, regionMark, 9, 64, false), tagged(ddp.Write, regionMark, 73, 5000, true)...),
		append(read(1, regionMark, 70000), read(2, regionMark, 0)...),
		append(tagged(ddp.ReadResponse, regionMark, 3<<20, 10, false), tagged(ddp.ReadResponse, regionMark, 3<<20+10, 22, true)...),
		send(ddp.SendInvalidate, regionMark, 1, 4),
		ddp.AppendTerminate(nil, &ddp.TerminateMessage{Cause: ddp.ProtBounds}),
	)
	switch {
	case m.flags == 0:
	case m.host == ddp.Host2:
		seeds = append(seeds, append(send(ddp.SendAdvertise, 0x500, 1, 48), send(ddp.SendAdvertise, 0x600, 2, 48)...))
	case m.flags&ddp.OfferClose != 0:
		seeds = append(seeds, append(read(1, advertMark, 3100), send(ddp.SendClose, advertMark, 1, 48)...))
	default:
		seeds = append(seeds, append(tagged(ddp.Write, advertMark, 0, 3100, true), send(ddp.SendInvalidate, advertMark, 1, 48)...))
	}
	return seeds
}

// socketPair returns two ends of a stream that takes no TCP ports.
func socketPair(t testing.TB) (socket, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c[i], err = net.FileConn(f)
		check(t, err)
		f.Close()
	}
	return c[0].(*net.UnixConn), c[1]
}
