package nic_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/nic/card"
)

// When the process of the card dies, all that was posted is flushed in order, both ends are told, requests that wait
// for an answer fail, and memory stays with its owner.
func TestCardDies(t *testing.T) {
	c := start(t)
	a, b := newEnd(t, open(t, c.socket)), newEnd(t, open(t, c.socket))
	connect(t, a, b, oneShot())
	a.receive(1, 0, 100)
	a.receive(2, 100, 100)
	advertise := rdma.Work{
		ID: 3, Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 8), Access: rdma.AccessRemoteRead, Memory: a.sge(0, 8),
	}
	b.receive(7, 0, 100)
	b.receive(8, 0, 100)
	a.post(advertise)
	b.want(rdma.OpReceive, 7)
	l, err := b.dev.Listen("127.0.0.1:0")
	check(t, err)
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	copy(a.b, "still here")
	check(t, c.Process.Kill())
	isLost := func(what string, err error) {
		t.Helper()
		if _, ok := errors.AsType[*nic.LostError](err); !ok {
			t.Errorf("%s: %v, want a LostError", what, err)
		}
	}
	for _, e := range []*end{a, b} {
		isLost("Disconnected", <-e.gone)
		if _, err := e.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: e.sge(0, 1)}}); !errors.Is(err, rdma.ErrDisconnected) {
			t.Errorf("Post: %v, want %v", err, rdma.ErrDisconnected)
		}
	}
	isLost("Accept", <-accepted)
	check(t, l.Close())
	for _, want := range []struct {
		e  *end
		op rdma.Opcode
		id uint64
	}{{a, rdma.OpSend, 3}, {a, rdma.OpReceive, 1}, {a, rdma.OpReceive, 2}, {b, rdma.OpReceive, 8}} {
		c := want.e.next()
		if c.Op != want.op || c.ID != want.id || c.Status != rdma.StatusFlushed {
			t.Errorf("completion of %v %d: %v; want %v %d, flushed", c.Op, c.ID, c.Status, want.op, want.id)
		}
		isLost("completion", c.Err)
	}
	_, err = a.dom.Register(a.b, rdma.AccessLocalWrite)
	isLost("Register", err)
	_, err = a.dev.Alloc(10)
	isLost("Alloc", err)
	if string(a.b[:10]) != "still here" {
		t.Errorf("memory: %q", a.b[:10])
	}
}

// A device that lasts turns to the next card, which has the memory of the one before, and memory that was made and given back while
// there was none.
func TestNextCard(t *testing.T) {
	first := start(t)
	l, err := nic.OpenLasting(nic.Config{Socket: first.socket})
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	other := start(t)
	talk := func(t *testing.T) *end {
		a, b := newEnd(t, l), newEnd(t, open(t, other.socket))
		connect(t, a, b, nil)
		b.receive(1, 0, 100)
		copy(a.b, t.Name())
		a.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 100)})
		b.want(rdma.OpReceive, 1)
		a.want(rdma.OpSend, 2)
		if string(b.b[:len(t.Name())]) != t.Name() {
			t.Errorf("the message says %q", b.b[:100])
		}
		return a
	}
	kept, err := l.Alloc(100)
	check(t, err)
	given, err := l.Alloc(100)
	check(t, err)
	copy(kept, "still here")
	t.Run("first", func(t *testing.T) {
		a := talk(t)
		check(t, first.Process.Kill())
		if err := <-a.gone; !errors.Is(err, rdma.ErrDeviceLost) {
			t.Errorf("Disconnected: %v, want %v", err, rdma.ErrDeviceLost)
		}
		if _, err := l.NewDomain(); err == nil {
			t.Error("NewDomain without a card")
		}
	})
	check(t, l.Free(given))
	early, err := l.Alloc(1 << 20)
	check(t, err)
	second := startAt(t, first.socket)
	t.Run("second", func(t *testing.T) { talk(t) })
	if string(kept[:10]) != "still here" {
		t.Errorf("memory: %q", kept[:10])
	}
	dom, err := l.NewDomain()
	check(t, err)
	for _, b := range [][]byte{kept, early} {
		r, err := dom.Register(b, rdma.AccessLocalWrite)
		check(t, err)
		check(t, r.Deregister())
		check(t, l.Free(b))
	}
	check(t, dom.Close())
	if _, maps := holds(t, second.Process.Pid); maps != 1 { // the program's rings
		t.Errorf("the card maps %d segments", maps)
	}
	if c := l.Counters(); c.Works != 2 || c.Registrations != 4 {
		t.Errorf("%d works, %d registrations; want 2 and 4", c.Works, c.Registrations)
	}
}

// When a program sees the end of its socket, the card touches its memory no more.
func TestEndOfSocket(t *testing.T) {
	c := start(t)
	_, maps := holds(t, c.Process.Pid)
	for range 20 {
		d := begin(t, c.socket)
		d.ctl.HintTail.Store(1 << 30) // a lie
		d.bell.Ring()
		d.turnedOut()
		if _, m := holds(t, c.Process.Pid); m != maps {
			t.Fatalf("the card maps %d segments of a program that has gone", m-maps)
		}
	}
}

// victimText is what a victim has in the memory that it advertises.
const victimText = "to share"

// beVictim connects to the server at addr through the card, advertises memory, and waits to be killed.
func beVictim(socket, addr string) error {
	t := quiet{}
	d, err := nic.Open(nic.Config{Socket: socket})
	if err != nil {
		return err
	}
	e := newEnd(t, d)
	copy(e.b, victimText)
	if err := d.Connect(context.Background(), e.qp, addr, rdma.ConnParams{OneShot: oneShot()}); err != nil {
		return err
	}
	if _, err := d.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	e.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Advertise, SGL: e.sge(0, 8), Access: rdma.AccessRemoteRead, Memory: e.sge(0, len(victimText))})
	fmt.Println("ready")
	select {}
}

// quiet stands for a testing.TB in a program that is no test.
type quiet struct{ testing.TB }

func (quiet) Helper()                   {}
func (quiet) Cleanup(func())            {}
func (quiet) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// holds counts what a process holds: descriptors, and mappings of shared memory.
func holds(t *testing.T, pid int) (fds, maps int) {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	check(t, err)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	check(t, err)
	return len(list), strings.Count(string(text), "memfd:nic")
}

// A program that is killed leaves nothing behind: its peer hears of it, and the card holds what it held before.
func TestProgramDies(t *testing.T) {
	c := start(t)
	server := open(t, c.socket)
	l, err := server.Listen("127.0.0.1:0")
	check(t, err)
	defer l.Close()
	fds, maps := holds(t, c.Process.Pid)
	for range 3 {
		t.Run("", func(t *testing.T) { victim(t, c, server, l) })
		settled(func() bool {
			f, m := holds(t, c.Process.Pid)
			return f <= fds && m <= maps
		})
		if f, m := holds(t, c.Process.Pid); f > fds || m > maps {
			t.Errorf("the card has %d descriptors and %d mappings, before it had %d and %d", f, m, fds, maps)
		}
	}
}

// victim has a program connect, advertise memory and listen, and kills it.
func victim(t *testing.T, c *process, server *nic.Device, l rdma.Listener) {
	p, e, _ := program(t, c, server, l)
	check(t, p.Process.Kill())
	e.bad()
}

// program starts another process that connects with server and advertises memory, and returns its end and its STag. The process is
// killed with the test, at the latest.
func program(t *testing.T, c *process, server *nic.Device, l rdma.Listener) (*exec.Cmd, *end, rdma.STag) {
	t.Helper()
	e := newEnd(t, server)
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), victimSocket+"="+c.socket, victimPeer+"="+l.Addr().String())
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.StdoutPipe()
	check(t, err)
	check(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	e.receive(1, 0, 100)
	r, err := l.Accept()
	check(t, err)
	check(t, r.Accept(e.qp, rdma.ConnParams{OneShot: oneShot()}))
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the program says %q, %v", line, err)
	}
	return p, e, e.want(rdma.OpReceive, 1).STag
}

// Three programs share a card, each in its own process. When one is killed, what the others have with each other goes on.
func TestOthersGoOn(t *testing.T) {
	c := start(t)
	server := open(t, c.socket)
	l, err := server.Listen("127.0.0.1:0")
	check(t, err)
	defer l.Close()
	_, none := holds(t, c.Process.Pid)
	newEnd(t, server) // as many mappings as our end of the connection with a program has
	_, without := holds(t, c.Process.Pid)
	first, a, _ := program(t, c, server, l)
	_, with := holds(t, c.Process.Pid)
	own := with - without - (without - none) // of the program
	_, b, s := program(t, c, server, l)
	read := func(id uint64) {
		t.Helper()
		clear(b.b[:len(victimText)])
		b.post(rdma.Work{ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.sge(0, len(victimText)), RemoteSTag: s})
		b.want(rdma.OpRead, id)
		if string(b.b[:len(victimText)]) != victimText {
			t.Errorf("the other program's memory says %q", b.b[:len(victimText)])
		}
	}
	read(2)
	_, both := holds(t, c.Process.Pid)
	check(t, first.Process.Kill())
	a.bad()
	settled(func() bool {
		_, m := holds(t, c.Process.Pid)
		return both-m >= own
	})
	if _, m := holds(t, c.Process.Pid); both-m < own {
		t.Errorf("the card maps %d segments, and mapped %d with the program that was killed, which had %d", m, both, own)
	}
	for id := range uint64(100) {
		read(3 + id)
	}
	_, d, _ := program(t, c, server, l) // and there is room for another one
	check(t, d.qp.Close())
}

// settled waits until a condition holds. If it never does, the test fails.
func settled(there func() bool) {
	for late := time.Now().Add(10 * time.Second); !there() && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
}

// The errors for versions that differ, for no card and for too many programs are sentences.
func TestOpenFails(t *testing.T) {
	if _, err := nic.Open(nic.Config{Socket: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "target nic") {
		t.Errorf("no card: %v", err)
	}
	for _, c := range []card.Config{{Programs: 1}, {ProgramsOfUser: 1}} {
		socket := serve(t, c)
		open(t, socket)
		if d, err := nic.Open(nic.Config{Socket: socket}); err == nil {
			t.Error("one program too many is served")
			_ = d.Close()
		}
	}
}
