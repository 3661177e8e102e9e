//go:build verbs && guest

package iser

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"oneshot/internal/rounds"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
)

// These tests are a peer that misbehaves over a device of the kernel. test/vm builds them with the tag
// guest, and runs them in a virtual machine, where the daemon is.
const (
	envDevice = "ONESHOT_RDMA_DEVICE"
	envPortal = "ONESHOT_RDMA_PORTAL"
	// envConnections is how many connections TestCrowd opens.
	envConnections = "ONESHOT_RDMA_CONNECTIONS"
)

// reach connects to the daemon, with private data.
func reach(t *testing.T, private []byte) *client {
	t.Helper()
	device, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice)})
	check(t, err)
	return dial(t, device, os.Getenv(envPortal), rdma.ConnParams{PrivateData: private})
}

var ordinary = []byte{noZBVA | noInvalidate, 0, 0, 0}

// post sends octets as they are.
func (c *client) post(b []byte) error {
	n := copy(c.buf, b)
	_, err := c.qp.Post([]rdma.Work{{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: c.buf[:n], Region: c.region}}}})
	return err
}

// ended waits for the end of the connection.
func (c *client) ended() {
	for {
		if _, ok := c.receive(); !ok {
			return
		}
	}
}

// framed puts an iSER header that names no buffer in front of a PDU.
func framed(b []byte) []byte { return append(appendHeader(nil), b...) }

// TestGuestFirstMessage: whatever the first message is, the connection ends.
func TestGuestFirstMessage(t *testing.T) {
	login := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, ITT: 1, DataSegmentLength: 512,
	}
	command := pdu.SCSICommandFields{Final: true, ITT: 1, CDB: make([]byte, 6)}
	for _, c := range []struct {
		name    string
		message []byte
	}{
		{"garbage", bytes.Repeat([]byte{0xa5}, 300)},
		{"garbage behind a header", framed(bytes.Repeat([]byte{0xff}, 300))},
		{"half a header", framed(nil)[:14]},
		{"a header alone", framed(nil)},
		{"a login request cut short", framed(login.AppendTo(nil)[:20])},
		{"a login request without its text", framed(login.AppendTo(nil))},
		{"a Hello", append([]byte{opHello << 4}, make([]byte, headerLen-1)...)},
		{"a command", framed(command.AppendTo(nil))},
		{"longer than any receive", make([]byte, slotLen+1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer := reach(t, ordinary)
			check(t, peer.post(c.message))
			peer.ended()
		})
	}
	t.Run("none", func(t *testing.T) { reach(t, ordinary).ended() })
}

// TestGuestPrivateData: private data that is no header of iSER's disturbs nobody.
func TestGuestPrivateData(t *testing.T) {
	for name, private := range map[string][]byte{"none": nil, "an octet": {0xff}, "all ones": bytes.Repeat([]byte{0xff}, 56)} {
		t.Run(name, func(t *testing.T) {
			c := reach(t, private)
			c.isid = 7
			c.logIn("")
			c.do(make([]byte, 6), false, false, 0, 0)
		})
	}
}

// buffers sends a READ or a WRITE whose iSER header says with flag, or without, that its buffer is stag at offset.
func (c *client) buffers(read bool, flag byte, stag rdma.STag, offset uint64) {
	h := appendHeader(nil)
	at, op := 4, byte(0x8a)
	if read {
		at, op = 16, 0x88
	}
	h[0] |= flag
	binary.BigEndian.PutUint32(h[at:], uint32(stag))
	binary.BigEndian.PutUint64(h[at+4:], offset)
	f := pdu.SCSICommandFields{
		Final: true, Write: !read, Read: read, ITT: 50, CmdSN: c.cmdSN, CDB: rw16(op, 0, 8), EDTL: 4096,
	}
	check(c.t, c.post(f.AppendTo(h)))
}

// TestGuestBuffers: commands whose buffers are not what their headers say.
func TestGuestBuffers(t *testing.T) {
	const unknown = rdma.STag(0x7ead5e00)
	for name, offend := range map[string]func(*client){
		"written to with an unknown STag":  func(c *client) { c.buffers(true, flagRSV, unknown, 0) },
		"read from with an unknown STag":   func(c *client) { c.buffers(false, flagWSV, unknown, 0) },
		"written to beyond the buffer":     func(c *client) { c.buffers(true, flagRSV, c.region.STag(), c.region.Base()+1<<40) },
		"read from before the buffer":      func(c *client) { c.buffers(false, flagWSV, c.region.STag(), c.region.Base()-4096) },
		"written to without a valid STag":  func(c *client) { c.buffers(true, 0, 0, 0) },
		"written to with STag 0, as valid": func(c *client) { c.buffers(true, flagRSV, 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			c := reach(t, ordinary)
			c.isid = 8
			c.logIn("")
			c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
			offend(c)
			c.ended()
		})
	}
}

// TestGuestTooMuch: more PDUs than the target has promised to take, or the peer takes answers for.
func TestGuestTooMuch(t *testing.T) {
	flood := func(c *client, n int, bhs func(i int) []byte) {
		for i := range n {
			if c.post(framed(bhs(i))) != nil {
				return // it has ended
			}
			for {
				done := c.completion()
				if done.Status != rdma.StatusOK {
					return
				}
				if done.Op == rdma.OpSend {
					break
				}
			}
		}
	}
	t.Run("commands beyond the window", func(t *testing.T) {
		c := reach(t, ordinary)
		c.isid = 9
		c.logIn("")
		flood(c, 400, func(i int) []byte {
			f := pdu.SCSICommandFields{Final: true, ITT: uint32(i), CmdSN: c.cmdSN.Add(uint32(i)), CDB: make([]byte, 6)}
			return f.AppendTo(nil)
		})
	})
	t.Run("questions whose answers nobody takes", func(t *testing.T) {
		c := reach(t, ordinary)
		c.isid = 10
		c.logIn("")
		c.deaf = true
		flood(c, 2*maxControls, func(i int) []byte {
			f := pdu.NOPOutFields{Immediate: true, ITT: uint32(i), TTT: pdu.ReservedTag, CmdSN: c.cmdSN}
			return f.AppendTo(nil)
		})
		<-c.over // nothing is posted that could tell
	})
}

// TestGuestSinks is TestSinksOfReads over a device of the kernel, whose Reads are served as those of an iWARP card have
// to be; and a peer that invalidates memory of another connection ends its own.
func TestGuestSinks(t *testing.T) {
	open := func() rdma.Device {
		d, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		check(t, err)
		return d
	}
	host, _, err := net.SplitHostPort(os.Getenv(envPortal))
	check(t, err)
	device := &strict{Device: open()}
	b := newBenchOn(t, 64<<20, device, net.JoinHostPort(host, "0"))
	reach := func() *client {
		c := dial(t, open(), b.l.Addr().String(), rdma.ConnParams{PrivateData: ordinary})
		if c.window != nil { // answers do not invalidate it
			check(t, c.window.Free())
			c.window = nil
		}
		c.nudge = c.keepAwake
		return c
	}
	sinksOfReads(t, device, reach(), reach())

	writer, other := reach(), reach()
	writer.isid, other.isid = 2, 3
	for _, c := range []*client{writer, other} {
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0)
	}
	var done bool
	device.mu.Lock()
	device.opened = func(_ *strictDomain, r rdma.Region) {
		if done {
			return
		}
		done = true
		ping := pdu.NOPOutFields{Immediate: true, ITT: 77, TTT: pdu.ReservedTag, CmdSN: other.cmdSN}
		n := copy(other.buf, ping.AppendTo(appendHeader(nil)))
		_, err := other.qp.Post([]rdma.Work{{
			Op: rdma.OpSend, Flags: rdma.Invalidate, STag: r.STag(), SGL: []rdma.SGE{{Bytes: other.buf[:n], Region: other.region}},
		}})
		check(t, err)
		other.receive() // an answer, or the end
	}
	device.mu.Unlock()
	if r := writer.do(rw16(0x8a, 0, 8), true, false, 4096, 0); r.Status() != 0 || !done {
		t.Errorf("a WRITE whose sink another peer has invalidated: status %#x; attacked: %v", r.Status(), done)
	}
}

// keepAwake has a peer read, until stop is called: siw leaves what comes within milliseconds of its MPA Reply unread until
// more comes, here Writes of nothing.
func (c *client) keepAwake() (stop func()) {
	in, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		wake := time.NewTicker(50 * time.Millisecond)
		defer wake.Stop()
		for {
			select {
			case <-in:
				return
			case <-wake.C:
				_, _ = c.qp.Post([]rdma.Work{{Op: rdma.OpWrite, Flags: rdma.Signaled}})
			}
		}
	}()
	return func() {
		close(in)
		<-over
	}
}

// relay carries the TCP connection of an initiator to the target, until the test cuts it.
type relay struct {
	l                 *net.TCPListener
	target            net.Addr
	initiator, toward *net.TCPConn // the two connections; valid when up is closed without an error
	up                chan struct{}
	err               error
}

// startRelay begins to listen for one connection, on the host of target.
func startRelay(t *testing.T, target net.Addr) *relay {
	t.Helper()
	host, _, err := net.SplitHostPort(target.String())
	check(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	check(t, err)
	r := &relay{l: l.(*net.TCPListener), target: target, up: make(chan struct{})}
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.run()
	}()
	t.Cleanup(func() {
		_ = r.l.Close()
		<-r.up
		r.cut(true)
		<-over
	})
	return r
}

func (r *relay) run() {
	r.initiator, r.err = r.l.AcceptTCP()
	if r.err == nil {
		// The ports of the host's own address are left to siw.
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		to, _ := net.ResolveTCPAddr("tcp", r.target.String())
		r.toward, r.err = net.DialTCP("tcp", from, to)
	}
	close(r.up)
	if r.err != nil {
		return
	}
	var both sync.WaitGroup
	pass := func(to, from *net.TCPConn) {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.CloseWrite()
			_, _ = io.Copy(io.Discard, from) // behind a cut
		})
	}
	pass(r.initiator, r.toward)
	pass(r.toward, r.initiator)
	both.Wait()
	_ = r.initiator.Close()
	_ = r.toward.Close()
}

// cut resets both connections, or has the stream to the target end in the middle of what is passed on.
func (r *relay) cut(reset bool) {
	<-r.up
	if r.err != nil {
		return
	}
	if !reset {
		_ = r.toward.CloseWrite()
		return
	}
	for _, c := range []*net.TCPConn{r.toward, r.initiator} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// TestGuestKilledWrites: connections end while their WRITEs are fetched, by either end, or, where RDMA goes over TCP,
// because the TCP connection is reset or half-closed under it; and another session writes as well. Each block then holds what some WRITE has written to it, and never what I/O memory held before.
func TestGuestKilledWrites(t *testing.T) {
	const (
		blocks = 1024
		half   = blocks / 2 // that the connections which are killed write to; the rest is the other session's
	)
	turns := uint64(rounds.Of(36, 12))
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	target, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice), Logger: log})
	check(t, err)
	host, _, err := net.SplitHostPort(os.Getenv(envPortal))
	check(t, err)
	b := newBenchOn(t, 64<<20, target, net.JoinHostPort(host, "0"))
	device, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice), Logger: log})
	check(t, err)
	t.Cleanup(func() { _ = device.Close() })
	reach := func(isid byte, address net.Addr) *client {
		c := dial(t, keptDevice{device}, address.String(), rdma.ConnParams{PrivateData: ordinary})
		if c.window != nil {
			check(t, c.window.Free())
			c.window = nil
		}
		c.isid, c.nudge = isid, c.keepAwake
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0)
		return c
	}
	write := func(c *client, from int, n uint64, worker uint64) {
		for i := range half {
			stamped(c.buf[i*blockSize:][:blockSize], worker, n, int64(from+i))
		}
	}
	victims := func() (all []iscsi.SessionInfo) {
		for _, s := range b.node.Sessions() {
			if s.ISID[5] == 21 {
				all = append(all, s)
			}
		}
		return all
	}
	ways := uint64(4)
	if device.Limits().UnguardedInvalidate { // siw
		ways = 6
	}
	other := reach(20, b.l.Addr())
	checkAll := func() {
		other.do(rw16(0x88, 0, blocks), false, true, blocks*blockSize, 0)
		for i := range blocks {
			got := other.buf[i*blockSize:][:blockSize]
			worker, n := binary.NativeEndian.Uint64(got), binary.NativeEndian.Uint64(got[8:])
			if worker == 0 && n == 0 && bytes.Equal(got, make([]byte, blockSize)) {
				continue // it was never written
			}
			want := make([]byte, blockSize)
			stamped(want, worker, n, int64(i))
			if !bytes.Equal(got, want) || (worker == 1) != (i < half) || n > turns {
				t.Fatalf("block %d holds % x", i, got[:64])
			}
		}
	}
	for round := range turns {
		address, way := b.l.Addr(), round%ways
		var wire *relay
		if way >= 4 {
			wire = startRelay(t, address)
			address = wire.l.Addr()
		}
		c := reach(21, address) // when the commands of the session before have ended
		checkAll()
		write(c, 0, round, 1)
		c.offending = true
		const pieces = outs
		for i := range pieces {
			n := half / pieces * blockSize
			c.start(rw16(0x8a, uint64(i*half/pieces), half/pieces), true, false, i*n, n, 0)
		}
		for range round / ways % pieces { // some are done before
			c.receive()
		}
		switch way {
		case 0:
			c.qp.Abort(nil)
		case 1:
			c.qp.Disconnect()
		case 2:
			check(t, c.qp.Close())
		case 3: // the target ends it
			for _, s := range victims() {
				b.node.DropSession(s.TSIH, "a test ends it")
			}
		default:
			wire.cut(way == 4)
			wait(func() bool { return len(victims()) == 0 }) // the target notices, whatever the initiator does
		}
		write(other, half, round, 2)
		if r := other.do(rw16(0x8a, half, half), true, false, half*blockSize, 0); r.Status() != 0 {
			t.Fatalf("WRITE of the other session: status %#x", r.Status())
		}
		check(t, c.qp.Close())
		<-c.over
	}
}

// TestGuestHalfOpen: connections that come half-way: half of an MPA request and silence, a whole one and the end of the TCP
// connection, and requests that the initiator gives up at any time. Meanwhile and afterwards others log in, and the target
// keeps nothing of them. Over siw, where it is run by hand, the device stops listening several times, and listens again.
func TestGuestHalfOpen(t *testing.T) {
	const many = 200
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	open := func() rdma.Device {
		d, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice), Logger: log})
		check(t, err)
		return d
	}
	host, _, err := net.SplitHostPort(os.Getenv(envPortal))
	check(t, err)
	b := newBenchOn(t, 64<<20, open(), net.JoinHostPort(host, "0"))
	device := open()
	t.Cleanup(func() { _ = device.Close() })
	logsIn := func(isid byte) *client {
		c := dial(t, keptDevice{device}, b.l.Addr().String(), rdma.ConnParams{PrivateData: ordinary})
		c.isid, c.nudge = isid, c.keepAwake
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0)
		return c
	}
	tcp := func(octets string) (net.Conn, bool) {
		c, err := net.Dial("tcp", b.l.Addr().String())
		if err != nil {
			return nil, false // siw has refused it: a listener keeps so many only
		}
		_, _ = io.WriteString(c, octets)
		return c, true
	}
	first := logsIn(40)
	domain, err := device.NewDomain()
	check(t, err)
	cq, err := device.NewCompletionQueue(64, nil)
	check(t, err)
	connects := func(limit time.Duration) bool {
		qp, err := device.NewQueuePair(rdma.QueuePairConfig{Domain: domain, SendCQ: cq, RecvCQ: cq, MaxWork: 2, MaxRecv: 2})
		check(t, err)
		defer func() { check(t, qp.Close()) }()
		ctx, stop := context.WithTimeout(t.Context(), limit)
		defer stop()
		return device.Connect(ctx, qp, b.l.Addr().String(), rdma.ConnParams{PrivateData: ordinary}) == nil
	}
	if device.Limits().UnguardedInvalidate { // siw, whose listeners are TCP's
		const request = "MPA ID Req Frame\x00\x01\x00\x04" // RFC 5044 §7.1.1
		var silent []net.Conn
		for range many / 2 {
			if c, ok := tcp(request[:10]); ok {
				silent = append(silent, c)
			}
		}
		logsIn(41)
		for _, c := range silent {
			_ = c.Close()
		}
		refused := 0
		for range 5 {
			for i := range many {
				c, ok := tcp(request + string(ordinary))
				if !ok {
					refused++
					break
				}
				if i%2 == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
			}
			wait(func() bool { // the device looks once a second
				time.Sleep(20 * time.Millisecond)
				return connects(10 * time.Second)
			})
		}
		t.Logf("%d connections were silent; siw has stopped listening %d times", len(silent), refused)
	}
	made := 0
	for i := range many {
		if connects(time.Duration(i) * 100 * time.Microsecond) {
			made++
		}
	}
	t.Logf("of %d requests %d were not given up", many, made)
	last := logsIn(42)
	for _, c := range []*client{first, last} {
		if r := c.do(rw16(0x8a, 0, 8), true, false, 4096, 0); r.Status() != 0 {
			t.Errorf("status of a WRITE %#x", r.Status())
		}
		check(t, c.qp.Close())
	}
	for _, s := range b.node.Sessions() {
		b.node.DropSession(s.TSIH, "the test is over")
	}
	wait(func() bool { return b.node.Connections() == 0 })
	check(t, cq.Close())
	check(t, domain.Close())
}

// TestCrowd opens connections that never log in, which the target may end to make room. Afterwards others log
// in.
func TestCrowd(t *testing.T) {
	many, err := strconv.Atoi(os.Getenv(envConnections))
	check(t, err)
	device, err := verbs.Open(verbs.Config{Name: os.Getenv(envDevice)})
	check(t, err)
	domain, err := device.NewDomain()
	check(t, err)
	cq, err := device.NewCompletionQueue(8*many, nil)
	check(t, err)
	peers := make([]rdma.QueuePair, many)
	refused := 0
	for i := range peers {
		peers[i], err = device.NewQueuePair(rdma.QueuePairConfig{Domain: domain, SendCQ: cq, RecvCQ: cq, MaxWork: 2, MaxRecv: 2})
		check(t, err)
		if err := device.Connect(t.Context(), peers[i], os.Getenv(envPortal), rdma.ConnParams{PrivateData: ordinary}); err != nil {
			refused++
			t.Log(err)
		}
	}
	t.Logf("%d connections, %d refused", many, refused)
	for port := range byte(3) {
		c := reach(t, ordinary)
		c.isid, c.nudge = 30+port, c.keepAwake
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0)
	}
	for _, p := range peers {
		p.Abort(nil)
	}
	for _, p := range peers {
		check(t, p.Close())
	}
	check(t, cq.Close())
	check(t, domain.Close())
	check(t, device.Close())
}
