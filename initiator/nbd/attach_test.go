package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

const iqn = "iqn.2026-11.example.oneshot:t"

const config = `
stores:
  disk: {type: file, path: $DIR/disk.img, size: 16MiB}
  other: {type: memory, size: 16MiB}
targets: [{iqn: ` + iqn + `, luns: {0: disk, 1: {store: other, readonly: true}, 2: {store: other, block_size: 4096}}}]
portals: [{transport: tcp, listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
`

// driver stands for the kernel's driver: its device outlives the process that serves it, and requests that were lost
// with a socket are sent again through the next one.
type driver struct {
	t     *testing.T
	dir   string // as /sys/block
	sized chan int64
	gone  chan struct{} // closed by Disconnect
	lost  chan struct{} // one for each socket that has ended

	mu      sync.Mutex
	set     Setting
	socks   []*net.UnixConn
	waiting map[uint64]*asked // without an answer, by cookie
	cookie  uint64
}

// asked is a request of a program's.
type asked struct {
	r    Request
	data []byte // of a WRITE, or for a READ
	sock int
	done chan error
}

func newDriver(t *testing.T) *driver {
	return &driver{
		t: t, dir: t.TempDir(), sized: make(chan int64, 16), gone: make(chan struct{}), lost: make(chan struct{}, 64),
		waiting: make(map[uint64]*asked),
	}
}

// Connect implements Kernel.
func (d *driver) Connect(s Setting) (int, error) {
	if s.Index < 0 {
		s.Index = os.Getpid() % 1000 * 50
	}
	queue := filepath.Join(d.dir, fmt.Sprintf("nbd%d", s.Index), "queue")
	check(d.t, os.MkdirAll(queue, 0o755))
	for name, text := range map[string]string{
		"pid": "1", "backend": s.Backend + "\n", "ro": fmt.Sprint(s.Flags & FlagReadOnly / FlagReadOnly), "size": fmt.Sprint(s.Size / 512),
		"queue/max_sectors_kb": "128",
	} {
		check(d.t, os.WriteFile(filepath.Join(filepath.Dir(queue), name), []byte(text), 0o644))
	}
	d.mu.Lock()
	d.set = s
	d.mu.Unlock()
	d.take(s.Sockets)
	return s.Index, nil
}

// Reconfigure implements Kernel.
func (d *driver) Reconfigure(s Setting) error {
	d.mu.Lock()
	if s.Backend != d.set.Backend || s.Index != d.set.Index {
		d.mu.Unlock()
		return unix.EINVAL
	}
	grown := s.Size != d.set.Size
	d.set.Size = s.Size
	d.mu.Unlock()
	if grown {
		check(d.t, os.WriteFile(filepath.Join(d.dir, fmt.Sprintf("nbd%d", s.Index), "size"), []byte(fmt.Sprint(s.Size/512)), 0o644))
		d.sized <- s.Size
	}
	if len(s.Sockets) > 0 {
		d.take(s.Sockets)
	}
	return nil
}

// Disconnect implements Kernel.
func (d *driver) Disconnect(int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.socks {
		r := Request{Type: Disconnect}
		_, _ = c.Write(r.AppendTo(nil))
		_ = c.Close()
	}
	close(d.gone)
	return nil
}

// take takes new sockets, and sends again what was lost with the last ones.
func (d *driver) take(fds []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.socks = nil
	for i, fd := range fds {
		copied, err := unix.Dup(fd)
		check(d.t, err)
		f := os.NewFile(uintptr(copied), "")
		c, err := net.FileConn(f)
		check(d.t, err)
		_ = f.Close()
		d.socks = append(d.socks, c.(*net.UnixConn))
		go d.read(i, c)
	}
	for _, a := range d.waiting {
		a.sock %= len(d.socks)
		go d.send(a, d.socks[a.sock]) // a full socket must not keep the reader
	}
}

var sending sync.Map // of each socket, a lock

func (d *driver) send(a *asked, c *net.UnixConn) {
	b := a.r.AppendTo(nil)
	if a.r.Type == Write {
		b = append(b, a.data...)
	}
	l, _ := sending.LoadOrStore(c, new(sync.Mutex))
	l.(*sync.Mutex).Lock()
	defer l.(*sync.Mutex).Unlock()
	_, _ = c.Write(b) // who has died does not read
}

// read takes replies.
func (d *driver) read(_ int, c net.Conn) {
	defer func() {
		_ = c.Close()
		d.lost <- struct{}{}
	}()
	for b := make([]byte, ReplyLen); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		r, err := ParseReply(b)
		d.mu.Lock()
		a := d.waiting[r.Cookie]
		delete(d.waiting, r.Cookie)
		d.mu.Unlock()
		if err != nil || a == nil {
			d.t.Errorf("a reply to %#x: %v", r.Cookie, err)
			return
		}
		if r.Errno != 0 {
			a.done <- unix.Errno(r.Errno)
			continue
		}
		if a.r.Type == Read {
			if _, err := io.ReadFull(c, a.data); err != nil {
				d.mu.Lock()
				d.waiting[r.Cookie] = a // it has no answer yet
				d.mu.Unlock()
				return
			}
		}
		a.done <- nil
	}
}

// do has a request done.
func (d *driver) do(sock int, r Request, data []byte) error {
	d.mu.Lock()
	d.cookie++
	r.Cookie = d.cookie
	if r.Type != Flush && r.Type != Trim {
		r.Length = uint32(len(data))
	}
	a := &asked{r: r, data: data, sock: sock % len(d.socks), done: make(chan error, 1)}
	d.waiting[r.Cookie] = a
	c := d.socks[a.sock]
	d.mu.Unlock()
	d.send(a, c)
	return <-a.done
}

// program keeps one request outstanding, on a part of the disk of its own, until enough is true.
func (d *driver) program(n int, enough *atomic.Bool, stepped chan<- struct{}) error {
	const span = 256 << 10
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	want, at := make([]byte, span), uint64(n)*span
	if err := d.do(n, Request{Type: Write, Offset: at}, want); err != nil {
		return err
	}
	for !enough.Load() {
		length := (1 + rnd.IntN(span/512)) * 512
		if rnd.IntN(2) == 0 {
			length = 4096
		}
		off := rnd.IntN((span-length)/512+1) * 512
		b := make([]byte, length)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		r := Request{Type: Write, Flags: uint16(rnd.IntN(2)), Offset: at + uint64(off)}
		if err := d.do(n, r, b); err != nil {
			return fmt.Errorf("WRITE: %w", err)
		}
		copy(want[off:], b)
		if rnd.IntN(4) == 0 {
			if err := d.do(n, Request{Type: Flush}, nil); err != nil {
				return fmt.Errorf("FLUSH: %w", err)
			}
		}
		got := make([]byte, span)
		if err := d.do(n, Request{Type: Read, Offset: at}, got); err != nil {
			return fmt.Errorf("READ: %w", err)
		}
		if !bytes.Equal(got, want) {
			return errors.New("other bytes")
		}
		select {
		case stepped <- struct{}{}:
		default:
		}
	}
	return nil
}

// through returns the options to attach a LUN of tg, by a relay.
func through(t *testing.T, tg *targettest.Target, scheme string, lun int, d *driver) (*targettest.Relay, Options) {
	t.Helper()
	portal := tg.Portals[0]
	if scheme != "iscsi" {
		portal = tg.Portals[1]
	}
	r := targettest.NewRelay(t, portal)
	u, err := initiator.ParseURL(fmt.Sprintf("%s://%s/%s/%d", scheme, r.Addr(), iqn, lun))
	check(t, err)
	return r, Options{URL: u, Device: -1, Kernel: d, DeadTime: time.Hour, sys: d.dir}
}

// serving serves a in another goroutine.
func serving(a *Attachment) (leave func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// Programs see no error and lose no byte, even if the link is lost again and again, or the process that serves the
// device.
func TestAttachSurvives(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, scheme := range []string{"iscsi", "iser+iwarp", "oneshot+iwarp"} {
		t.Run(scheme, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
			d := newDriver(t)
			r, o := through(t, tg, scheme, 0, d)
			o.Connections = 2
			a, err := Attach(t.Context(), o)
			check(t, err)
			leave := serving(a)
			const programs = 6
			var (
				enough  atomic.Bool
				stepped = make(chan struct{}, 1)
				wg      sync.WaitGroup
			)
			for n := range programs {
				wg.Go(func() {
					if err := d.program(n, &enough, stepped); err != nil {
						t.Errorf("program %d: %v", n, err)
					}
				})
			}
			work := func() {
				for range 5 {
					<-stepped
				}
			}
			for range 2 {
				for range 3 {
					work()
					r.Cut(false)
				}
				work()
				if err := leave(); !errors.Is(err, ErrLeft) {
					t.Errorf("who leaves is told %v", err)
				}
				_ = a.Close()
				for range o.Connections {
					<-d.lost
				}
				o.Connections = 1 // what the device has counts
				a, err = Attach(t.Context(), o)
				check(t, err)
				o.Connections = 2
				leave = serving(a)
			}
			work()
			enough.Store(true)
			wg.Wait()
			check(t, d.Disconnect(a.Index))
			if err := <-a.servedOut(leave); err != nil {
				t.Errorf("after the end of the device: %v", err)
			}
			check(t, a.Close())
			for range o.Connections {
				<-d.lost
			}
		})
	}
}

// servedOut waits for Serve to end by itself.
func (a *Attachment) servedOut(leave func() error) <-chan error {
	c := make(chan error, 1)
	a.serves.Wait()
	go func() {
		err := leave()
		if errors.Is(err, ErrLeft) {
			err = nil // it was about to end
		}
		c <- err
	}()
	return c
}

// If a process is asked to leave while the kernel disconnects the device, of which one socket has ended already, it serves the
// device until the other one has ended, too, and no longer.
func TestLeaveDuringDisconnect(t *testing.T) {
	a := &Attachment{opt: Options{Probe: time.Hour}, ended: make(chan error), left: 2}
	served := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { served <- a.Serve(ctx) }()
	a.ended <- nil
	cancel()
	if err := <-served; !errors.Is(err, ErrLeft) {
		t.Fatalf("who leaves is told %v", err)
	}
	go func() { served <- a.Serve(t.Context()) }()
	a.ended <- nil
	select {
	case a.ended <- nil:
		t.Error("both sockets have ended, and the device is still served")
		<-served
	case err := <-served:
		if err != nil {
			t.Errorf("after the end of the device: %v", err)
		}
	}
}

// A target that does not answer keeps nobody from noticing that the kernel has given up a socket: what was sent through it must not be
// sent to the target again.
func TestSocketGivenUpDuringProbe(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	r, o := through(t, tg, "iscsi", 0, d)
	o.Connections, o.Ping, o.Probe = 2, time.Hour, time.Millisecond
	a, err := Attach(t.Context(), o)
	check(t, err)
	sent := func() uint64 { return a.sessions[0].Current().Counters().Get("messages_out") }
	before := sent()
	r.Swallow()
	served := make(chan error, 1)
	go func() { served <- a.Serve(t.Context()) }()
	for sent() == before { // until the size of the disk is asked for
		runtime.Gosched()
	}
	check(t, d.socks[0].Close())
	if err := <-served; !errors.Is(err, ErrShut) {
		t.Errorf("Serve returns %v", err)
	}
	r.Cut(true)
	_ = a.Close()
}

// The kernel is told what the disk is.
func TestSetting(t *testing.T) {
	tg := targettest.Start(t, config)
	const usual = FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagCanMultiConn
	for _, c := range []struct {
		lun, block, connections int
		readOnly                bool
		flags                   uint64
		timeout                 time.Duration
	}{
		{0, 512, 1, false, usual | FlagSendTrim, 0},
		{0, 512, 2, true, usual | FlagSendTrim | FlagReadOnly, time.Hour + hangTime},
		{1, 512, 1, false, usual | FlagSendTrim | FlagReadOnly, 0},
		{2, 4096, 1, false, usual | FlagSendTrim, 0},
	} {
		d := newDriver(t)
		_, o := through(t, tg, "iscsi", c.lun, d)
		o.Connections, o.ReadOnly = c.connections, c.readOnly
		a, err := Attach(t.Context(), o)
		check(t, err)
		s := d.set
		if s.Size != 16<<20 || s.BlockSize != c.block || s.Flags != c.flags || s.Timeout != c.timeout || s.DeadTime != orphanTime ||
			len(s.Sockets) != c.connections {
			t.Errorf("LUN %d: %+v", c.lun, s)
		}
		if b, err := os.ReadFile(filepath.Join(d.dir, fmt.Sprintf("nbd%d", a.Index), "queue/max_sectors_kb")); string(b) != "1024" {
			t.Errorf("requests have up to %s KiB, %v", b, err)
		}
		if b, err := os.ReadFile(filepath.Join(d.dir, fmt.Sprintf("nbd%d", a.Index), "queue/discard_max_bytes")); maxUnmaps*a.unmap.Most > math.MaxUint32 {
			if err == nil {
				t.Errorf("TRIMs have up to %s bytes, although the kernel's limit is the lower one", b)
			}
		} else if string(b) != fmt.Sprint(maxUnmaps*a.unmap.Most) {
			t.Errorf("TRIMs have up to %s bytes, %v", b, err)
		}
		list, err := attachedIn(d.dir)
		if err != nil || len(list) != 1 || list[0].URL != o.URL.String() || !list[0].Served || list[0].Sockets != c.connections || list[0].Size != 16<<20 {
			t.Errorf("%+v, %v", list, err)
		}
		check(t, a.Close())
		if list, err := attachedIn(d.dir); err != nil || len(list) != 1 || list[0].Served {
			t.Errorf("afterwards %+v, %v", list, err)
		}
	}
}

// A device that belongs to another disk, process or program is left alone.
func TestNotOurs(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	_, o := through(t, tg, "iscsi", 0, d)
	o.Device = os.Getpid()%1000*50 + 1
	a, err := Attach(t.Context(), o)
	check(t, err)
	if _, err := Attach(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another process serves") {
		t.Errorf("a second process is told %v", err)
	}
	other := o
	other.URL.LUN = 2
	if _, err := Attach(t.Context(), other); err == nil || !strings.Contains(err.Error(), "belongs to "+o.URL.String()) {
		t.Errorf("another disk is told %v", err)
	}
	check(t, os.WriteFile(filepath.Join(d.dir, fmt.Sprintf("nbd%d", a.Index), "backend"), []byte("something"), 0o644))
	if _, err := Attach(t.Context(), o); err == nil || !strings.Contains(err.Error(), "belongs to something else") {
		t.Errorf("who comes to another program's device is told %v", err)
	}
	check(t, a.Close())
}

// When the target has been away for the dead time, requests fail; when it is back, requests succeed again.
func TestDeadTime(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	r, o := through(t, tg, "iscsi", 0, d)
	o.DeadTime = 10 * time.Millisecond
	a, err := Attach(t.Context(), o)
	check(t, err)
	leave := serving(a)
	r.Cut(true)
	for { // the first may have been answered before the cut
		if err := d.do(0, Request{Type: Read}, make([]byte, 4096)); err != nil {
			if !errors.Is(err, unix.EIO) {
				t.Errorf("%v", err)
			}
			break
		}
	}
	r.Cut(false)
	for d.do(0, Request{Type: Read}, make([]byte, 4096)) != nil {
		time.Sleep(time.Millisecond)
	}
	_ = leave()
	check(t, a.Close())
}

// If another disk is found under the same URL, it gets no requests.
func TestAnotherDisk(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	r, o := through(t, tg, "iscsi", 0, d)
	var said lockedBuffer
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	a, err := Attach(t.Context(), o)
	check(t, err)
	leave := serving(a)
	tg.Stop()
	tg.Edit("0: disk, 1: {store: other, readonly: true}, 2: {store: other, block_size: 4096}", "0: other")
	tg.Start()
	r.Cut(false)
	for log := ""; !strings.Contains(log, "is another disk now"); log += said.take() {
		time.Sleep(time.Millisecond)
	}
	if a.sessions[0].Current() != nil {
		t.Error("there is a session with another disk")
	}
	_ = leave()
	_ = a.Close()
}

// If a reload puts another disk in the place of the one that is attached, that gets no requests either, though attach has asked for its size
// meanwhile, and so has heard of it; and the device keeps its size.
func TestAnotherDiskByReload(t *testing.T) {
	tg := targettest.Start(t, strings.Replace(config, "stores:\n", "stores:\n  large: {type: memory, size: 32MiB}\n", 1))
	d := newDriver(t)
	_, o := through(t, tg, "iscsi", 0, d)
	o.Probe, o.DeadTime = time.Hour, time.Millisecond
	a, err := Attach(t.Context(), o)
	check(t, err)
	leave := serving(a)
	tg.Edit("luns: {0: disk,", "luns: {0: large,")
	check(t, syscall.Kill(tg.PID(), syscall.SIGHUP))
	tg.WaitLog(t.Context(), "configuration read again")
	a.probe(t.Context())
	data := bytes.Repeat([]byte{0x5a}, 4096)
	if err := d.do(0, Request{Type: Write}, data); !errors.Is(err, unix.EIO) {
		t.Errorf("a write ends with %v", err)
	}
	if d.set.Size != 16<<20 {
		t.Errorf("the device has %d bytes", d.set.Size)
	}
	s, err := initiator.Dial(t.Context(), o.URL, initiator.Options{})
	check(t, err)
	u, err := s.LU(t.Context(), 0)
	check(t, err)
	got := make([]byte, len(data))
	_, err = u.ReadAt(got, 0)
	check(t, err)
	if bytes.Equal(got, data) {
		t.Error("the other disk was written to")
	}
	check(t, s.Close())
	_ = leave()
	_ = a.Close()
}

// Who takes over a device that a process has left finds the disk that it was made of, or leaves it alone: what the kernel holds of one
// disk is not written to another.
func TestTakenOver(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	r, o := through(t, tg, "iscsi", 0, d)
	again := func() error {
		a, err := Attach(t.Context(), o)
		if err == nil {
			check(t, a.Close())
			<-d.lost
		}
		return err
	}
	check(t, again())
	check(t, again())
	o.ReadOnly = true
	if err := again(); err == nil || !strings.Contains(err.Error(), "programs can write to it") {
		t.Errorf("who wants it read-only is told %v", err)
	}
	o.ReadOnly = false
	tg.Stop()
	tg.Edit("0: disk, 1: {store: other, readonly: true}, 2: {store: other, block_size: 4096}", "0: other")
	tg.Start()
	r.Cut(false)
	if err := again(); err == nil || !strings.Contains(err.Error(), "another disk now") {
		t.Errorf("who finds another disk is told %v", err)
	}
	file := filepath.Join(d.dir, fmt.Sprintf("nbd%d", d.set.Index), "backend")
	d.set.Backend, _, _ = strings.Cut(d.set.Backend, " disk=") // as of an attach that does not say which disk
	check(t, os.WriteFile(file, []byte(d.set.Backend+"\n"), 0o644))
	check(t, again())
}

// A disk is the same whatever portal group leads to it.
func TestAnotherWay(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	_, o := through(t, tg, "iscsi", 0, d)
	a, err := Attach(t.Context(), o)
	check(t, err)
	tg.Edit("{transport: tcp, listen:", "{transport: tcp, group: 7, listen:")
	check(t, syscall.Kill(tg.PID(), syscall.SIGHUP))
	tg.WaitLog(t.Context(), "configuration read again")
	s, err := initiator.Dial(t.Context(), o.URL, initiator.Options{})
	check(t, err)
	if err := a.check(t.Context(), s); err != nil {
		t.Errorf("by another portal group: %v", err)
	}
	check(t, s.Close())
	check(t, a.Close())
	a, err = Attach(t.Context(), o)
	check(t, err)
	check(t, a.Close())
}

// A disk that grows makes its device grow.
func TestGrow(t *testing.T) {
	tg := targettest.Start(t, config)
	d := newDriver(t)
	_, o := through(t, tg, "iscsi", 0, d)
	o.Probe = time.Millisecond
	a, err := Attach(t.Context(), o)
	check(t, err)
	leave := serving(a)
	tg.Edit("size: 16MiB}\n  other", "size: 32MiB}\n  other")
	process, err := os.FindProcess(tg.PID())
	check(t, err)
	check(t, process.Signal(syscall.SIGHUP))
	if size := <-d.sized; size != 32<<20 {
		t.Errorf("the device has %d bytes", size)
	}
	check(t, d.do(0, Request{Type: Write, Offset: 31 << 20}, make([]byte, 4096)))
	_ = leave()
	check(t, a.Close())
}

func TestParseDevice(t *testing.T) {
	for s, want := range map[string]int{"nbd3": 3, "/dev/nbd12": 12, "nbd": -1, "sda": -1, "nbd-1": -1, "3": -1, "nbd3p1": -1} {
		if n, err := ParseDevice(s); err == nil && n != want || (err != nil) != (want < 0) {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
}

// The text that we leave in the kernel is read as it was written; a device with another text is somebody else's.
func TestBackend(t *testing.T) {
	b := backend{url: "iscsi://h:3260/iqn.x/0", name: "iqn.y", isid: initiator.RandomISID(), sockets: 3}
	for _, b.disk = range []string{"", digestOf(&initiator.Identity{Serial: "1"})} {
		if got, ok := parseBackend(b.String()); !ok || got != b {
			t.Errorf("%q: %+v", b.String(), got)
		}
	}
	for _, s := range []string{
		"", "disk", "a name=b isid=00 connections=1", "a name=b isid=000000000000 connections=0", "a name=b isid=000000000000 connections=17",
		"a name=b isid=000000000000 connections=01", "a name=b isid=000000000000 connections=1 disk=", "a name=b isid=000000000000 connections=1 disk=0 more",
	} {
		if _, ok := parseBackend(s); ok {
			t.Errorf("%q is one", s)
		}
	}
}
