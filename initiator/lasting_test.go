package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/nic/card"
)

// lastingWays are those that differ in what a lost session leaves.
var lastingWays = []way{ways[0], ways[3], ways[6], ways[7]}

func (w way) through(t *testing.T, tg *targettest.Target) (*targettest.Relay, initiator.URL) {
	t.Helper()
	u := w.at(t, tg, "/"+iqn)
	r := targettest.NewRelay(t, u.Address)
	u.Address = r.Addr()
	return r, u
}

// worker keeps one command at a time outstanding, on blocks of its own, and remembers what it has written.
type worker struct {
	l    *initiator.Lasting
	lu   *initiator.LU
	mem  *initiator.Memory
	at   int64
	want []byte
}

const workerSpan = 64 << 10

// step writes and reads once, of random lengths.
func (w *worker) step(r *rand.Rand) error {
	n := (1 + r.IntN(workerSpan/512)) * 512
	off := r.IntN((workerSpan-n)/512+1) * 512
	do := func(c *initiator.Command) error {
		done := make(chan struct{})
		c.Memory, c.Done = w.mem, func(*initiator.Command) { close(done) }
		if err := w.lu.Prepare(c, w.at+int64(off)); err != nil {
			return err
		}
		w.l.Start(c)
		<-done
		return c.Failure()
	}
	b := w.mem.Bytes()[:n]
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	copy(w.want[off:], b)
	if err := do(&initiator.Command{Out: b}); err != nil {
		return err
	}
	clear(b)
	if err := do(&initiator.Command{In: b}); err != nil {
		return err
	}
	if !bytes.Equal(b, w.want[off:off+n]) {
		return errors.New("other bytes")
	}
	return nil
}

const cuts = 5

// keepOn has workers write and read while cut is called, and they see no error. It returns the ISID of the sessions.
func keepOn(t *testing.T, u initiator.URL, o initiator.Options, cut func()) pdu.ISID {
	t.Helper()
	l, err := initiator.DialLasting(t.Context(), u, o, initiator.Keeping{DeadTime: time.Hour})
	check(t, err)
	lu, err := l.Current().LU(t.Context(), 0)
	check(t, err)
	ctx, enough := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	stepped := make(chan struct{}, 1)
	var workers []*worker
	for i := range 8 {
		m, err := l.Alloc(workerSpan)
		check(t, err)
		k := &worker{l: l, lu: lu, mem: m, at: int64(i) * workerSpan, want: make([]byte, workerSpan)}
		_, err = lu.WriteAt(k.want, k.at)
		check(t, err)
		workers = append(workers, k)
	}
	for i, k := range workers {
		wg.Go(func() {
			for rnd := rand.New(rand.NewPCG(uint64(i), 1)); ctx.Err() == nil; {
				if err := k.step(rnd); err != nil {
					t.Error(err)
					return
				}
				select {
				case stepped <- struct{}{}:
				default:
				}
			}
		})
	}
	for range cuts {
		for range 10 {
			<-stepped
		}
		cut()
	}
	<-stepped
	enough()
	wg.Wait()
	check(t, l.Close())
	for _, k := range workers {
		check(t, k.mem.Free())
	}
	return l.ISID()
}

// Whatever is outstanding when the link is cut ends well, in the next session: nobody sees an error, and
// what was written is there.
func TestLastingCut(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range lastingWays {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			r, u := w.through(t, tg)
			id := keepOn(t, u, w.opt, func() { r.Cut(false) })
			logins := r.Beginnings()
			if len(logins) <= cuts {
				t.Errorf("%d connections for %d cuts", len(logins), cuts)
			}
			if u.Transport == initiator.TCP {
				for _, p := range logins { // RFC 7143 §11.12: the ISID is in octets 8 to 13
					if !bytes.Equal(p[8:14], id[:]) {
						t.Errorf("a login with the ISID %x, not %x", p[8:14], id)
					}
				}
			}
		})
	}
}

// The same when the card that the queue pairs run on (package nic) ends, and another one takes its place: it gets the memory.
func TestLastingCard(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range []way{lastingWays[1], lastingWays[3]} {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			socket := filepath.Join(t.TempDir(), "nic")
			stop := serveCard(t, socket)
			d, err := nic.OpenLasting(nic.Config{Socket: socket})
			check(t, err)
			o := w.opt
			o.Device = d
			keepOn(t, w.at(t, tg, "/"+iqn), o, func() {
				stop()
				stop = serveCard(t, socket)
			})
			check(t, d.Close())
			stop()
		})
	}
}

// serveCard serves programs until stop is called.
func serveCard(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.New(card.Config{}).Serve(ctx, l) }()
	return func() {
		cancel()
		check(t, <-done)
	}
}

// A target that is killed and started again loses nothing that it was asked for.
func TestLastingKilled(t *testing.T) {
	tg := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 16MiB}}
targets: [{iqn: `+iqn+`, luns: {0: disk}}]
portals: [{transport: tcp, listen: $PORTAL}]
`)
	l, err := initiator.DialLasting(t.Context(), ways[0].at(t, tg, "/"+iqn), initiator.Options{}, initiator.Keeping{DeadTime: time.Hour})
	check(t, err)
	lu, err := l.Current().LU(t.Context(), 0)
	check(t, err)
	tg.Kill()
	want := pattern(4096, 1)
	c := &initiator.Command{Out: want}
	check(t, lu.Prepare(c, 8192))
	done := make(chan struct{})
	c.Done = func(*initiator.Command) { close(done) }
	l.Start(c)
	tg.Start()
	<-done
	check(t, c.Failure())
	got := make([]byte, 4096)
	lu, err = l.Current().LU(t.Context(), 0)
	check(t, err)
	_, err = lu.ReadAt(got, 8192)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
	check(t, l.Close())
}

// news is the log of a Lasting: what it has to tell of its sessions.
type news chan string

func (n news) logger() *slog.Logger { return slog.New(n) }

func (n news) Enabled(context.Context, slog.Level) bool { return true }

func (n news) Handle(_ context.Context, r slog.Record) error {
	n <- r.Message
	return nil
}

func (n news) WithAttrs([]slog.Attr) slog.Handler { return n }
func (n news) WithGroup(string) slog.Handler      { return n }

// await waits until a message begins with what is awaited.
func (n news) await(what string) {
	for !strings.HasPrefix(<-n, what) {
	}
}

// ready returns a TEST UNIT READY and what is closed when it has ended.
func ready() (*initiator.Command, chan struct{}) {
	done := make(chan struct{})
	return &initiator.Command{CDB: make([]byte, 6), Attentions: 8, Done: func(*initiator.Command) { close(done) }}, done
}

// A command whose Start is overtaken by the end of a session and by the next one is begun in that.
func TestLastingOvertaken(t *testing.T) {
	tg := targettest.Start(t, config)
	noLeaks(t)
	r, u := ways[0].through(t, tg)
	n := make(news, 64)
	l, err := initiator.DialLasting(t.Context(), u, initiator.Options{Logger: n.logger()}, initiator.Keeping{DeadTime: time.Hour})
	check(t, err)
	s := l.Current()
	r.Cut(false)
	n.await("session is back")
	c, done := ready()
	l.StartIn(s, c)
	<-done
	check(t, c.Failure())
	check(t, l.Close())
}

// Commands fail when there was no session for DeadTime, and from then on at once; a session that comes
// back later is used again.
func TestLastingDead(t *testing.T) {
	tg := targettest.Start(t, config)
	noLeaks(t)
	r, u := ways[0].through(t, tg)
	delivered := make(chan struct{}, 16)
	n := make(news, 64)
	o := initiator.Options{Delivered: func() { delivered <- struct{}{} }, Logger: n.logger()}
	l, err := initiator.DialLasting(t.Context(), u, o, initiator.Keeping{DeadTime: 10 * time.Millisecond})
	check(t, err)
	r.Cut(true)
	n.await("session lost")
	for len(delivered) > 0 {
		<-delivered
	}
	c, done := ready()
	l.Start(c)
	<-done
	if c.Failure() == nil {
		t.Fatal("a command without a target succeeds")
	}
	for { // the first may have waited, or not
		c, done = ready()
		l.Start(c)
		select {
		case <-done:
		default:
			<-done
			<-delivered
			continue
		}
		break
	}
	r.Cut(false)
	n.await("session is back")
	c, done = ready()
	l.Start(c)
	<-done
	<-delivered
	check(t, c.Failure())
	check(t, l.Close())
}

// A link that swallows everything is noticed by a ping.
func TestLastingSilent(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range lastingWays {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			r, u := w.through(t, tg)
			l, err := initiator.DialLasting(t.Context(), u, w.opt, initiator.Keeping{DeadTime: time.Hour, Ping: 200 * time.Millisecond})
			check(t, err)
			r.Swallow()
			c, done := ready()
			l.Start(c)
			<-done
			check(t, c.Failure())
			check(t, l.Close())
		})
	}
}

// A session that Check refuses gets no commands.
func TestLastingCheck(t *testing.T) {
	tg := targettest.Start(t, config)
	noLeaks(t)
	r, u := ways[0].through(t, tg)
	asked := make(chan bool)
	no := errors.New("another disk")
	k := initiator.Keeping{DeadTime: time.Hour, Check: func(context.Context, *initiator.Session) error {
		if <-asked {
			return nil
		}
		return no
	}}
	go func() { asked <- false }()
	if _, err := initiator.DialLasting(t.Context(), u, initiator.Options{}, k); !errors.Is(err, no) {
		t.Fatalf("%v", err)
	}
	go func() { asked <- true }()
	l, err := initiator.DialLasting(t.Context(), u, initiator.Options{}, k)
	check(t, err)
	r.Cut(false)
	c, done := ready()
	l.Start(c)
	asked <- false
	select {
	case <-done:
		t.Error("a command ends in a session that was refused")
	case asked <- true:
	}
	<-done
	check(t, c.Failure())
	check(t, l.Close())
}

// Close ends commands that wait, and those after it.
func TestLastingClose(t *testing.T) {
	tg := targettest.Start(t, config)
	noLeaks(t)
	r, u := ways[0].through(t, tg)
	l, err := initiator.DialLasting(t.Context(), u, initiator.Options{}, initiator.Keeping{DeadTime: time.Hour})
	check(t, err)
	r.Cut(true)
	c, done := ready()
	l.Start(c)
	_ = l.Close()
	<-done
	if !errors.Is(c.Err, initiator.ErrClosed) {
		t.Errorf("a command that waited ends with %v", c.Err)
	}
	c, done = ready()
	l.Start(c)
	<-done
	if !errors.Is(c.Err, initiator.ErrClosed) {
		t.Errorf("a command after the end ends with %v", c.Err)
	}
}

// A session that comes while Close waits is not used, and does not keep Close waiting.
func TestLastingCloseWhileDialing(t *testing.T) {
	tg := targettest.Start(t, config)
	noLeaks(t)
	r, u := ways[0].through(t, tg)
	first, again := true, make(chan struct{})
	k := initiator.Keeping{DeadTime: time.Hour, Timeout: time.Hour, Check: func(ctx context.Context, _ *initiator.Session) error {
		if first {
			first = false
			return nil
		}
		close(again)
		<-ctx.Done() // Close has begun
		return nil
	}}
	l, err := initiator.DialLasting(t.Context(), u, initiator.Options{}, k)
	check(t, err)
	r.Cut(false)
	<-again
	c, done := ready()
	l.Start(c)
	_ = l.Close()
	<-done
	if !errors.Is(c.Err, initiator.ErrClosed) {
		t.Errorf("a command that waited ends with %v", c.Err)
	}
}
