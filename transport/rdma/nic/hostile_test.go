package nic_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/card"
	"oneshot/transport/rdma/nic/shm"
)

// driver is a program that says to the card what it likes.
type driver struct {
	t      testing.TB
	sock   *shm.Socket
	ctl    *shm.Control
	bell   *shm.Bell
	own    *shm.Bell
	id     uint64
	hints  uint32
	sq, rq *shm.Queue
	segs   []*shm.Segment
}

// The numbers that a driver uses.
const (
	itsDomain = 1
	itsArena  = 1
	itsPair   = 2 // and 3, its receives
	itsDepth  = 64
	arenaLen  = 4 * shm.PageSize
)

func dial(t testing.TB, socket string) *driver {
	t.Helper()
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, sock: shm.NewSocket(u)}
	t.Cleanup(d.close)
	return d
}

// begin says hello, and makes a domain, an arena with a region (number 1), and a queue pair.
func begin(t testing.TB, socket string) *driver {
	t.Helper()
	d := dial(t, socket)
	_, fds := d.ask(&shm.Message{Op: shm.OpHello, Version: shm.Version})
	if len(fds) != 3 {
		t.Fatalf("%d descriptors", len(fds))
	}
	d.ctl = shm.NewControl(d.mapped(fds[0], shm.ControlLen))
	var err1, err2 error
	d.bell, err1 = shm.OpenBell(fds[1])
	d.own, err2 = shm.OpenBell(fds[2])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	d.ask(&shm.Message{Op: shm.OpDomain, Number: itsDomain})
	seg, fd, err := shm.Create("hostile", arenaLen)
	if err != nil {
		t.Fatal(err)
	}
	d.segs = append(d.segs, seg)
	d.askWith(&shm.Message{Op: shm.OpArena, Number: itsArena, Size: arenaLen}, fd)
	shm.CloseAll([]int{fd})
	_, fds = d.ask(&shm.Message{Op: shm.OpQueuePair, Number: itsPair, Domain: itsDomain, Depth: itsDepth, Receives: itsDepth, MaxSGE: 4})
	d.sq = shm.NewQueue(d.mapped(fds[0], shm.QueueLen(itsDepth)), itsDepth)
	d.rq = shm.NewQueue(d.mapped(fds[1], shm.QueueLen(itsDepth)), itsDepth)
	shm.CloseAll(fds)
	d.command(shm.Descriptor{Op: shm.CommandRegister, STag: itsDomain, Offset: 1, Access: uint8(rdma.AccessLocalWrite)},
		shm.Piece{Region: itsArena | shm.Arena, Len: shm.PageSize})
	if a := d.next(); a.Kind != shm.KindAnswer || a.Status != 0 {
		t.Fatalf("register: %+v", a)
	}
	return d
}

func (d *driver) mapped(fd, n int) *shm.Segment {
	d.t.Helper()
	s, err := shm.Map(fd, n)
	if err != nil {
		d.t.Fatal(err)
	}
	d.segs = append(d.segs, s)
	return s
}

func (d *driver) close() {
	_ = d.sock.Close()
	for _, b := range []*shm.Bell{d.bell, d.own} {
		if b != nil {
			b.Close()
		}
	}
	for _, s := range d.segs {
		_ = s.Close()
	}
	d.bell, d.own, d.segs = nil, nil, nil
}

// askWith sends a request with descriptors, and returns the answer and its descriptors.
func (d *driver) askWith(m *shm.Message, fds ...int) (*shm.Message, []int) {
	d.t.Helper()
	d.id++
	m.ID = d.id
	if err := d.sock.Send(m, fds...); err != nil {
		d.t.Fatal(err)
	}
	for {
		a := new(shm.Message)
		out, err := d.sock.Receive(a)
		if err != nil {
			d.t.Fatalf("%s: %v", m.Op, err)
		}
		if a.ID == m.ID {
			return a, out
		}
	}
}

// ask is askWith for a request that has to succeed.
func (d *driver) ask(m *shm.Message) (*shm.Message, []int) {
	d.t.Helper()
	a, fds := d.askWith(m)
	if a.Error != "" {
		d.t.Fatalf("%s: %s", m.Op, a.Error)
	}
	return a, fds
}

// hint tells the card to look at a queue.
func (d *driver) hint(n uint32) {
	d.ctl.Hint(d.hints).Store(n)
	d.hints++
	d.ctl.HintTail.Store(d.hints)
	d.bell.Ring()
}

func (d *driver) command(x shm.Descriptor, p shm.Piece) {
	at := d.ctl.CommandTail.Load()
	slot := d.ctl.Command(at)
	x.Put(slot)
	shm.PutPiece(slot, nil, 0, 1, p)
	d.ctl.CommandTail.Store(at + 1)
	d.hint(shm.CommandQueue)
}

// next waits for the next entry of the ring of completions.
func (d *driver) next() (x shm.Completion) {
	d.t.Helper()
	head := d.ctl.CompletionHead.Load()
	err := d.own.Wait(func() bool {
		d.ctl.Driver.Begin()
		return d.ctl.CompletionTail.Load() != head
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.ctl.Driver.End()
	d.ctl.Get(head, &x)
	d.ctl.CompletionHead.Store(head + 1)
	return x
}

// post puts a request into the send queue.
func (d *driver) post(x shm.Descriptor, ps ...shm.Piece) {
	at := d.sq.Tail.Load()
	slot, spill := d.sq.Slot(at), d.sq.Spill(at)
	x.Put(slot)
	for i, p := range ps {
		shm.PutPiece(slot, spill, i, x.Pieces(), p)
	}
	d.sq.Tail.Store(at + 1)
	d.hint(itsPair)
}

// turnedOut waits until the card has closed the socket.
func (d *driver) turnedOut() {
	d.t.Helper()
	for {
		var m shm.Message
		fds, err := d.sock.Receive(&m)
		shm.CloseAll(fds)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
			return
		default:
			d.t.Fatal(err)
		}
	}
}

// bystanders are two programs whose connection works, whatever a third program does.
func bystanders(t *testing.T, socket string) (goOn func()) {
	t.Helper()
	a, b := newEnd(t, open(t, socket)), newEnd(t, open(t, socket))
	connect(t, a, b, nil)
	round := byte(0)
	return func() {
		t.Helper()
		round++
		for i := range a.mem.Bytes()[:100] {
			a.mem.Bytes()[i] = round + byte(i)
		}
		b.receive(1, 1000, 100)
		a.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 100)})
		b.want(rdma.OpReceive, 1)
		a.want(rdma.OpSend, 2)
		if string(b.mem.Bytes()[1000:1100]) != string(a.mem.Bytes()[:100]) {
			t.Fatal("the bystanders' message is another")
		}
	}
}

// The card turns a program out that has written an impossible position, and nobody else.
func TestPositionsThatLie(t *testing.T) {
	socket := start(t).socket
	goOn := bystanders(t, socket)
	for name, lie := range map[string]func(*driver){
		"hints":            func(d *driver) { d.ctl.HintTail.Store(d.hints + shm.Hints + 1); d.bell.Ring() },
		"hints, backwards": func(d *driver) { d.ctl.HintTail.Store(d.hints - 1); d.bell.Ring() },
		"commands": func(d *driver) {
			for i := range uint32(shm.Commands) {
				x := shm.Descriptor{Op: shm.CommandRevoke} // of no queue pair, which is refused, but no reason to turn the program out
				x.Put(d.ctl.Command(i))
			}
			d.ctl.CommandTail.Store(1 + shm.Commands + 1)
			d.hint(shm.CommandQueue)
		},
		"requests": func(d *driver) { d.sq.Tail.Store(d.sq.Slots() + 1); d.hint(itsPair) },
		"receives": func(d *driver) { d.rq.Tail.Store(1 << 31); d.hint(itsPair + 1) },
		"completions": func(d *driver) {
			d.ctl.CompletionHead.Store(1 << 30)
			d.command(shm.Descriptor{Op: shm.CommandRevoke}, shm.Piece{})
		},
		"unknown command":   func(d *driver) { d.command(shm.Descriptor{Op: 99}, shm.Piece{}) },
		"unknown request":   func(d *driver) { _ = d.sock.Send(&shm.Message{ID: 77, Op: "sing"}) },
		"hello, once more":  func(d *driver) { _ = d.sock.Send(&shm.Message{ID: 77, Op: shm.OpHello, Version: shm.Version}) },
		"no message at all": func(d *driver) { _, _ = d.sock.Write([]byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, socket)
			lie(d)
			d.turnedOut()
			goOn()
		})
	}
}

// A program that takes no answers and completions holds no more of the card's memory than its queues are long.
func TestNothingTaken(t *testing.T) {
	socket := start(t).socket
	goOn := bystanders(t, socket)
	x := shm.Descriptor{Op: uint8(rdma.OpSend), SGL: 1}
	for name, more := range map[string]func(*driver){
		"commands": func(d *driver) {
			revoke := shm.Descriptor{Op: shm.CommandRevoke} // of no queue pair
			for i := range uint32(shm.Commands) {
				revoke.Put(d.ctl.Command(i))
			}
			d.ctl.CommandTail.Store(d.ctl.CommandTail.Load() + shm.Commands)
			d.hint(shm.CommandQueue)
		},
		"requests": func(d *driver) { // of a queue pair that is not connected
			for i := range d.sq.Slots() {
				x.Put(d.sq.Slot(i))
				shm.PutPiece(d.sq.Slot(i), nil, 0, 1, shm.Piece{Region: 1, Len: 8})
			}
			d.sq.Tail.Store(d.sq.Tail.Load() + d.sq.Slots())
			d.hint(itsPair)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, socket)
			over := make(chan struct{})
			go func() {
				d.turnedOut()
				close(over)
			}()
			for pushed := 0; ; {
				select {
				case <-over:
					goOn()
					return
				default:
				}
				if d.ctl.HintHead.Load() != d.hints {
					continue
				}
				if more(d); pushed > 2000 {
					t.Fatal("the card takes it all")
				}
				d.hint(shm.MaxQueues) // of no queue: it is taken when the card has done with the one before
				pushed++
			}
		})
	}
}

// A request that no honest driver posts ends its queue pair: it completes with an error, and those behind it are
// flushed. The program itself and others go on.
func TestGarbage(t *testing.T) {
	socket := start(t).socket
	goOn := bystanders(t, socket)
	send := shm.Descriptor{Op: uint8(rdma.OpSend), SGL: 1, Flags: uint16(rdma.Signaled)}
	with := func(f func(*shm.Descriptor)) shm.Descriptor {
		x := send
		f(&x)
		return x
	}
	good := shm.Piece{Region: 1, Len: 8}
	for name, c := range map[string]struct {
		d  shm.Descriptor
		ps []shm.Piece
	}{
		"unknown operation":          {with(func(d *shm.Descriptor) { d.Op = 200 }), []shm.Piece{good}},
		"operation of endpoints":     {with(func(d *shm.Descriptor) { d.Op = uint8(rdma.OpFlush) }), []shm.Piece{good}},
		"no such region":             {send, []shm.Piece{{Region: 7, Len: 8}}},
		"behind the region":          {send, []shm.Piece{{Region: 1, Len: 8, Offset: shm.PageSize - 7}}},
		"far behind the region":      {send, []shm.Piece{{Region: 1, Len: 8, Offset: 1 << 40}}},
		"longer than the region":     {send, []shm.Piece{{Region: 1, Len: 1<<32 - 1}}},
		"offset wraps":               {send, []shm.Piece{{Region: 1, Len: 8, Offset: 1<<64 - 4}}},
		"arena without a region":     {send, []shm.Piece{{Region: itsArena | shm.Arena, Len: 8}}},
		"more elements than agreed":  {with(func(d *shm.Descriptor) { d.SGL = 5 }), []shm.Piece{good, good, good, good, good}},
		"more pieces than there are": {with(func(d *shm.Descriptor) { d.SGL, d.Memory, d.Flags = 255, 65535, uint16(rdma.Advertise) }), nil},
		"more inline than there is":  {with(func(d *shm.Descriptor) { d.Inline, d.Flags, d.SGL = 1<<32-1, uint16(rdma.Inline), 0 }), nil},
		"bind of no window":          {with(func(d *shm.Descriptor) { d.Op = uint8(rdma.OpBind) }), []shm.Piece{good}},
		"advertise, not agreed":      {with(func(d *shm.Descriptor) { d.Flags, d.Memory = uint16(rdma.Advertise), 1 }), []shm.Piece{good, good}},
		"flags that there are not":   {with(func(d *shm.Descriptor) { d.Flags = uint16(rdma.Invalidate | rdma.Close) }), []shm.Piece{good}},
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, socket)
			peer := newEnd(t, open(t, socket))
			d.connect(peer)
			d.post(c.d, c.ps...)
			d.post(send, good)
			for i, want := range []rdma.Status{rdma.StatusLocalProtection, rdma.StatusFlushed} {
				if x := d.next(); x.Kind != shm.KindCompletion || x.Token != uint64(i) || rdma.Status(x.Status) != want {
					t.Errorf("%+v, want request %d to end with %v", x, i, want)
				}
			}
			peer.bad()
			d.ask(&shm.Message{Op: shm.OpCounters}) // it is still served
			goOn()
		})
	}
}

// connect connects the driver's queue pair with peer.
func (d *driver) connect(peer *end) {
	d.t.Helper()
	l, err := peer.dev.Listen("127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(peer.qp, rdma.ConnParams{})
		}
		done <- err
	}()
	d.ask(&shm.Message{Op: shm.OpConnect, Number: itsPair, Address: l.Addr().String(), Params: &rdma.ConnParams{}})
	if err := errors.Join(<-done, l.Close()); err != nil {
		d.t.Fatal(err)
	}
}

// The card checks what it is to map, and how much, before it does so.
func TestSharedMemoryRefused(t *testing.T) {
	socket := serve(t, card.Config{Memory: 16 << 20})
	memfd := func(t *testing.T, n int64, flags, seals int) int {
		fd, err := unix.MemfdCreate("bad", flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		_ = unix.Ftruncate(fd, n)
		if seals != 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	for name, c := range map[string]struct {
		size int64
		fd   func(*testing.T) int
	}{
		"it can be cut off": {shm.PageSize, func(t *testing.T) int { return memfd(t, shm.PageSize, unix.MFD_ALLOW_SEALING, 0) }},
		"shorter than said": {2 * shm.PageSize, func(t *testing.T) int { return memfd(t, shm.PageSize, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK) }},
		"huge pages": {2 << 20, func(t *testing.T) int {
			return memfd(t, 2<<20, unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB, unix.F_SEAL_SHRINK)
		}},
		"too much": {1 << 30, func(t *testing.T) int { return memfd(t, 1<<30, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK) }},
		"nothing":  {0, func(t *testing.T) int { return memfd(t, shm.PageSize, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK) }},
		"less":     {-1 << 40, func(t *testing.T) int { return memfd(t, shm.PageSize, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK) }},
		"a file": {shm.PageSize, func(t *testing.T) int {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			_ = f.Truncate(shm.PageSize)
			return int(f.Fd())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, socket)
			a, _ := d.askWith(&shm.Message{Op: shm.OpArena, Number: 9, Size: c.size}, c.fd(t))
			if a.Error == "" {
				t.Error("the card maps it")
			}
		})
	}
	d := begin(t, socket)
	for n := uint32(1); ; n++ { // queues count, too
		a, fds := d.askWith(&shm.Message{Op: shm.OpReceives, Number: 10 + n, Domain: itsDomain, Depth: 256})
		shm.CloseAll(fds)
		if a.Error != "" {
			break
		}
		if n > 16<<20/(256*shm.SpillLen) {
			t.Fatalf("%d queues", n)
		}
	}
}

// All programs together have a bound, too. What one has is free again when it goes.
func TestSharedMemoryTogether(t *testing.T) {
	socket := serve(t, card.Config{Memory: 16 << 20, Together: 20 << 20})
	const n = 12 << 20
	arena := func(d *driver) string {
		t.Helper()
		seg, fd, err := shm.Create("large", n)
		if err != nil {
			t.Fatal(err)
		}
		d.segs = append(d.segs, seg)
		a, _ := d.askWith(&shm.Message{Op: shm.OpArena, Number: 9, Size: n}, fd)
		shm.CloseAll([]int{fd})
		return a.Error
	}
	first, second := begin(t, socket), begin(t, socket)
	if e := arena(first); e != "" {
		t.Fatal(e)
	}
	if e := arena(second); e == "" {
		t.Error("the card maps more than it is to map of all programs")
	}
	first.close()
	for arena(second) != "" { // the card notices that the first one has gone
		runtime.Gosched()
	}
}

// A number that is in use stays with what has it: a queue that went would have the card write to memory that is not mapped.
func TestNumberInUse(t *testing.T) {
	socket := start(t).socket
	d := begin(t, socket)
	peer := newEnd(t, open(t, socket))
	d.connect(peer)
	for _, number := range []uint32{itsPair, itsPair + 1, itsPair - 1} { // the last one has itsPair for its receives
		a, fds := d.askWith(&shm.Message{Op: shm.OpQueuePair, Number: number, Domain: itsDomain, Depth: itsDepth, Receives: itsDepth, MaxSGE: 4})
		shm.CloseAll(fds)
		if a.Error == "" {
			t.Errorf("a queue pair with the number %d", number)
		}
	}
	d.ask(&shm.Message{Op: shm.OpCounters, Number: itsPair})
	peer.receive(1, 0, 100)
	d.post(shm.Descriptor{Op: uint8(rdma.OpSend), SGL: 1, Flags: uint16(rdma.Signaled)}, shm.Piece{Region: 1, Len: 8})
	peer.want(rdma.OpReceive, 1)
	if x := d.next(); x.Kind != shm.KindCompletion || rdma.Status(x.Status) != rdma.StatusOK {
		t.Errorf("%+v", x)
	}
}

// What takes descriptors and memory of the card, without memory that is shared, is bounded, too.
func TestObjectsBounded(t *testing.T) {
	d := begin(t, serve(t, card.Config{}))
	d.connect(newEnd(t, open(t, serve(t, card.Config{}))))
	for name, c := range map[string]struct {
		m    shm.Message
		most int
	}{
		"listeners": {shm.Message{Op: shm.OpListen, Address: "127.0.0.1:0"}, 256},
		"STags":     {shm.Message{Op: shm.OpSTags, Number: itsPair, Depth: 2048}, 128},
	} {
		n := 0
		for ; n <= c.most; n++ {
			m := c.m
			if m.Op == shm.OpListen {
				m.Number = uint32(n)
			}
			if a, _ := d.askWith(&m); a.Error != "" {
				break
			}
		}
		if n > c.most || n < c.most-1 {
			t.Errorf("%s: %d of them, want %d", name, n, c.most)
		}
	}
}

// A program that uses up the descriptors of the card gets an error, and others go on.
func TestDescriptorsUsedUp(t *testing.T) {
	c := start(t)
	goOn := bystanders(t, c.socket)
	d := begin(t, c.socket)
	fds, _ := holds(t, c.Process.Pid)
	limit := unix.Rlimit{Cur: uint64(fds) + 10, Max: uint64(fds) + 10}
	check(t, unix.Prlimit(c.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil))
	for n := uint32(0); ; n++ {
		if a, _ := d.askWith(&shm.Message{Op: shm.OpListen, Number: n, Address: "127.0.0.1:0"}); a.Error != "" {
			break
		}
		if n > 20 {
			t.Fatal("they are not used up")
		}
	}
	for _, m := range []shm.Message{
		{Op: shm.OpReceives, Number: 10, Domain: itsDomain, Depth: 8}, {Op: shm.OpQueuePair, Number: 12, Domain: itsDomain, Depth: 8, Receives: 8, MaxSGE: 4},
	} {
		a, fds := d.askWith(&m)
		shm.CloseAll(fds)
		if a.Error == "" {
			t.Errorf("%s without a descriptor", m.Op)
		}
	}
	goOn()
	d.close()
	settled(func() bool {
		now, _ := holds(t, c.Process.Pid)
		return now < fds // what the program had is free again
	})
	begin(t, c.socket)
	goOn()
}

// A program that dies between any two of its steps leaves nothing behind, and the card does not take half of a step for one.
func TestDiesAtAnyStep(t *testing.T) {
	c := start(t)
	goOn := bystanders(t, c.socket)
	fds, maps := holds(t, c.Process.Pid)
	send := shm.Descriptor{Op: uint8(rdma.OpSend), SGL: 1, Flags: uint16(rdma.Signaled)}
	register := shm.Descriptor{Op: shm.CommandRegister, STag: itsDomain, Offset: 2, Access: uint8(rdma.AccessLocalWrite)}
	steps := []func(d *driver){
		func(d *driver) { send.Put(d.sq.Slot(0)) },
		func(d *driver) { shm.PutPiece(d.sq.Slot(0), nil, 0, 1, shm.Piece{Region: 1, Len: 8}) },
		func(d *driver) { d.sq.Tail.Store(1) },
		func(d *driver) { d.ctl.Hint(d.hints).Store(itsPair) },
		func(d *driver) { d.hints++; d.ctl.HintTail.Store(d.hints) },
		func(d *driver) { d.bell.Ring() },
		func(d *driver) { register.Put(d.ctl.Command(1)) },
		func(d *driver) {
			shm.PutPiece(d.ctl.Command(1), nil, 0, 1, shm.Piece{Region: itsArena | shm.Arena, Len: shm.PageSize})
		},
		func(d *driver) { d.ctl.CommandTail.Store(2) },
		func(d *driver) { d.hint(shm.CommandQueue) },
		func(d *driver) {
			d.id++
			_ = d.sock.Send(&shm.Message{ID: d.id, Op: shm.OpListen, Address: "127.0.0.1:0"})
		},
		func(d *driver) { d.id++; _ = d.sock.Send(&shm.Message{ID: d.id, Op: shm.OpClose, Number: itsPair}) },
		func(d *driver) {
			d.id++
			_ = d.sock.Send(&shm.Message{ID: d.id, Op: shm.OpFreeArena, Number: itsArena})
		},
	}
	for n := range len(steps) + 1 {
		d := begin(t, c.socket)
		for _, step := range steps[:n] {
			step(d)
		}
		d.close()
	}
	settled(func() bool {
		f, m := holds(t, c.Process.Pid)
		return f <= fds && m <= maps
	})
	if f, m := holds(t, c.Process.Pid); f > fds || m > maps {
		t.Errorf("the card has %d descriptors and %d mappings, before it had %d and %d", f, m, fds, maps)
	}
	goOn()
}

// Whatever a program writes into its rings, and wherever they end, the card goes on for others.
func TestNoise(t *testing.T) {
	socket := start(t).socket
	goOn := bystanders(t, socket)
	for seed := range uint64(60) {
		noise(t, socket, rand.New(rand.NewPCG(seed, 1)))
		if seed%10 == 9 {
			goOn()
		}
	}
	goOn()
}

// noise writes random descriptors, some of them nearly right, and random positions at the end.
func noise(t *testing.T, socket string, r *rand.Rand) {
	d := begin(t, socket)
	defer d.close()
	if r.IntN(2) == 0 {
		peer := newEnd(t, open(t, socket))
		d.connect(peer)
	}
	scribble := func(b []byte) {
		for i := 0; i < len(b); i += 8 {
			binary.NativeEndian.PutUint64(b[i:], r.Uint64())
		}
		if r.IntN(4) > 0 {
			b[0], b[1] = byte(r.IntN(7)), byte(r.IntN(4))
			binary.NativeEndian.PutUint16(b[2:], uint16(r.IntN(1<<10)))
			binary.NativeEndian.PutUint64(b[24:], uint64(r.IntN(3)))
			for i := 32; i < 64; i += 16 {
				binary.NativeEndian.PutUint32(b[i:], uint32(r.IntN(3)))
				binary.NativeEndian.PutUint32(b[i+4:], uint32(r.IntN(5000)))
				binary.NativeEndian.PutUint64(b[i+8:], uint64(r.IntN(5000)))
			}
		}
	}
	for range 20 {
		switch r.IntN(4) {
		case 0:
			at := d.sq.Tail.Load()
			scribble(d.sq.Slot(at))
			scribble(d.sq.Spill(at)[:256])
			d.sq.Tail.Store(at + 1)
			d.hint(itsPair)
		case 1:
			at := d.rq.Tail.Load()
			scribble(d.rq.Slot(at))
			d.rq.Tail.Store(at + 1)
			d.hint(itsPair + 1)
		case 2:
			at := d.ctl.CommandTail.Load()
			scribble(d.ctl.Command(at))
			d.ctl.Command(at)[0] = byte(1 + r.IntN(5))
			d.ctl.CommandTail.Store(at + 1)
			d.hint(shm.CommandQueue)
		default:
			d.hint(r.Uint32N(5))
		}
	}
	switch r.IntN(4) {
	case 0:
		d.sq.Tail.Store(r.Uint32())
		d.hint(itsPair)
	case 1:
		d.ctl.CompletionHead.Store(r.Uint32())
		d.hint(shm.CommandQueue)
	}
	if r.IntN(2) == 0 { // either it answers, or it has turned the program out
		d.id++
		if d.sock.Send(&shm.Message{ID: d.id, Op: shm.OpCounters}) == nil {
			var m shm.Message
			fds, _ := d.sock.Receive(&m)
			shm.CloseAll(fds)
		}
	}
}
