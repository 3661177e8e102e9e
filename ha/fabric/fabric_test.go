package fabric

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"oneshot/ddp"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const arenaLen = 1 << 20

// node is a fabric, and an arena of it.
type node struct {
	*Fabric
	*Arena
}

func newNode(t *testing.T, d rdma.Device, at string) *node {
	t.Helper()
	l, err := d.Listen(at)
	check(t, err)
	f, err := New(Config{Device: d, Listener: l, Address: l.Addr().String()})
	check(t, err)
	a, err := f.NewArena(arenaLen, "disk")
	check(t, err)
	return &node{f, a}
}

func (n *node) close(t *testing.T, links ...*Link) {
	t.Helper()
	n.Cut()
	for _, l := range links {
		check(t, l.Release())
	}
	check(t, n.Free())
	check(t, n.Fabric.Close())
}

func overIWARP(t *testing.T) *node {
	d, err := iwarp.Open(iwarp.Config{LingerTime: 100 * time.Millisecond})
	check(t, err)
	return newNode(t, d, "127.0.0.1:0")
}

func overLocal(t *testing.T) *node { return newNode(t, local.Open(local.Config{}), "pair:0") }

// providers make nodes.
var providers = map[string]func(*testing.T) *node{"iwarp": overIWARP, "local": overLocal}

// grants gives the arena to the peer of l, whose end is there.
func (n *node) grants(t *testing.T, l, there *Link, number uint64) {
	t.Helper()
	k, err := n.Grant(l, number)
	check(t, err)
	if k != nil {
		there.Learn(*k)
	}
}

// link connects b with a.
func link(t *testing.T, a, b *node) (there, here *Link) {
	t.Helper()
	o, i := a.Offer(a.Arena)
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if there, err = o.Accept(context.Background()); err != nil {
			t.Error(err)
		}
	})
	here, err := b.Connect(context.Background(), b.Arena, i)
	check(t, err)
	wg.Wait()
	return there, here
}

// TestStream: octets come in their order, whatever pieces they leave in and who waits for whom; what was put before is there when
// they are heard.
func TestStream(t *testing.T) {
	for name, open := range providers {
		t.Run(name, func(t *testing.T) {
			a, b := open(t), open(t)
			x, y := link(t, a, b)
			a.grants(t, x, y, 7)
			var talks, readers sync.WaitGroup
			for _, dir := range [][2]*Link{{x, y}, {y, x}} {
				from, to := dir[0], dir[1]
				talks.Go(func() { talk(t, from, from == y) })
				talks.Add(1)
				readers.Go(func() {
					listen(t, to, from == y, a.Bytes())
					talks.Done()
					_, _ = io.Copy(io.Discard, to) // what to says waits for what its peer says of receives
				})
			}
			talks.Wait()
			x.Abort()
			readers.Wait()
			a.close(t, x)
			b.close(t, y)
		})
	}
}

const talks = 400

// talk says numbers, each as often as a message has room for it. With writes they are put into the other's arena first.
func talk(t *testing.T, l *Link, writes bool) {
	r := rand.New(rand.NewPCG(1, 0))
	for i := range uint64(talks) {
		if writes {
			at := int64(i) * 2048
			b := l.arena.bytes[at : at+2048]
			for k := 0; k < len(b); k += 8 {
				binary.LittleEndian.PutUint64(b[k:], i)
			}
			if err := l.Put(Run{Addr: at, Len: 2048, Grant: 7}, time.Minute); err != nil {
				t.Error(err)
			}
		}
		b := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, i), 1+r.IntN(3000))
		err := l.Say(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), time.Minute)
		if err = errors.Join(err, l.Say(b, time.Minute)); err != nil {
			t.Error(err)
		}
		if r.IntN(3) == 0 || i == talks-1 {
			if err := l.Commit(time.Minute); err != nil {
				t.Error(err)
			}
		}
	}
}

func listen(t *testing.T, l *Link, writes bool, arena []byte) {
	for i := range uint64(talks) {
		var n [4]byte
		if _, err := io.ReadFull(l, n[:]); err != nil {
			t.Error(err)
			return
		}
		b := make([]byte, binary.LittleEndian.Uint32(n[:]))
		if _, err := io.ReadFull(l, b); err != nil {
			t.Error(err)
			return
		}
		if want := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, i), len(b)/8); !bytes.Equal(b, want) {
			t.Errorf("message %d has other octets than were said", i)
			return
		}
		if want := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, i), 2048/8); writes && !bytes.Equal(arena[i*2048:][:2048], want) {
			t.Errorf("message %d is heard before its octets are in the memory", i)
			return
		}
	}
}

// TestFetch: what is read comes to the same place, and who reads without a grant loses his connection.
func TestFetch(t *testing.T) {
	for name, open := range providers {
		t.Run(name, func(t *testing.T) {
			a, b := open(t), open(t)
			x, y := link(t, a, b)
			a.grants(t, x, y, 1<<40|9)
			copy(a.Bytes()[4096:], "what it has")
			done := make(chan struct{})
			check(t, y.Fetch(Run{Addr: 4096, Len: 4096, Grant: 1<<40 | 9}, func() { close(done) }))
			<-done
			if !bytes.Equal(b.Bytes()[:12<<10], a.Bytes()[:12<<10]) {
				t.Error("other octets, or elsewhere")
			}
			a.Cut()
			// What was read has come, and may not have left a for good: then the cut has ended the connection.
			_ = y.Fetch(Run{Addr: 0, Len: 4096, Grant: 1<<40 | 9}, func() { t.Error("it was read") })
			<-x.gone
			<-y.gone
			a.close(t, x)
			b.close(t, y)
		})
	}
}

// TestNoGrant: who writes without a grant, by a former one, or by somebody else's, changes nothing and loses his connection. Others go on.
func TestNoGrant(t *testing.T) {
	for name, grant := range map[string]func(t *testing.T, a *node, x, y, other, third *Link){
		"never": func(t *testing.T, a *node, _, y, _, _ *Link) {
			if a.tells { // y guesses
				y.Learn(Key{STag: 0x123400, Base: Base})
			}
		},
		"not any more": func(t *testing.T, a *node, x, y, _, _ *Link) { a.grants(t, x, y, 7); a.Cut() },
		"another number": func(t *testing.T, a *node, x, y, _, _ *Link) {
			a.grants(t, x, y, 7)
			if a.tells { // or the same grant would go on
				a.Cut()
			}
			if _, err := a.Grant(x, 8); (err != nil) != a.tells {
				t.Error(err)
			}
		},
		"another node": func(t *testing.T, a *node, x, y, other, third *Link) {
			a.grants(t, x, y, 6)
			a.grants(t, other, third, 7)
		},
		"another's key": func(t *testing.T, a *node, x, y, other, third *Link) {
			a.grants(t, other, third, 7)
			if a.tells {
				y.Learn(*third.theirs.Load())
			}
		},
	} {
		for at, open := range providers {
			t.Run(name+" over "+at, func(t *testing.T) {
				a, b := open(t), open(t)
				x, y := link(t, a, b)
				other, third := link(t, a, b)
				grant(t, a, x, y, other, third)
				copy(b.Bytes(), "octets")
				if err := errors.Join(y.Put(Run{Len: 4096, Grant: 7}, time.Minute), y.Commit(time.Minute)); err != nil && !a.tells {
					t.Error(err) // the connection has not ended yet
				}
				<-x.gone
				<-y.gone
				if !bytes.Equal(a.Bytes(), make([]byte, arenaLen)) {
					t.Error("octets have come")
				}
				check(t, errors.Join(third.Say([]byte("I am here"), time.Minute), third.Commit(time.Minute)))
				if n, err := other.Read(make([]byte, 99)); n != 9 || err != nil {
					t.Errorf("another connection: %d, %v", n, err)
				}
				a.close(t, x, other)
				b.close(t, y, third)
			})
		}
	}
}

// A number of a grant comes again after 256 of them: no connection has two grants that are the same to its peer.
func TestGrantsRunOut(t *testing.T) {
	a, b := overLocal(t), overLocal(t)
	x, y := link(t, a, b)
	a.grants(t, x, y, 100)
	a.grants(t, x, y, 355)
	if _, err := a.Grant(x, 356); err == nil {
		t.Error("a connection has the name of a former grant again")
	}
	a.close(t, x)
	b.close(t, y)
}

// reads is how many Reads a raw node may have outstanding: their Responses are more than sockets hold.
const reads = 64

// raw is a node that says by itself what goes over the wire.
func raw(t *testing.T, i Invitation) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", i.Address)
	check(t, err)
	f := ddp.StartFrame{CRC: true, Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{ORD: reads}, PrivateData: Name{Index: firstIndex}.append(append([]byte(magic), i.Secret[:]...))}
	_, err = c.Write(f.AppendTo(nil))
	check(t, err)
	head := make([]byte, ddp.StartFrameHeader)
	_, err = io.ReadFull(c, head)
	check(t, err)
	n, err := ddp.StartFrameLen(head, true)
	check(t, err)
	_, err = io.ReadFull(c, make([]byte, n-len(head)))
	check(t, err)
	return c
}

// withRaw makes a link between a node and a raw one, to which the arena is granted.
func withRaw(t *testing.T, a *node) (*Link, net.Conn) {
	t.Helper()
	o, i := a.Offer(a.Arena)
	var x *Link
	var wg sync.WaitGroup
	wg.Go(func() { x, _ = o.Accept(context.Background()) })
	c := raw(t, i)
	wg.Wait()
	_, err := a.Grant(x, 7)
	check(t, err)
	return x, c
}

// TestCutInTheMiddle: a node stops in the middle of a Write, and is cut. When Cut returns the memory is this node's: what comes of the
// Write after that is not placed.
func TestCutInTheMiddle(t *testing.T) {
	a := overIWARP(t)
	x, c := withRaw(t, a)
	const n = 48 << 10
	fpdu := ddp.AppendTagged(nil, ddp.Tagged{Control: new(ddp.Format).Control(ddp.Write, true), STag: uint32(a.name.stag(7)), TO: Base, Payload: n})
	fpdu = ddp.AppendFPDUTrailer(append(fpdu, bytes.Repeat([]byte{1}, n)...), 0)
	_, err := c.Write(fpdu[:len(fpdu)/2])
	check(t, err)
	for a.Bytes()[0] != 1 { // the memory is not the heap's: the race detector does not look
		runtime.Gosched()
	}
	a.Cut()
	clear(a.Bytes())
	_, _ = c.Write(fpdu[len(fpdu)/2:]) // it is reset
	<-x.gone
	if !bytes.Equal(a.Bytes(), make([]byte, arenaLen)) {
		t.Error("octets came after the cut")
	}
	check(t, c.Close())
	a.close(t, x)
}

// lines are those of a log.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestCutAfterOffence: a node reads, takes nothing of what it gets, and breaks the protocol. Cut does not wait until it has heard of that.
func TestCutAfterOffence(t *testing.T) {
	log := make(lines, 100)
	d, err := iwarp.Open(iwarp.Config{LingerTime: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))})
	check(t, err)
	a := newNode(t, d, "127.0.0.1:0")
	x, c := withRaw(t, a)
	var b []byte
	for msn := range uint32(reads) {
		b = append(b, ddp.AppendFPDUTrailer(ddp.AppendReadRequest(nil, msn+1, ddp.RDMARead{Size: arenaLen, SrcSTag: uint32(a.name.stag(7)), SrcTO: Base}), 0)...)
	}
	_, err = c.Write(append(b, ddp.AppendFPDUTrailer(ddp.AppendReadRequest(nil, 0, ddp.RDMARead{}), 0)...))
	check(t, err)
	for !strings.Contains(<-log, "broke the protocol") {
	}
	cut := make(chan struct{})
	go func() {
		a.Cut()
		close(cut)
	}()
	select {
	case <-cut:
	case <-time.After(time.Minute):
		t.Error("Cut waits for the node")
	}
	check(t, c.Close())
	<-cut
	a.close(t, x)
}

// TestStrangers: without a secret that was given out, or with one that was used, nobody has a queue pair; and who has an invitation
// notices that somebody else answers.
func TestStrangers(t *testing.T) {
	a, b := overIWARP(t), overIWARP(t)
	o, i := a.Offer(a.Arena)
	guess := i
	guess.Secret[31]++
	refused := func(what string, i Invitation) {
		t.Helper()
		_, err := b.Connect(context.Background(), b.Arena, i)
		if _, ok := errors.AsType[*rdma.RejectedError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a guess", guess)
	qp, err := newLink(b.Fabric, b.Arena, Name{})
	check(t, err)
	if err := b.card.Connect(context.Background(), qp.qp, i.Address, rdma.ConnParams{}); err == nil {
		t.Error("who shows nothing is connected")
	}
	check(t, qp.Release())

	var x *Link
	var wg sync.WaitGroup
	wg.Go(func() { x, _ = o.Accept(context.Background()) })
	y, err := b.Connect(context.Background(), b.Arena, i)
	check(t, err)
	wg.Wait()
	refused("the same again", i)

	o, i = a.Offer(a.Arena)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := o.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	refused("too late", i)

	o, i = a.Offer(a.Arena)
	i.Proof[0]++
	var z *Link
	wg.Go(func() { z, _ = o.Accept(context.Background()) })
	if l, err := b.Connect(context.Background(), b.Arena, i); err == nil {
		t.Errorf("somebody answers who does not know the proof, and is taken: %v", l)
	}
	wg.Wait()
	if len(a.offers) != 0 {
		t.Errorf("%d offers are left", len(a.offers))
	}
	a.close(t, x, z)
	b.close(t, y)
}

// TestPatience: who takes nothing loses his connection, and what waits for him is bounded.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := overLocal(t), overLocal(t)
		x, y := link(t, a, b)
		began, said := time.Now(), 0
		var err error
		for ; err == nil; said++ {
			err = errors.Join(x.Say(make([]byte, 1000), 2*time.Second), x.Commit(2*time.Second))
		}
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 2*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		if most := (Messages*MessageLen + SendLen) / 1000; said > most {
			t.Errorf("%d messages have found room, of %d", said, most)
		}
		<-y.gone
		a.close(t, x)
		b.close(t, y)
	})
}

// TestInFlight: what is posted and has not left is bounded, though there is more to say: what overtakes others waits behind no more.
func TestInFlight(t *testing.T) {
	a := overIWARP(t)
	o, i := a.Offer(a.Arena)
	var x *Link
	var wg sync.WaitGroup
	wg.Go(func() { x, _ = o.Accept(context.Background()) })
	c := raw(t, i) // reads nothing
	wg.Wait()
	_, err := c.Write(ddp.AppendFPDUTrailer(ddp.AppendTagged(nil, ddp.Tagged{Control: new(ddp.Format).Control(ddp.Write, true), STag: 1, TO: 0}), 0))
	check(t, err) // who has accepted may send now
	wg.Go(func() {
		for err := error(nil); err == nil; {
			err = errors.Join(x.Put(Run{Len: 100 << 10}, time.Hour), x.Commit(time.Hour))
		}
	})
	for flying, full := 0, false; !full; runtime.Gosched() {
		x.mu.Lock()
		if flying, full = x.flying, x.short; flying > InFlight {
			t.Errorf("%d octets are posted and have not left", flying)
			full = true
		}
		x.mu.Unlock()
	}
	x.Abort()
	wg.Wait()
	check(t, c.Close())
	a.close(t, x)
}

// Two arenas of a node have different names, and those of other nodes the same.
func TestNames(t *testing.T) {
	a, b := overLocal(t), overLocal(t)
	second, err := a.NewArena(4096, "disk")
	check(t, err)
	if a.name != b.name || second.name.Index == a.name.Index {
		t.Errorf("%+v, %+v, %+v", a.name, b.name, second.name)
	}
	check(t, second.Free())
	third, err := a.NewArena(4096, "disk")
	check(t, err)
	if third.name != second.name {
		t.Errorf("%+v, and before %+v", third.name, second.name)
	}
	check(t, third.Free())
	a.close(t)
	b.close(t)
}
