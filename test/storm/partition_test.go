package storm

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/endpoint"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// TestPartitionPeers attacks a portal for partitions. Meanwhile a session with LUNs goes on, and an honest program
// writes and reads its partition, which lies between those of the attackers; memory is bounded, and what nobody may
// write has not changed in the end.
func TestPartitionPeers(t *testing.T) {
	d := start(t, `
stores:
  a: {type: memory, size: 16MiB}
  b: {type: file, path: $DIR/b.img, size: 16MiB}
  m: {type: memory, size: 32MiB, partitioned: true, partitions: {left: {size: 8MiB, access: {any: rwfad}}, own: {size: 8MiB, access: {"name:owner": rwf}}, right: {size: 8MiB, access: {any: r}}}}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b}}]
portals:
  - {listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, serve: partitions, clients: {owner: "the secret of the owner"}}
management: {socket: $DIR/socket}
limits: {connections: 400, memory: 256MiB, memory_per_connection: 8MiB} # 64 MiB for those that attack at a time
`)
	raiseDescriptors(t, 2000)
	w := d.watch()
	owner := d.owner()
	for _, a := range []struct {
		name  string
		times int
		bound int64 // most memory in MiB that the attack may cost
		f     func(t *testing.T, d *daemon, i int)
	}{
		{"silence", 600, 60, func(_ *testing.T, d *daemon, _ int) { d.silent(nil) }},
		{"a HELLO in half", 600, 60, func(_ *testing.T, d *daemon, _ int) {
			b := unfinished()
			d.silent(b[:len(b)/2])
		}},
		{"malformed messages", 40, 60, malformed},
		{"a proof that was heard", 4, 60, replayed},
		{"more requests than credits", 8, 120, overdrawn},
		{"data that never comes", 8, 120, starving},
		{"STags that are guessed, stale or of others", 40, 60, guessed},
		{"gone in the middle of a Write", 40, 120, vanished},
	} {
		w.Works()
		d.bounded(a.name, a.bound, func() {
			var wg sync.WaitGroup
			for k := range 8 {
				wg.Go(func() {
					for i := k; i < a.times; i += 8 {
						a.f(t, d, i)
					}
				})
			}
			owner.round(t)
			wg.Wait()
			owner.round(t)
			d.owner().round(t) // another honest one comes, and gets in
			if err := owner.fetch(t); err != nil {
				t.Error(err)
			}
			w.Works()
		})
		d.hangUp()
		if t.Failed() {
			return
		}
	}
	right, err := d.program("", "m/right")
	if err != nil {
		t.Fatal(err)
	}
	got, err := right.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < right.Info().Size; off += int64(len(got)) {
		if err := right.ReadAt(t.Context(), got, off); err != nil || !bytes.Equal(got, make([]byte, len(got))) {
			t.Errorf("a partition that nobody may write has other octets at %d: %v", off, err)
		}
	}
	if d.logged("broke the protocol") == 0 || d.logged("does not know its secret") == 0 {
		t.Errorf("the log does not tell of the attacks:\n%s", d.Log())
	}
	if n := d.logged("level=ERROR"); n > 0 {
		t.Errorf("%d errors in the log:\n%s", n, d.Log())
	}
}

// program opens a partition through the second portal.
func (d *daemon) program(who, partition string) (*endpoint.Endpoint, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	e, err := endpoint.Open(ctx, "oneshot+iwarp://"+who+d.Portals[1]+"/"+partition, endpoint.Options{Retry: -1})
	if err == nil {
		d.t.Cleanup(func() { _ = e.Close() })
	}
	return e, err
}

// honest is a program that writes its partition and reads it back.
type honest struct {
	e          *endpoint.Endpoint
	buf, again []byte
	want       []byte
	rounds     int
}

func (d *daemon) owner() *honest {
	d.t.Helper()
	e, err := d.program("owner%the secret of the owner@", "m/own")
	if err != nil {
		d.t.Fatal(err)
	}
	h := &honest{e: e, want: make([]byte, e.Info().Size)}
	if h.buf, err = e.Alloc(256 << 10); err == nil {
		h.again, err = e.Alloc(1 << 20)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if err := h.fetch(d.t); err != nil {
		d.t.Fatal(err)
	}
	return h
}

// fetch takes over what the partition has now.
func (h *honest) fetch(t *testing.T) error {
	for off := 0; off < len(h.want); off += len(h.again) {
		if err := h.e.ReadAt(t.Context(), h.again, int64(off)); err != nil {
			return err
		}
		copy(h.want[off:], h.again)
	}
	return nil
}

// round writes at some places and then reads all of the partition.
func (h *honest) round(t *testing.T) {
	t.Helper()
	for range 8 {
		h.rounds++
		_, _ = rand.Read(h.buf)
		off := int64(h.rounds*len(h.buf)) % int64(len(h.want))
		if err := h.e.WriteAt(t.Context(), h.buf, off); err != nil {
			t.Error("the honest program: ", err)
			return
		}
		copy(h.want[off:], h.buf)
	}
	for off := 0; off < len(h.want); off += len(h.again) {
		if err := h.e.ReadAt(t.Context(), h.again, int64(off)); err != nil || !bytes.Equal(h.again, h.want[off:off+len(h.again)]) {
			t.Errorf("the honest program reads other octets at %d, or %v", off, err)
			return
		}
	}
}

var (
	idleMu sync.Mutex
	idle   []net.Conn // those of silent
)

// silent opens a connection that stays, and says b on it.
func (d *daemon) silent(b []byte) {
	c, err := net.DialTimeout("tcp", d.Portals[1], patience)
	if err != nil {
		d.t.Error(err)
		return
	}
	start := ddp.StartFrame{CRC: true, Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{IRD: 16, ORD: 16}, PrivateData: []byte(wire.Private)}
	if err := begin(c, &start, b); err != nil && !ended(err) {
		d.t.Error(err)
	}
	idleMu.Lock()
	idle = append(idle, c)
	idleMu.Unlock()
}

// hangUp closes the connections of silent.
func (d *daemon) hangUp() {
	for _, c := range idle {
		_ = c.Close()
	}
	idle = nil
}

// enemy is a client that speaks messages.
type enemy struct {
	t    *testing.T
	dev  rdma.Device
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	qp   rdma.QueuePair
	mem  rdma.Region
	wake chan struct{}
	over chan struct{}
	g    wire.Greeting
	info wire.AttachedMessage
	sent int
}

// Memory of an enemy: what comes, what goes, data.
const (
	enemyIn   = 512
	enemyIns  = 70
	enemyOut  = enemyIn * enemyIns
	enemyData = enemyOut + 256*512
	enemyLen  = enemyData + 1<<20
)

// enemy connects; nil: the portal has too many connections.
func (d *daemon) enemy(t *testing.T, addr string) *enemy {
	e := &enemy{t: t, wake: make(chan struct{}, 1), over: make(chan struct{})}
	var err error
	must := func(what error) {
		if what != nil {
			err = what
		}
	}
	e.dev, err = iwarp.Open(iwarp.Config{LingerTime: 100 * time.Millisecond})
	must(err)
	e.dom, err = e.dev.NewDomain()
	must(err)
	e.cq, err = e.dev.NewCompletionQueue(1024, func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	})
	must(err)
	e.mem, err = e.dom.Register(make([]byte, enemyLen), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	must(err)
	e.qp, err = e.dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.cq, RecvCQ: e.cq, MaxWork: 512, MaxRecv: enemyIns, Disconnected: func(error) { close(e.over) },
	})
	must(err)
	for i := range enemyIns {
		_, err := e.qp.PostReceive([]rdma.Receive{{ID: uint64(i), SGL: e.sge(i*enemyIn, enemyIn)}})
		must(err)
	}
	if err == nil {
		err = e.dev.Connect(t.Context(), e.qp, addr, rdma.ConnParams{
			PrivateData: []byte(wire.Private), OneShot: &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: 64},
		})
	}
	if err != nil {
		t.Error("an enemy cannot connect: ", err)
		e.close()
		return nil
	}
	return e
}

func (e *enemy) close() {
	_ = e.qp.Close()
	_ = e.cq.Close()
	_ = e.mem.Deregister()
	_ = e.dev.Close()
}

func (e *enemy) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: e.mem.Bytes()[off : off+n], Region: e.mem}}
}

// send sends a message; what is wrong with the connection shows later.
func (e *enemy) send(b []byte, w rdma.Work) {
	at := enemyOut + e.sent%256*512
	e.sent++
	n := copy(e.mem.Bytes()[at:at+512], b)
	w.Op, w.SGL = rdma.OpSend, e.sge(at, n)
	_, _ = e.qp.Post([]rdma.Work{w})
}

// next returns the next message; nil: the connection has ended.
func (e *enemy) next() []byte {
	var one [1]rdma.Completion
	for gone := false; ; {
		for e.cq.Poll(one[:]) > 0 {
			if x := &one[0]; x.Op == rdma.OpReceive && x.Status == rdma.StatusOK {
				return bytes.Clone(e.mem.Bytes()[int(x.ID)*enemyIn:][:x.Bytes])
			}
		}
		if !e.cq.Arm() {
			continue
		}
		if gone {
			return nil
		}
		select {
		case <-e.wake:
		case <-e.over:
			gone = true
		case <-time.After(patience):
			e.t.Error("the daemon neither answers nor ends the connection")
			return nil
		}
	}
}

// ends waits for the end of the connection.
func (e *enemy) ends(what string) {
	for n := 0; e.next() != nil; n++ {
		if n > 200 {
			e.t.Errorf("%s: the daemon goes on answering", what)
			return
		}
	}
}

func (e *enemy) hello(name string) {
	m := wire.HelloMessage{Version: wire.Version, Name: name}
	_, _ = rand.Read(m.Nonce[:])
	e.send(m.AppendTo(nil), rdma.Work{})
	c, err := wire.ParseChallenge(e.next())
	if err != nil {
		e.t.Error(err)
	}
	e.g = wire.Greeting{Name: name, Client: m.Nonce, Service: c.Nonce}
}

// use is an enemy with the partition m/left, or nil.
func (d *daemon) use(t *testing.T, addr string) *enemy {
	e := d.enemy(t, addr)
	if e == nil {
		return nil
	}
	e.hello("")
	m := wire.AttachMessage{Partition: "m/left", Order: uint16(rdma.FreeStart | rdma.FreeFinish)}
	e.send(m.AppendTo(nil), rdma.Work{})
	var err error
	if e.info, err = wire.ParseAttached(e.next()); err != nil || e.info.Status != wire.OK || e.info.STag == 0 {
		t.Errorf("%+v, %v", e.info, err)
	}
	return e
}

func malformed(t *testing.T, d *daemon, i int) {
	e := d.use(t, d.Portals[1])
	if e == nil {
		return
	}
	defer e.close()
	good := (&wire.Request{Op: wire.Read, Tag: 1, Handle: e.info.Handle}).AppendTo(nil)
	switch i % 5 {
	case 0:
		good = good[:40]
	case 1:
		good[0] = 0
	case 2:
		good[1] = 0x7f
	case 3:
		good[60] = 1
	case 4:
		good[3] = 0xff
	}
	e.send(good, rdma.Work{})
	e.ends("a malformed message")
}

// replayed says what an owner has said on another connection.
func replayed(t *testing.T, d *daemon, _ int) {
	first, second := d.enemy(t, d.Portals[1]), d.enemy(t, d.Portals[1])
	if first == nil || second == nil {
		return
	}
	defer first.close()
	defer second.close()
	first.hello("owner")
	m := wire.AttachMessage{Partition: "m/own"}
	m.Proof = first.g.ClientProof([]byte("the secret of the owner"), &m)
	heard := m.AppendTo(nil)
	first.send(heard, rdma.Work{})
	if a, err := wire.ParseAttached(first.next()); err != nil || a.Status != wire.OK {
		t.Errorf("the owner: %+v, %v", a, err)
	}
	second.hello("owner")
	second.send(heard, rdma.Work{})
	if a, err := wire.ParseAttached(second.next()); err != nil || a.Status != wire.Denied {
		t.Errorf("a proof of another connection is as good: %+v, %v", a, err)
	}
	second.ends("a wrong proof")
}

// overdrawn asks for as much as there are credits, with responses that it does not take, and more.
func overdrawn(t *testing.T, d *daemon, _ int) {
	e := d.use(t, d.Portals[1])
	if e == nil {
		return
	}
	defer e.close()
	for tag := range uint32(200) {
		r := wire.Request{Op: wire.Write, Tag: tag, Handle: e.info.Handle, Length: 1 << 20}
		e.send(r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: e.sge(enemyData, 1<<20), Access: rdma.AccessRemoteRead})
		r = wire.Request{Op: wire.Add, Tag: 1000 + tag, Handle: e.info.Handle, Length: 8, New: 1}
		e.send(r.AppendTo(nil), rdma.Work{})
		e.send(r.AppendTo(nil), rdma.Work{}) // with its tag again
	}
	e.ends("more requests than credits")
}

// starving asks for transfers to and from memory that it takes back.
func starving(t *testing.T, d *daemon, _ int) {
	e := d.use(t, d.Portals[1])
	if e == nil {
		return
	}
	defer e.close()
	for tag := range uint32(32) {
		r := wire.Request{Op: wire.Write, Tag: tag, Handle: e.info.Handle, Length: 1 << 20, STag: 0x4711 + tag<<8}
		if tag%2 > 0 {
			r.Op = wire.Read
		}
		e.send(r.AppendTo(nil), rdma.Work{})
	}
	e.ends("buffers that are not there")
}

// guessed reaches for memory with STags that are not its own, or not any more, and beyond its partition.
func guessed(t *testing.T, d *daemon, i int) {
	e := d.use(t, d.Portals[1])
	if e == nil {
		return
	}
	defer e.close()
	own := rdma.STag(e.info.STag)
	w := rdma.Work{Op: rdma.OpWrite, SGL: e.sge(enemyData, 4096), RemoteSTag: own}
	switch i % 5 {
	case 0:
		w.RemoteOffset = e.info.Size
	case 1:
		w.RemoteOffset = 1<<64 - 4096
	case 2:
		w.RemoteSTag ^= 1
	case 3:
		w.RemoteSTag += 256
	case 4:
		r := wire.Request{Op: wire.Detach, Tag: 1, Handle: e.info.Handle}
		e.send(r.AppendTo(nil), rdma.Work{})
		_ = e.next()
	}
	copy(e.mem.Bytes()[enemyData:], bytes.Repeat([]byte{0xee}, 4096))
	if i%2 > 0 {
		w.Op = rdma.OpRead
	}
	_, _ = e.qp.Post([]rdma.Work{w})
	e.ends("an STag that is not its own")
	if w.Op == rdma.OpRead && !slices.Equal(e.mem.Bytes()[enemyData:enemyData+4096], bytes.Repeat([]byte{0xee}, 4096)) {
		t.Error("an enemy has read something")
	}
}

// vanished goes away when a part of what it writes has left: by RDMA Write, and of a WRITE.
func vanished(t *testing.T, d *daemon, i int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return
	}
	through := make(chan struct{})
	go func() {
		defer close(through)
		c, err := l.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", d.Portals[1])
		if err == nil {
			go func() { _, _ = io.Copy(c, to) }()
			_, _ = io.CopyN(to, c, int64(8<<10+i*20011))
			_ = to.(*net.TCPConn).SetLinger(i % 2 * 5)
			_ = to.Close()
		}
		_ = c.Close()
	}()
	defer func() {
		_ = l.Close()
		<-through
	}()
	e := d.use(t, l.Addr().String())
	if e == nil {
		return
	}
	defer e.close()
	for k := range uint64(4) {
		_, _ = e.qp.Post([]rdma.Work{{Op: rdma.OpWrite, SGL: e.sge(enemyData, 1<<20), RemoteSTag: rdma.STag(e.info.STag), RemoteOffset: k << 20}})
		r := wire.Request{Op: wire.Write, Tag: uint32(k), Handle: e.info.Handle, Length: 1 << 20, Offset: k << 20}
		e.send(r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: e.sge(enemyData, 1<<20), Access: rdma.AccessRemoteRead})
	}
	e.ends(fmt.Sprint("a client that is cut off after ", 8<<10+i*20011))
}
