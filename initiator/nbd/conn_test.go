package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(envLoad); text != "" {
		if err := beKernel(text); err != nil {
			fmt.Fprintln(os.Stderr, "kernel:", err)
			os.Exit(1)
		}
		return
	}
	targettest.Main(m)
}

// tb is what rapid.T and testing.TB have in common, as far as it is used here.
type tb interface {
	Helper()
	Fatal(args ...any)
}

func check(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// model is a disk in memory, and its unit. It executes commands in an order of its own.
type model struct {
	mu     sync.Mutex
	bytes  []byte
	rnd    *rand.Rand
	queue  []*initiator.Command
	most   int
	busy   int // how many commands are told that the unit is busy
	bad    int64
	direct bool // executes commands in Start
	fua    int  // WRITEs with it
	synced int
	starts atomic.Uint64
	work   chan struct{} // something is queued; capacity 1
	conn   *Conn         // to be flushed when commands have ended
}

const modelBlock = 512

func newModel(size int) *model {
	return &model{bytes: make([]byte, size), rnd: rand.New(rand.NewPCG(1, 2)), most: 64 << 10, bad: -1, work: make(chan struct{}, 1)}
}

func (m *model) Size() int64      { return int64(len(m.bytes)) }
func (m *model) BlockSize() int   { return modelBlock }
func (m *model) MaxTransfer() int { return m.most }

func (m *model) Prepare(c *initiator.Command, off int64) error {
	n := len(c.In) + len(c.Out)
	if off < 0 || off%modelBlock != 0 || n%modelBlock != 0 || off > m.Size()-int64(n) {
		return errors.New("not whole blocks of the disk")
	}
	c.CDB = append(c.CDB[:0], make([]byte, 16)...)
	if c.CDB[0] = 0x88; len(c.Out) > 0 {
		c.CDB[0] = 0x8a
	}
	binary.BigEndian.PutUint64(c.CDB[2:], uint64(off/modelBlock))
	return nil
}

func (m *model) PrepareFlush(c *initiator.Command) { c.CDB = append(c.CDB[:0], 0x91) }

func (m *model) PrepareUnmap(c *initiator.Command, list []byte, off, n int64) error {
	c.CDB = append(c.CDB[:0], 0x42)
	binary.BigEndian.PutUint64(list, uint64(off))
	binary.BigEndian.PutUint64(list[8:], uint64(n))
	c.In, c.Out = nil, list
	return nil
}

// start is Disk.Start.
func (m *model) start(cs ...*initiator.Command) {
	m.starts.Add(1)
	m.mu.Lock()
	m.queue = append(m.queue, cs...)
	m.mu.Unlock()
	if m.direct {
		m.run()
		return
	}
	select {
	case m.work <- struct{}{}:
	default:
	}
}

// run executes what is queued.
func (m *model) run() {
	for {
		m.mu.Lock()
		if len(m.queue) == 0 {
			m.mu.Unlock()
			return
		}
		i := m.rnd.IntN(len(m.queue))
		c := m.queue[i]
		m.queue[i] = m.queue[len(m.queue)-1]
		m.queue = m.queue[:len(m.queue)-1]
		m.execute(c)
		m.mu.Unlock()
		c.Done(c)
		if m.conn != nil && !m.direct {
			m.conn.Flush()
		}
	}
}

func (m *model) execute(c *initiator.Command) {
	c.Err, c.Status = nil, initiator.StatusGood
	if m.busy > 0 {
		m.busy--
		c.Status = initiator.StatusBusy
		return
	}
	switch c.CDB[0] {
	case 0x88, 0x8a:
		off := int64(binary.BigEndian.Uint64(c.CDB[2:])) * modelBlock
		if n := int64(len(c.In) + len(c.Out)); m.bad >= off && m.bad < off+n {
			c.Status, c.Sense = initiator.StatusCheckCondition, []byte{0x72, 3, 0x11, 0} // MEDIUM ERROR, read error
			return
		}
		copy(c.In, m.bytes[off:])
		copy(m.bytes[off:], c.Out)
		if c.CDB[1]&8 != 0 {
			m.fua++
		}
	case 0x42:
		off, n := binary.BigEndian.Uint64(c.Out), binary.BigEndian.Uint64(c.Out[8:])
		clear(m.bytes[off : off+n])
	case 0x91:
		m.synced++
	}
}

// kernelEnd is the kernel's end of a socket.
type kernelEnd struct {
	t tb
	c *net.UnixConn
}

// send sends a request, with data if it is a WRITE.
func (k *kernelEnd) send(r Request, data []byte) {
	k.t.Helper()
	_, err := k.c.Write(append(r.AppendTo(nil), data...))
	check(k.t, err)
}

// receive returns a reply, and its data, whose length want tells.
func (k *kernelEnd) receive(want func(cookie uint64) int) (Reply, []byte) {
	k.t.Helper()
	b := make([]byte, ReplyLen)
	_, err := io.ReadFull(k.c, b)
	check(k.t, err)
	r, err := ParseReply(b)
	check(k.t, err)
	if r.Errno != 0 {
		return r, nil
	}
	data := make([]byte, want(r.Cookie))
	_, err = io.ReadFull(k.c, data)
	check(k.t, err)
	return r, data
}

func none(uint64) int { return 0 }

// serve begins to serve a disk of the model. stop ends it and returns what Serve does.
func serve(t tb, m *model, d Disk) (c *Conn, k *kernelEnd, stop func() error) {
	t.Helper()
	ours, fd, err := socketPair()
	check(t, err)
	f := os.NewFile(uintptr(fd), "")
	theirs, err := net.FileConn(f)
	check(t, err)
	_ = f.Close()
	d.Unit = func() Unit { return m }
	d.Start = m.start
	d.Alloc = func(n int) (*initiator.Memory, []byte, error) { return nil, make([]byte, n), nil }
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c, err = NewConn(ours, d)
	check(t, err)
	m.conn = c
	ended := make(chan error, 1)
	go func() {
		err := c.Serve()
		c.Shut()
		ended <- err
	}()
	k = &kernelEnd{t: t, c: theirs.(*net.UnixConn)}
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			_ = theirs.Close()
			err = <-ended
			c.Close()
		})
		return err
	}
	return c, k, stop
}

// Many random requests at a time, whose commands end in any order, change the disk as they change its model. Requests
// that overlap are not outstanding together.
func TestRequests(t *testing.T) {
	const size, unit = 4 << 20, 16 << 10
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(size)
		m.busy = rapid.IntRange(0, 2).Draw(t, "busy")
		m.most = rapid.SampledFrom([]int{8 << 10, 64 << 10, 1 << 20}).Draw(t, "most")
		unmap := initiator.Unmapping{Most: 24 << 10, Granularity: 8 << 10, Alignment: 4 << 10}
		_, k, stop := serve(t, m, Disk{Unmap: unmap, Patience: time.Hour})
		defer func() { _ = stop() }()
		want := make([]byte, size)
		seed := rapid.Uint64().Draw(t, "seed")
		stream, chacha := rand.New(rand.NewPCG(seed, 0)), rand.NewChaCha8([32]byte{byte(seed)})
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			// Each request has a part of the disk for itself.
			n := rapid.IntRange(1, 24).Draw(t, "requests")
			lengths := make(map[uint64]Request)
			var out []byte
			at := uint64(0)
			flushes := 0
			for i := range n {
				at += uint64(stream.IntN(8)) * modelBlock
				length := uint64(1+stream.IntN(unit/modelBlock)) * modelBlock
				if stream.IntN(16) == 0 {
					length = uint64(1+stream.IntN(1<<20/modelBlock)) * modelBlock
				}
				if at+length > size {
					break
				}
				r := Request{Cookie: uint64(i) | stream.Uint64()<<32, Offset: at, Length: uint32(length)}
				switch stream.IntN(5) {
				case 0, 1:
					r.Type = Read
				case 2, 3:
					r.Type, r.Flags = Write, uint16(stream.IntN(2))
				case 4:
					if r.Type = Trim; stream.IntN(2) == 0 {
						r.Type, r.Offset, r.Length = Flush, 0, 0
						flushes++
					}
				}
				lengths[r.Cookie] = r
				out = r.AppendTo(out)
				if r.Type == Write {
					_, _ = chacha.Read(want[at : at+length])
					out = append(out, want[at:at+length]...)
				}
				at += length
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for b := out; len(b) > 0; {
					piece := min(1+stream.IntN(100_000), len(b))
					if _, err := k.c.Write(b[:piece]); err != nil {
						t.Errorf("%v", err)
						return
					}
					b = b[piece:]
				}
			})
			over := make(chan struct{})
			wg.Go(func() {
				for {
					select {
					case <-over:
						return
					case <-m.work:
						m.run()
					}
				}
			})
			reads := make(map[uint64][]byte)
			for left := len(lengths); left > 0; left-- {
				r, data := k.receive(func(cookie uint64) int {
					q, ok := lengths[cookie]
					if !ok {
						t.Errorf("a reply to %#x", cookie)
					}
					if q.Type != Read {
						return 0
					}
					return int(q.Length)
				})
				q := lengths[r.Cookie]
				delete(lengths, r.Cookie)
				if r.Errno != 0 {
					t.Errorf("%v fails", q)
				}
				if q.Type == Read {
					reads[q.Offset] = data
				}
				if q.Type == Trim {
					first := (int64(q.Offset)-unmap.Alignment+unmap.Granularity-1)/unmap.Granularity*unmap.Granularity + unmap.Alignment
					last := (int64(q.Offset)+int64(q.Length)-unmap.Alignment)/unmap.Granularity*unmap.Granularity + unmap.Alignment
					if int64(q.Offset)+int64(q.Length) == size {
						last = size
					}
					if first < last {
						clear(want[first:last])
					}
				}
			}
			close(over)
			wg.Wait()
			for off, data := range reads {
				if !bytes.Equal(data, want[off:int(off)+len(data)]) {
					t.Errorf("READ of %d bytes at %d: other bytes", len(data), off)
				}
			}
			if !bytes.Equal(m.bytes, want) {
				t.Errorf("the disk has other bytes")
			}
			if m.synced != flushes {
				t.Errorf("%d SYNCHRONIZE CACHE for %d FLUSH", m.synced, flushes)
			}
			m.synced = 0
		}
	})
}

// A request allocates nothing; a batch of requests costs one read, one write and one Start.
func TestBatch(t *testing.T) {
	m := newModel(1 << 20)
	m.direct = true
	c, k, stop := serve(t, m, Disk{Patience: time.Hour})
	defer stop()
	const depth = 16
	var batch []byte
	for i := range depth {
		r := Request{Type: Read, Cookie: uint64(i), Offset: uint64(i) * 4096, Length: 4096}
		if i%2 == 1 {
			r.Type, r.Flags = Write, FlagFUA
		}
		batch = r.AppendTo(batch)
		if r.Type == Write {
			batch = append(batch, make([]byte, 4096)...)
		}
	}
	replies := make([]byte, depth*ReplyLen+depth/2*4096)
	round := func() {
		if _, err := k.c.Write(batch); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(k.c, replies); err != nil {
			t.Error(err)
		}
	}
	round()
	reads, writes, starts := c.reads.Load(), c.writes.Load(), m.starts.Load()
	const rounds = 100
	allocations := testing.AllocsPerRun(rounds-1, round)
	if allocations >= 1 {
		t.Errorf("%v allocations per batch of %d requests", allocations, depth)
	}
	// The kernel may give a batch in two pieces, as it is scheduled.
	if r, w, s := c.reads.Load()-reads, c.writes.Load()-writes, m.starts.Load()-starts; r > rounds*3/2 || w > rounds*3/2 || s > rounds*3/2 {
		t.Errorf("%d batches took %d reads, %d writes and %d calls of Start", rounds, r, w, s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if want := (rounds + 1) * depth / 2; m.fua != want {
		t.Errorf("%d WRITEs with FUA, %d were asked for", m.fua, want)
	}
}

// The data of long WRITEs is not copied after it was read.
func TestLongWrites(t *testing.T) {
	const n, size = 6, 256 << 10
	m := newModel(n * size)
	m.most = size
	c, k, stop := serve(t, m, Disk{Patience: time.Hour})
	defer stop()
	want := make([]byte, n*size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	send := func(i int) {
		r := Request{Type: Write, Cookie: uint64(i), Offset: uint64(i) * size, Length: size}
		if _, err := k.c.Write(append(r.AppendTo(nil), want[i*size:][:size]...)); err != nil {
			t.Error(err)
		}
	}
	await := func(n int) {
		for queued := 0; queued < n; {
			<-m.work
			m.mu.Lock()
			queued = len(m.queue)
			m.mu.Unlock()
		}
	}
	send(0) // only then is it known to be long
	await(1)
	before := c.moved.Load()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; i < n; i++ {
			send(i)
		}
	})
	await(n)
	m.run()
	for range n {
		k.receive(none)
	}
	wg.Wait()
	if !bytes.Equal(m.bytes, want) {
		t.Error("other data")
	}
	// The beginning of another one may come along.
	if moved := c.moved.Load() - before; moved > (n-1)*spare {
		t.Errorf("%d bytes of %d were copied", moved, n*size)
	}
}

// A command that the unit refuses ends in EIO, and the log says why; other requests go on.
func TestErrors(t *testing.T) {
	var said lockedBuffer
	m := newModel(1 << 20)
	m.direct = true
	m.bad = 8192
	_, k, stop := serve(t, m, Disk{Patience: time.Hour, Log: slog.New(slog.NewTextHandler(&said, nil))})
	defer stop()
	for i, c := range []struct {
		r    Request
		says string
	}{
		{Request{Type: Read, Offset: 4096, Length: 8192}, "lba=8"},
		{Request{Type: Read, Offset: 4096, Length: 8192}, "MEDIUM ERROR, read error"},
		{Request{Type: Read, Offset: 1 << 20, Length: 4096}, "whole blocks"},
		{Request{Type: Read, Offset: 100, Length: 4096}, "whole blocks"},
		{Request{Type: Read, Offset: 1 << 63, Length: 4096}, "whole blocks"},
		{Request{Type: Trim, Offset: 0, Length: 4096}, "does not unmap"},
		{Request{Type: Trim, Offset: 1 << 20, Length: 4096}, "beyond the end"},
		{Request{Type: 77}, "no such request"},
	} {
		c.r.Cookie = uint64(i)
		k.send(c.r, nil)
		r, _ := k.receive(none)
		if r.Errno != errnoIO || r.Cookie != uint64(i) {
			t.Errorf("%+v: %+v", c.r, r)
		}
		if text := said.take(); !strings.Contains(text, c.says) {
			t.Errorf("%+v: the log says %q", c.r, text)
		}
	}
	k.send(Request{Type: Write, Offset: 0, Length: 512, Cookie: 99}, make([]byte, 512))
	if r, _ := k.receive(none); r.Errno != 0 || r.Cookie != 99 {
		t.Errorf("afterwards: %+v", r)
	}
}

// A TRIM of a unit that unmaps little at a time takes a bounded number of commands: the rest of the range stays as it is.
func TestLongTrim(t *testing.T) {
	m := newModel(1 << 20)
	m.direct = true
	c, k, stop := serve(t, m, Disk{Unmap: initiator.Unmapping{Most: 512, Granularity: 512}, Patience: time.Hour})
	defer stop()
	k.send(Request{Type: Trim, Length: 1 << 20}, nil)
	if r, _ := k.receive(none); r.Errno != 0 {
		t.Errorf("%+v", r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, task := range c.tasks {
		if n := len(task.parts); n > maxUnmaps {
			t.Errorf("%d commands", n)
		}
	}
}

// A unit that is busy for longer than the patience is an error.
func TestPatience(t *testing.T) {
	m := newModel(1 << 20)
	m.direct = true
	m.busy = 1 << 30
	_, k, stop := serve(t, m, Disk{Patience: 1})
	defer stop()
	k.send(Request{Type: Flush}, nil)
	if r, _ := k.receive(none); r.Errno != errnoIO {
		t.Errorf("%+v", r)
	}
}

// A command is tried again after an error that passes, and not after others.
func TestPasses(t *testing.T) {
	for _, c := range []struct {
		e    initiator.StatusError
		want bool
	}{
		{initiator.StatusError{Status: initiator.StatusBusy}, true},
		{initiator.StatusError{Status: initiator.StatusTaskSetFull}, true},
		{initiator.StatusError{Status: initiator.StatusReservationConflict}, false},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 0xb, ASC: 0x4b}, true},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 2, ASC: 4, ASCQ: 0xa}, true},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 2, ASC: 4, ASCQ: 0xc}, false},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 2, ASC: 0x3a}, false},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 6, ASC: 0x29}, true},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 6, ASC: 0x28}, false},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 3, ASC: 0x11}, false},
		{initiator.StatusError{Status: initiator.StatusCheckCondition, Key: 7, ASC: 0x27}, false},
	} {
		if got := passes(&c.e); got != c.want {
			t.Errorf("%v: %v", &c.e, got)
		}
	}
}

// A conversation that breaks off or makes no sense ends, and leaves nothing behind.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		say  []byte
		want string
	}{
		"disconnect":        {(&Request{Type: Disconnect}).AppendTo(nil), ""},
		"closed":            {nil, ErrShut.Error()},
		"part of a header":  {make([]byte, 0, 1)[:0], ErrShut.Error()},
		"another magic":     {make([]byte, RequestLen), "begins with"},
		"part of a WRITE":   {(&Request{Type: Write, Length: 1 << 20}).AppendTo(nil), ErrShut.Error()},
		"too long":          {(&Request{Type: Read, Length: maxLength + 1}).AppendTo(nil), "is the most"},
		"too many requests": {bytes.Repeat((&Request{Type: Flush}).AppendTo(nil), maxTasks+1), "at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			m := newModel(1 << 20)
			ours, fd, err := socketPair()
			check(t, err)
			n, err := NewConn(ours, Disk{
				Unit: func() Unit { return m }, Start: m.start, Log: slog.New(slog.DiscardHandler),
				Alloc: func(n int) (*initiator.Memory, []byte, error) { return nil, make([]byte, n), nil },
			})
			check(t, err)
			m.conn = n
			ended := make(chan error, 1)
			go func() { ended <- n.Serve() }()
			_, _ = unix.Write(fd, c.say)
			check(t, unix.Shutdown(fd, unix.SHUT_WR))
			err = <-ended
			if text := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(text, c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			n.Shut()
			m.run() // what was under way ends now
			n.Close()
			_ = unix.Close(fd)
		})
	}
}

// When the kernel has shut a socket, nothing begins that comes through another one of the device: it may be what went through the first, and hangs.
func TestAnotherIsShut(t *testing.T) {
	var conns []*Conn
	var fds []int
	m := newModel(1 << 20)
	for range 2 {
		ours, fd, err := socketPair()
		check(t, err)
		n, err := NewConn(ours, Disk{
			Unit: func() Unit { return m }, Start: m.start, Log: slog.New(slog.DiscardHandler),
			Alloc: func(n int) (*initiator.Memory, []byte, error) { return nil, make([]byte, n), nil },
		})
		check(t, err)
		conns, fds = append(conns, n), append(fds, fd)
	}
	c := conns[1]
	c.Watch(conns)
	check(t, unix.Shutdown(fds[0], unix.SHUT_RDWR))
	_, err := unix.Write(fds[1], append((&Request{Type: Write, Length: 512}).AppendTo(nil), make([]byte, 512)...))
	check(t, errors.Join(err, unix.Shutdown(fds[1], unix.SHUT_WR)))
	if err := c.Serve(); !errors.Is(err, ErrShut) || m.starts.Load() != 0 {
		t.Errorf("%v, %d commands begin", err, m.starts.Load())
	}
	for i, c := range conns {
		c.Shut()
		m.run()
		c.Close()
		_ = unix.Close(fds[i])
	}
}

// A kernel that does not read its replies blocks nobody, and gets them when it reads again. Then one of the two ends
// closes the socket while replies are on their way.
func TestFull(t *testing.T) {
	for name, end := range map[string]func(*Conn){"the kernel's": func(*Conn) {}, "ours": (*Conn).Shut} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			m := newModel(1 << 20)
			m.direct = true
			c, k, stop := serve(t, m, Disk{Patience: time.Hour})
			const n, length = 128, 128 << 10 // more than the sockets hold
			for i := range n {
				k.send(Request{Type: Read, Cookie: uint64(i), Length: length}, nil)
			}
			full := func() {
				for full := false; !full; {
					c.mu.Lock()
					full = c.blocked
					c.mu.Unlock()
				}
			}
			full()
			for range n / 4 {
				k.receive(func(uint64) int { return length })
			}
			full()
			m.mu.Lock()
			m.busy = 1
			m.mu.Unlock()
			k.send(Request{Type: Flush, Cookie: n}, nil)
			for busy := 1; busy > 0; { // then it is tried again, a while after the end
				m.mu.Lock()
				busy = m.busy
				m.mu.Unlock()
			}
			end(c)
			_ = stop()
		})
	}
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	l.b.Reset()
	return s
}

// Whatever the kernel sends, each request is answered, or the conversation ends.
func FuzzConn(f *testing.F) {
	w := (&Request{Type: Write, Length: 512}).AppendTo(nil)
	f.Add(append(w, make([]byte, 512)...))
	f.Add((&Request{Type: Read, Length: 4096, Offset: 512}).AppendTo(nil))
	f.Add((&Request{Type: Trim, Length: 1 << 31, Offset: 1 << 62}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newModel(1 << 16)
		m.direct = true
		_, k, stop := serve(t, m, Disk{Unmap: initiator.Unmapping{Most: 4096, Granularity: 512}})
		_, _ = k.c.Write(b)
		_ = k.c.CloseWrite()
		_, _ = io.Copy(io.Discard, k.c)
		_ = stop()
	})
}
