package nic

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// fake is a card that says what the test likes, once the driver has what it needs.
type fake struct {
	t      testing.TB
	sock   *shm.Socket
	ctl    *shm.Control
	bell   *shm.Bell // wakes the card
	driver *shm.Bell
	fds    []int // of hello
	work   sync.WaitGroup
	mu     sync.Mutex
	queues map[uint32]*shm.Queue // guarded by mu
	// answers is how many requests it answers before it goes.
	answers int
}

const (
	fakeDepth = 16
	fakeArena = 1 << 16
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newFake returns a card, and the driver's end of its socket.
func newFake(t testing.TB, answers int) (*fake, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		must(t, err)
		must(t, f.Close())
		ends[i] = c.(*net.UnixConn)
	}
	c := &fake{t: t, sock: shm.NewSocket(ends[0]), queues: make(map[uint32]*shm.Queue), answers: answers}
	seg, fd, err := shm.Create("fake", shm.ControlLen)
	must(t, err)
	c.ctl = shm.NewControl(seg)
	c.fds = []int{fd}
	for _, b := range []**shm.Bell{&c.bell, &c.driver} {
		*b, err = shm.NewBell()
		must(t, err)
		d, err := unix.Dup((*b).FD())
		must(t, err)
		c.fds = append(c.fds, d)
	}
	c.work.Go(c.serve)
	c.work.Go(c.commands)
	return c, ends[1]
}

// serve answers requests as if all were well, and then closes the socket.
func (c *fake) serve() {
	defer c.bell.Stop()
	defer c.sock.Close()
	for ; c.answers != 0; c.answers-- {
		var m shm.Message
		fds, err := c.sock.Receive(&m)
		if err != nil {
			return
		}
		shm.CloseAll(fds)
		a := &shm.Message{ID: m.ID, Op: m.Op}
		fds = nil
		switch m.Op {
		case shm.OpHello:
			a.Version, a.Limits = shm.Version, &rdma.Limits{
				MaxSGE: 1000, MaxWork: 1 << 30, MaxInline: 1 << 20, MaxMessage: 1 << 30, MaxReads: 8, OneShot: true, Windows: true,
			}
			fds, c.fds = c.fds, nil
		case shm.OpQueuePair:
			for i := range uint32(2) {
				seg, fd, err := shm.Create("fake", shm.QueueLen(fakeDepth))
				if err != nil {
					return
				}
				c.mu.Lock()
				c.queues[m.Number+i] = shm.NewQueue(seg, fakeDepth)
				c.mu.Unlock()
				fds = append(fds, fd)
			}
		case shm.OpConnect:
			a.Reads, a.Initiator, a.OneShot = 4, true, &rdma.OneShot{Advertise: true, Close: true, Window: 4}
			for i := range 8 {
				a.STags = append(a.STags, rdma.STag(i+1)<<keyBits)
			}
		case shm.OpClose: // it would have to complete what is posted
			return
		}
		c.send(a, fds...)
		shm.CloseAll(fds)
	}
}

func (c *fake) send(m *shm.Message, fds ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.sock.Send(m, fds...) // the driver may have gone
}

// commands answers what comes over the ring of commands.
func (c *fake) commands() {
	at := uint32(0)
	for {
		err := c.bell.Wait(func() bool {
			c.ctl.Card.Begin()
			return c.ctl.CommandTail.Load() != at
		})
		if err != nil {
			return
		}
		slot := [shm.SlotLen]byte(c.ctl.Command(at))
		at++
		c.ctl.HintHead.Store(c.ctl.HintTail.Load())
		var d shm.Descriptor
		d.Get(&slot)
		c.put(shm.Completion{Kind: shm.KindAnswer, Token: d.Token, STag: at << keyBits})
	}
}

// put puts an entry into the ring of completions.
func (c *fake) put(x shm.Completion) {
	tail := c.ctl.CompletionTail.Load()
	c.ctl.Put(tail, &x)
	c.ctl.CompletionTail.Store(tail + 1)
	c.driver.Ring()
}

// close gives back what the card has.
func (c *fake) close() {
	_ = c.sock.Close()
	c.work.Wait()
	shm.CloseAll(c.fds)
	for _, q := range c.queues {
		_ = q.Close()
	}
	_ = c.ctl.Close()
	c.bell.Close()
	c.driver.Close()
}

// app is a program with a queue pair.
type app struct {
	dev  *Device
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	qp   rdma.QueuePair
	b    []byte
	r    rdma.Region
	seen map[uint64]int // completions, by ID
	next uint64
	sure []uint64 // IDs of what has to complete
}

// begin makes what a program has, as far as the card goes along.
func (a *app) begin() (err error) {
	d := a.dev
	if a.dom, err = d.NewDomain(); err != nil {
		return err
	}
	if a.cq, err = d.NewCompletionQueue(64, func() {}); err != nil {
		return err
	}
	if a.b, err = d.Alloc(fakeArena); err != nil {
		return err
	}
	if a.r, err = a.dom.Register(a.b, rdma.AccessLocalWrite); err != nil {
		return err
	}
	a.qp, err = d.NewQueuePair(rdma.QueuePairConfig{
		Domain: a.dom, SendCQ: a.cq, RecvCQ: a.cq, MaxWork: fakeDepth, MaxRecv: fakeDepth,
	})
	if err != nil {
		return err
	}
	return d.Connect(context.Background(), a.qp, "127.0.0.1:1", rdma.ConnParams{})
}

// end gives it all back. None of it fails, whether there is a card or not.
func (a *app) end(t testing.TB) {
	t.Helper()
	if a.qp != nil {
		must(t, a.qp.Close())
		a.poll(t)
	}
	if a.cq != nil {
		must(t, a.cq.Close())
	}
	if a.r != nil {
		must(t, a.r.Deregister())
	}
	if a.b != nil {
		must(t, a.dev.Free(a.b))
	}
	if a.dom != nil {
		must(t, a.dom.Close())
	}
	must(t, a.dev.Close())
}

func (a *app) sge(off, n int) []rdma.SGE { return []rdma.SGE{{Bytes: a.b[off : off+n], Region: a.r}} }

// receiveLen is the length of a receive; octets.
const receiveLen = 64

// poll takes completions. A receive gets no more octets than it has room for.
func (a *app) poll(t testing.TB) {
	var cs [8]rdma.Completion
	for n := a.cq.Poll(cs[:]); n > 0; n = a.cq.Poll(cs[:]) {
		for _, c := range cs[:n] {
			if a.seen[c.ID]++; a.seen[c.ID] > 1 {
				t.Errorf("%v %d completes twice", c.Op, c.ID)
			}
			if c.Op == rdma.OpReceive && c.Status == rdma.StatusOK {
				_ = a.b[:receiveLen:receiveLen][:c.Bytes]
			}
		}
	}
}

// post posts a work, of the kinds that there are, or a receive.
func (a *app) post(kind byte) {
	a.next++
	w := rdma.Work{ID: a.next, Flags: rdma.Signaled, SGL: a.sge(0, 100), RemoteSTag: 0x100}
	switch kind % 6 {
	case 0:
		w.Op = rdma.OpSend
	case 1:
		w.Op = rdma.OpRead
	case 2:
		w.Op, w.Flags = rdma.OpWrite, 0
	case 3:
		w.Op, w.Flags = rdma.OpSend, rdma.Signaled|rdma.Advertise
		w.Access, w.Memory = rdma.AccessRemoteRead, a.sge(0, 4096)
	case 4:
		w.Op, w.Flags = rdma.OpSend, rdma.Signaled|rdma.Inline
	case 5:
		if n, _ := a.qp.PostReceive([]rdma.Receive{{ID: a.next, SGL: a.sge(0, receiveLen)}}); n == 1 {
			a.sure = append(a.sure, a.next)
		}
		return
	}
	if n, _ := a.qp.Post([]rdma.Work{w}); n == 1 && w.Flags&(rdma.Signaled|rdma.Advertise) == rdma.Signaled {
		a.sure = append(a.sure, a.next)
	}
}

// FuzzCard has a card say what it likes: in its ring of completions, its words and its messages. The driver does not break, all
// that is posted completes once, and no receive has more octets than it has room for.
func FuzzCard(f *testing.F) {
	const send, receive = byte(rdma.OpSend), byte(rdma.OpReceive)
	for _, s := range [][]byte{
		{0, 0, 0, 3, 0, 5, 1, 1, send, 0, 0, 0, 0, 0, 4},
		{0, 0, 0, 0, 1, 1, send, 0, 0, 1, 0, 0, 4},                     // the first one is owed
		append([]byte{5, 16, 0, 0, 4}, make([]byte, 2*fakeDepth+2)...), // so are those that are said to be done
		{0, 5, 1, 1, receive, 0, 0, 0, 0, 200, 4},                      // too long
		{0, 5, 1, 1, receive, 0, byte(rdma.Advertised), 0, 8, 1, 4},
		{0, 3, 0, 5, 1, 1, receive, 0, byte(rdma.Closed), 0, 1, 1, 4, 0, 3},
		{0, 5, 0, 5, 1, 1, receive, 99, 0, 0, 0, 0, 4},
		{0, 0, 1, 1, 77, 0, 0, 0, 0}, // no such status, another operation
		{0, 0, 3, 0, 255, 255, 255, 255, 4},
		{3, 1, 16, 0, 0, 0, 0, 0},
		{2, 2, 9, 0, 0, 0, 4},
		{6, 1, 'h', 'o', 's', 't'},
		{6, 2, 0},
		{6, 3, 9},
		{6, 0, 0, 0},
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		if len(s) > 1<<10 {
			return
		}
		c, there := newFake(t, -1)
		d, err := begin(there, Config{})
		must(t, err)
		a := &app{dev: d, seen: make(map[uint64]int)}
		must(t, a.begin())
		number := a.qp.(*queuePair).number
		c.mu.Lock()
		q := c.queues[number]
		c.mu.Unlock()
		take := func() (b byte) {
			if len(s) > 0 {
				b, s = s[0], s[1:]
			}
			return b
		}
		word := func() uint32 {
			return binary.LittleEndian.Uint32([]byte{take(), take(), take(), take()})
		}
		for len(s) > 0 {
			switch take() % 7 {
			case 0:
				a.post(take())
			case 1: // nearly right
				c.put(shm.Completion{
					Kind: shm.Kind(take() % 5), Op: take(), Status: take(), Flags: take(), QueuePair: number, Token: uint64(take()),
					STag: uint32(take()) << keyBits, Bytes: uint32(take()),
				})
			case 2:
				c.put(shm.Completion{
					Kind: shm.Kind(take()), Op: take(), Status: take(), Flags: take(), QueuePair: word(), Token: uint64(word()) << 16, STag: word(), Bytes: word(),
				})
			case 3:
				w := []*shm.Word{c.ctl.CompletionTail, c.ctl.HintHead, c.ctl.Stalled, q.Done}[take()%4]
				w.Store(w.Load() + word())
			case 4:
				a.poll(t)
			case 5:
				q.Done.Store(uint32(take()))
			case 6:
				m := &shm.Message{Number: number, Op: []string{shm.OpEnded, shm.OpRequested, "sing"}[take()%3], ID: uint64(take()), Local: string(take())}
				c.send(m)
			}
		}
		_ = c.sock.Close()
		<-d.flushed
		a.end(t)
		for _, id := range a.sure {
			if a.seen[id] != 1 {
				t.Errorf("work %d has completed %d times", id, a.seen[id])
			}
		}
		c.close()
	})
}

// A card that goes after any of its answers leaves nothing behind here, and nobody waits for it.
func TestCardGoesAfterEachAnswer(t *testing.T) {
	for n := range 7 {
		c, there := newFake(t, n)
		d, err := begin(there, Config{})
		if err == nil {
			a := &app{dev: d, seen: make(map[uint64]int)}
			if err = a.begin(); err == nil {
				a.post(0)
				a.post(5)
			} else if _, lost := errors.AsType[*LostError](err); !lost {
				t.Errorf("after %d answers: %v, want a LostError", n, err)
			}
			a.end(t)
			for _, id := range a.sure {
				if a.seen[id] != 1 {
					t.Errorf("after %d answers: work %d has completed %d times", n, id, a.seen[id])
				}
			}
		}
		if (n == 0) != (d == nil) {
			t.Errorf("after %d answers: %v", n, err)
		}
		c.close()
	}
}
