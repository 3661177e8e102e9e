package card

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/nic/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is what a program shares with the card, whose loops do not run: the test has them look.
type program struct {
	t       testing.TB
	c       *client
	there   *net.UnixConn // the program's end of the socket
	address string        // where its device listens
	// What both share is mapped once more, as in another process.
	ctl    *shm.Control
	queues map[uint32]*shm.Queue
	failed atomic.Bool // the card has said that something is left behind
}

// Enabled, Handle, WithAttrs and WithGroup make the program the handler of the card's log.
func (p *program) Enabled(context.Context, slog.Level) bool { return true }

func (p *program) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		p.failed.Store(true)
	}
	return nil
}
func (p *program) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *program) WithGroup(string) slog.Handler      { return p }

// The numbers of what a program has: two queue pairs, which may be connected with one another, with a receive queue each.
const (
	itsDomain = 1
	itsArena  = 1
	itsDepth  = 64
	pageOf    = 4 * shm.PageSize // octets of the arena
	first     = 2
	second    = 4
)

func socketpair(t testing.TB) (here, there *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		check(t, err)
		check(t, f.Close())
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newProgram returns a program with a device of iwarp, or of local.
func newProgram(t testing.TB, connected, isLocal bool) *program {
	t.Helper()
	p := &program{t: t, queues: make(map[uint32]*shm.Queue)}
	here, there := socketpair(t)
	p.there = there
	var err error
	config := Config{Memory: 8 << 20, Logger: slog.New(p)}
	p.address = "127.0.0.1:0"
	if isLocal {
		config.Open = func(Peer) (rdma.Device, error) { return local.Open(local.Config{}), nil }
		p.address = "pair:0"
	}
	p.c, err = newClient(New(config), here, Peer{})
	check(t, err)
	c := p.c
	_, _, err = c.newDomain(&shm.Message{Number: itsDomain}, nil)
	check(t, err)
	seg, fd, err := shm.Create("program", pageOf)
	check(t, err)
	_, _, err = c.newArena(&shm.Message{Number: itsArena, Size: pageOf}, []int{fd})
	check(t, err)
	check(t, seg.Close())
	shm.CloseAll([]int{fd})
	check(t, p.newPairs())
	seg, err = shm.Map(c.fd, shm.ControlLen)
	check(t, err)
	p.ctl = shm.NewControl(seg)
	c.mu.Lock()
	_, err = c.register(&shm.Descriptor{STag: itsDomain, Offset: 1, Access: uint8(rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite)},
		shm.Piece{Region: itsArena | shm.Arena, Len: 2 * shm.PageSize})
	c.mu.Unlock()
	check(t, err)
	if connected {
		p.connect()
	}
	return p
}

// newPairs makes the queue pairs, or none.
func (p *program) newPairs() error {
	for _, n := range []uint32{first, second} {
		_, fds, err := p.c.newPair(&shm.Message{Number: n, Domain: itsDomain, Depth: itsDepth, Receives: itsDepth, MaxSGE: 4}, nil)
		if err != nil {
			shm.CloseAll(fds)
			if n == second {
				p.closePair(first)
			}
			return err
		}
		for i, fd := range fds {
			seg, err := shm.Map(fd, shm.QueueLen(itsDepth))
			check(p.t, err)
			p.queues[n+uint32(i)] = shm.NewQueue(seg, itsDepth)
		}
		shm.CloseAll(fds)
	}
	return nil
}

// closePair closes a queue pair.
func (p *program) closePair(n uint32) {
	_, _, err := p.c.closePair(&shm.Message{Number: n}, nil)
	check(p.t, err)
	for _, q := range []uint32{n, n + 1} {
		check(p.t, p.queues[q].Close())
		delete(p.queues, q)
	}
}

// connect connects the queue pairs with one another.
func (p *program) connect() {
	t, c := p.t, p.c
	l, err := c.dev.Listen(p.address)
	check(t, err)
	params := rdma.ConnParams{
		InitiatorDepth: 4, ResponderResources: 4, OneShot: &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: 4},
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(p.pair(second).qp, params)
		}
		accepted <- err
	}()
	check(t, c.dev.Connect(context.Background(), p.pair(first).qp, l.Addr().String(), params))
	check(t, <-accepted)
	check(t, l.Close())
	for _, n := range []uint32{first, second} {
		_ = p.pair(n).connected(n == first)
	}
}

func (p *program) pair(n uint32) *pair {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.c.pair(n)
}

// look has the card take what is new.
func (p *program) look() {
	for p.c.hints() {
		p.c.drain()
	}
}

// close is the end of the program.
func (p *program) close() {
	_ = p.there.Close()
	p.c.end(nil)
	p.c.takeDown()
	check(p.t, p.ctl.Close())
	for _, q := range p.queues {
		check(p.t, q.Close())
	}
	if p.failed.Load() {
		p.t.Error("something of the program is left")
	}
}

// script is what a program does, as octets. What is missing is zero.
type script []byte

func (s *script) take(n int) []byte {
	b := make([]byte, n)
	*s = (*s)[copy(b, *s):]
	return b
}

func (s *script) byte() byte    { return s.take(1)[0] }
func (s *script) word() uint32  { return binary.LittleEndian.Uint32(s.take(4)) }
func (s *script) short() uint32 { return uint32(binary.LittleEndian.Uint16(s.take(2))) }
func (s *script) piece() shm.Piece {
	b := s.take(6)
	return shm.Piece{Region: uint32(b[0] & 3), Len: uint32(binary.LittleEndian.Uint16(b[1:])), Offset: uint64(binary.LittleEndian.Uint16(b[3:]))}
}

// Steps of a script. The low three bits name it, the upper ones the queue.
const (
	stepRaw     = iota // 64 octets of a descriptor
	stepWork           // a descriptor that is nearly right
	stepSpill          // 64 octets of what is behind the next descriptor, from a place on
	stepCommand        // a command
	stepTail           // a position
	stepHead           // how far completions are taken
	stepHint
	stepTake // takes a completion as it should
)

// queues are those that a step can name.
var queues = [...]uint32{first, first + 1, second, second + 1}

// run does the script.
func (p *program) run(s script) {
	c := p.c
	for len(s) > 0 && !c.gone.Load() {
		b := s.byte()
		n := queues[b>>3&3]
		q := p.queues[n]
		switch b & 7 {
		case stepRaw:
			at := q.Tail.Load()
			copy(q.Slot(at), s.take(shm.SlotLen))
			q.Tail.Store(at + 1)
			p.hint(n)
		case stepWork:
			at := q.Tail.Load()
			x := s.take(8)
			d := shm.Descriptor{
				Op: x[0] % 16, SGL: x[1] & 3, Memory: uint16(x[1] >> 2 & 3), Flags: binary.LittleEndian.Uint16(x[2:]), STag: uint32(x[4])<<8 | uint32(x[5]),
				Token: uint64(x[6]), Inline: uint32(x[7]), Access: x[6] & 7, Offset: uint64(x[7] & 3),
			}
			d.Put(q.Slot(at))
			for i := range d.Pieces() {
				piece := s.piece()
				if i >= int(d.SGL) && piece.Region == 2 {
					piece.Region = itsArena | shm.Arena
				}
				shm.PutPiece(q.Slot(at), q.Spill(at), i, d.Pieces(), piece)
			}
			q.Tail.Store(at + 1)
			p.hint(n)
		case stepSpill:
			copy(q.Spill(q.Tail.Load())[s.short()%shm.SpillLen:], s.take(shm.SlotLen))
		case stepCommand:
			at := p.ctl.CommandTail.Load()
			x := s.take(5)
			d := shm.Descriptor{Op: x[0] % 7, STag: uint32(x[1] & 3), Token: uint64(x[2]), Offset: uint64(x[3] & 7), Access: x[4] & 31}
			d.Put(p.ctl.Command(at))
			piece := s.piece()
			piece.Region |= shm.Arena
			shm.PutPiece(p.ctl.Command(at), nil, 0, 1, piece)
			p.ctl.CommandTail.Store(at + 1)
			p.hint(shm.CommandQueue)
		case stepTail:
			word := []*shm.Word{q.Tail, p.ctl.CommandTail, p.ctl.HintTail}[s.byte()%3]
			word.Store(word.Load() + s.word())
			p.hint(n)
		case stepHead:
			p.ctl.CompletionHead.Store(p.ctl.CompletionHead.Load() + s.word())
		case stepHint:
			p.hint(s.short())
		case stepTake:
			p.look()
			if h := p.ctl.CompletionHead.Load(); h != p.ctl.CompletionTail.Load() {
				p.ctl.CompletionHead.Store(h + 1)
			}
		}
	}
	p.look()
}

func (p *program) hint(n uint32) {
	at := p.ctl.HintTail.Load()
	p.ctl.Hint(at).Store(n)
	p.ctl.HintTail.Store(at + 1)
}

// FuzzProgram has a program write what it likes to all that it shares with the card. The card does not break, holds no more
// than it is to hold, and the program leaves nothing behind.
func FuzzProgram(f *testing.F) {
	send := []byte{stepWork, byte(rdma.OpSend), 1, byte(rdma.Signaled), 0, 0, 0, 0, 0, 1, 100, 0, 0, 0, 0}
	receive := []byte{stepWork | 3<<3, byte(rdma.OpReceive), 1, 0, 0, 0, 0, 7, 0, 1, 200, 0, 0, 16, 0}
	advertise := []byte{stepWork, byte(rdma.OpSend), 1 | 1<<2, 0, byte(rdma.Advertise >> 8), 1, 0, 2, 0, 1, 100, 0, 0, 0, 0, 2, 0, 16, 0, 0, 0}
	window := []byte{stepCommand, shm.CommandNewWindow, itsDomain, 3, 3, 0, 0, 0, 0, 0, 0, 0}
	bind := []byte{stepWork, byte(rdma.OpBind), 1, byte(rdma.Signaled), 0, 1, 0, 1, 3, 1, 100, 0, 0, 0, 0}
	for _, list := range [][][]byte{
		{receive, send, {stepTake}, {stepTake}},
		{receive, advertise, {stepTake}},
		{window, bind, {stepTake}, {stepTake}},
		{{stepCommand, shm.CommandRegister, itsDomain, 1, 2, 3, 0, 0, 16, 0, 0, 0}, {stepTake}, {stepCommand, shm.CommandDeregister, 0, 1, 2}},
		{{stepTail, 0, 255, 255, 255, 255}},
		{{stepTail, 1, 1, 1}},
		{{stepTail, 2, 0, 0, 1}},
		{send, {stepHead, 0, 0, 0, 1}},
		{{stepSpill, 240, 15, 1, 2, 3}, {stepWork, byte(rdma.OpSend), 15, 0, 0}},
		{{stepHint, 9, 9}, {stepRaw, 1, 255, 255, 255}},
	} {
		for kind := range 4 {
			s := []byte{byte(kind)}
			for _, b := range list {
				s = append(s, b...)
			}
			f.Add(s)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return
		}
		s := script(b)
		kind := s.byte()
		p := newProgram(t, kind&1 != 0, kind&2 != 0)
		defer p.close()
		p.run(s)
		c := p.c
		c.outMu.Lock()
		defer c.outMu.Unlock()
		if len(c.extra) > c.slots+spareExtra {
			t.Errorf("%d answers and completions wait", len(c.extra))
		}
	})
}
