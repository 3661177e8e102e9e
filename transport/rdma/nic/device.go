package nic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// DefaultSocket is where a card is looked for.
const DefaultSocket = "/run/oneshot/nic.sock"

// Config configures a device.
type Config struct {
	Socket string       // of the card; "": DefaultSocket
	Server string       // who serves Socket, for people who find that nobody does; "": the command "target nic"
	Logger *slog.Logger // nil: silence
	// Poll is how long this process looks for completions and answers before it sleeps. It takes a processor for that time,
	// so it pays only if the card has another one. 0: it sleeps at once.
	Poll time.Duration
}

// Device is an RDMA device in another process.
type Device struct {
	log    *slog.Logger
	poll   time.Duration
	limits rdma.Limits
	sock   *shm.Socket
	ctl    *shm.Control
	card   *shm.Bell // wakes the card
	bell   *shm.Bell // wakes this process
	cqs    soft.Queues
	wg     sync.WaitGroup

	lost    chan struct{} // closed when the card has gone
	lostErr error         // set before
	once    sync.Once
	flushed chan struct{} // closed when everything has been flushed because of that

	sendMu sync.Mutex // of sock
	callMu sync.Mutex
	calls  map[uint64]chan<- answer // guarded by callMu
	callID uint64                   // guarded by callMu

	hintMu   sync.Mutex // a leaf
	hintTail uint64

	look      func() bool     // wakeful
	sleeper   <-chan struct{} // what it waits for besides completions; guarded by the baton
	baton     chan struct{}   // in it while somebody sleeps until there are completions
	harvestMu sync.Mutex      // taken before the locks of queue pairs
	head      uint32          // of the ring of completions; guarded by harvestMu
	dead      bool            // nothing is harvested any more; guarded by harvestMu
	touched   []*soft.CompletionQueue

	commands commands
	memory   memory
	pairs    [shm.MaxQueues + 1]atomic.Pointer[queuePair] // by number

	mu        sync.Mutex // a leaf
	qps       map[*queuePair]struct{}
	queues    numbers // of pairs of queues
	domains   numbers
	listeners map[uint32]*listener
	listenIDs numbers
	past      rdma.Counters // of the halves here of queue pairs that are gone
	theirs    rdma.Counters // the card's, as last heard
	bells     atomic.Uint64 // rung
}

var (
	_ rdma.Device    = (*Device)(nil)
	_ rdma.Allocator = (*Device)(nil)
)

// LostError says that the process of the card has gone.
type LostError struct{ Err error }

func (e *LostError) Error() string { return "nic: the card has gone: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// Is reports that the error is rdma.ErrDeviceLost, too.
func (e *LostError) Is(target error) bool { return target == rdma.ErrDeviceLost }

// Open connects to a card.
func Open(c Config) (*Device, error) {
	if c.Socket == "" {
		c.Socket = DefaultSocket
	}
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.Socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("nic: nobody answers at %s, which %s would: %w", c.Socket, cmp.Or(c.Server, "`target nic --socket "+c.Socket+"`"), err)
	}
	d, err := begin(u, c)
	if err != nil {
		return nil, fmt.Errorf("nic: card at %s: %w", c.Socket, err)
	}
	return d, nil
}

// begin makes a device of a card that has been connected with, and owns u.
func begin(u *net.UnixConn, c Config) (*Device, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Device{
		log: c.Logger, poll: c.Poll, sock: shm.NewSocket(u), lost: make(chan struct{}), flushed: make(chan struct{}),
		calls: make(map[uint64]chan<- answer), baton: make(chan struct{}, 1),
		qps: make(map[*queuePair]struct{}), listeners: make(map[uint32]*listener),
	}
	d.look = d.wakeful
	d.queues.max, d.domains.max, d.listenIDs.max = shm.MaxQueues/2, shm.MaxObjects-1, shm.MaxObjects-1
	d.commands.init()
	d.memory.init()
	if err := d.hello(); err != nil {
		d.release()
		return nil, err
	}
	d.wg.Go(d.read)
	d.wg.Go(d.run)
	return d, nil
}

// maxWork bounds what is allocated here for a queue.
const maxWork = 1 << 16

// hello exchanges the first messages, before anybody reads.
func (d *Device) hello() error {
	if err := d.sock.Send(&shm.Message{ID: 1, Op: shm.OpHello, Version: shm.Version}); err != nil {
		return err
	}
	d.callID = 1
	var m shm.Message
	fds, err := d.sock.Receive(&m)
	if err != nil {
		return err
	}
	defer shm.CloseAll(fds)
	switch {
	case m.Error != "":
		return errors.New(m.Error)
	case m.Version != shm.Version || m.Limits == nil || len(fds) != 3:
		return errors.New("an answer that no card gives")
	}
	d.limits = *m.Limits
	l := &d.limits
	l.Name = "nic"
	// What the rings have no room for is not possible, whatever the card says.
	l.MaxSGE, l.MaxReadSGE = min(max(l.MaxSGE, 1), shm.MaxPieces), min(max(l.MaxReadSGE, 1), shm.MaxPieces)
	l.MaxWork, l.MaxInline = min(max(l.MaxWork, 0), maxWork), min(max(l.MaxInline, 0), shm.MaxInline)
	seg, err := shm.Map(fds[0], shm.ControlLen)
	if err != nil {
		return err
	}
	d.ctl = shm.NewControl(seg)
	if d.card, err = shm.OpenBell(fds[1]); err != nil {
		return err
	}
	fds[1] = -1
	if d.bell, err = shm.OpenBell(fds[2]); err == nil {
		fds[2] = -1
	}
	return err
}

// release gives back what the device has of the system.
func (d *Device) release() {
	_ = d.sock.Close()
	for _, b := range []*shm.Bell{d.card, d.bell} {
		if b != nil {
			b.Close()
		}
	}
	if d.ctl != nil {
		_ = d.ctl.Close()
	}
	d.memory.release()
}

// Limits implements rdma.Device.
func (d *Device) Limits() rdma.Limits { return d.limits }

// Close implements rdma.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	busy := len(d.qps) > 0 || len(d.listeners) > 0
	d.mu.Unlock()
	if busy || d.cqs.InUse() {
		return soft.ErrInUse
	}
	d.lose(net.ErrClosed)
	d.wg.Wait()
	d.release()
	return nil
}

// answer is what comes back for a request.
type answer struct {
	m   *shm.Message
	fds []int
}

// call sends a request and waits for its answer; the descriptors of the answer are the caller's.
func (d *Device) call(m *shm.Message, fds ...int) (*shm.Message, []int, error) {
	return d.callContext(context.Background(), m, fds...)
}

// callContext is call; when ctx ends, the card is asked to give up, and what it answers is awaited.
func (d *Device) callContext(ctx context.Context, m *shm.Message, fds ...int) (*shm.Message, []int, error) {
	ch := make(chan answer, 1)
	d.callMu.Lock()
	d.callID++
	m.ID = d.callID
	d.calls[m.ID] = ch
	d.callMu.Unlock()
	if err := d.send(m, fds...); err != nil {
		d.callMu.Lock()
		delete(d.calls, m.ID)
		d.callMu.Unlock()
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			d.lose(err) // read will find that, too
		}
		return nil, nil, d.gone(err)
	}
	done := ctx.Done()
	for {
		select {
		case a := <-ch:
			return a.m, a.fds, errorOf(a.m)
		case <-d.lost:
			return nil, nil, d.lostErr
		case <-done:
			done = nil
			_ = d.send(&shm.Message{Op: shm.OpCancel, Number: uint32(m.ID)})
		}
	}
}

// ask is call without descriptors in the answer.
func (d *Device) ask(m *shm.Message) (*shm.Message, error) {
	a, fds, err := d.call(m)
	shm.CloseAll(fds)
	return a, err
}

func (d *Device) send(m *shm.Message, fds ...int) error {
	d.sendMu.Lock()
	defer d.sendMu.Unlock()
	return d.sock.Send(m, fds...)
}

// gone returns err, or why the card has gone, if it has.
func (d *Device) gone(err error) error {
	select {
	case <-d.lost:
		return d.lostErr
	default:
		return err
	}
}

// errorOf returns the error that an answer has.
func errorOf(m *shm.Message) error {
	switch {
	case m.Error == "":
		return nil
	case m.Kind == shm.ErrorRejected:
		return &rdma.RejectedError{PrivateData: m.Data}
	case m.Kind == shm.ErrorDisconnected:
		return rdma.ErrDisconnected
	case m.Kind == shm.ErrorUnsupported:
		return rdma.ErrUnsupported
	case m.Kind == shm.ErrorCancelled:
		return context.Canceled
	}
	return errors.New("nic: " + m.Error)
}

// read takes what the card says, until the card goes.
func (d *Device) read() {
	for {
		m := new(shm.Message)
		fds, err := d.sock.Receive(m)
		if err != nil {
			d.lose(err)
			return
		}
		if m.ID != 0 {
			d.callMu.Lock()
			ch := d.calls[m.ID]
			delete(d.calls, m.ID)
			d.callMu.Unlock()
			if ch != nil {
				ch <- answer{m, fds}
				continue
			}
		}
		shm.CloseAll(fds)
		switch m.Op {
		case shm.OpEnded:
			if q := d.pair(m.Number); q != nil {
				var err error
				if m.Error != "" {
					err = errors.New(m.Error)
				}
				q.ending(err)
			}
		case shm.OpRequested:
			d.mu.Lock()
			l := d.listeners[m.Listener]
			d.mu.Unlock()
			if l != nil {
				l.offer(m)
			}
		}
	}
}

// pair returns the queue pair of a number, or nil.
func (d *Device) pair(n uint32) *queuePair {
	if n >= uint32(len(d.pairs)) {
		return nil
	}
	return d.pairs[n].Load()
}

// lose ends the use of the card. It does not wait, and the caller may hold locks.
func (d *Device) lose(err error) {
	d.once.Do(func() {
		d.lostErr = &LostError{err}
		close(d.lost)
		_ = d.sock.Close()
		d.bell.Stop()
		d.wg.Go(d.flush)
	})
}

// flush ends all connections, for the card has gone.
func (d *Device) flush() {
	d.settle(d.harvest) // what it has said before
	d.harvestMu.Lock()
	d.dead = true
	d.harvestMu.Unlock()
	d.mu.Lock()
	qps := make([]*queuePair, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	for _, q := range qps {
		q.flush(d.lostErr)
	}
	close(d.flushed)
}

// hint tells the card that queue n has something new. last is the place of the last hint of that queue.
func (d *Device) hint(n uint32, last *uint64) {
	d.hintMu.Lock()
	// A hint that the card has not taken is as good as a new one: it takes the hint before it looks at the queue. So there
	// are never more hints than queues.
	waiting := uint64(uint32(d.hintTail) - d.ctl.HintHead.Load())
	if *last == 0 || d.hintTail-*last >= waiting {
		d.ctl.Hint(uint32(d.hintTail)).Store(n)
		d.hintTail++
		*last = d.hintTail
		d.ctl.HintTail.Store(uint32(d.hintTail))
	}
	wake := d.ctl.Card.Wakes()
	d.hintMu.Unlock()
	if wake {
		d.bells.Add(1)
		d.card.Ring()
	}
}

// NewCompletionQueue implements rdma.Device. The queue grows to what is asked of it.
func (d *Device) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
	return &completionQueue{CompletionQueue: d.cqs.New(event), dev: d}, nil
}

// Counters implements rdma.Device. What the card counts stays as it was last heard when the card has gone.
func (d *Device) Counters() rdma.Counters {
	if a, err := d.ask(&shm.Message{Op: shm.OpCounters}); err == nil && a.Counters != nil {
		d.mu.Lock()
		d.theirs = *a.Counters
		d.mu.Unlock()
	}
	d.mu.Lock()
	sum, here := d.theirs, d.past
	for q := range d.qps {
		q.n.AddTo(&here)
	}
	d.mu.Unlock()
	d.cqs.AddTo(&here)
	overlay(&sum, &here)
	sum.Registrations, sum.Deregistrations = d.memory.registrations.Load(), d.memory.deregistrations.Load()
	sum.Doorbells += d.bells.Load()
	return sum
}

// CardTime returns the processor time that the process of the card has taken so far.
func (d *Device) CardTime() (time.Duration, error) {
	a, err := d.ask(&shm.Message{Op: shm.OpCounters})
	if err != nil {
		return 0, err
	}
	return time.Duration(a.CPU), nil
}

// overlay puts into c, the card's counts, what is counted here: what crosses between the application and its driver.
func overlay(c, here *rdma.Counters) {
	c.Posts, c.Works, c.ReceivePosts, c.Receives = here.Posts, here.Works, here.ReceivePosts, here.Receives
	c.Polls, c.Completions, c.Events = here.Polls, here.Completions, here.Events
}

// numbers hands out numbers from 1 to max. The owner has a lock.
type numbers struct {
	max, next uint32
	free      []uint32
}

func (n *numbers) take() (uint32, bool) {
	if k := len(n.free); k > 0 {
		x := n.free[k-1]
		n.free = n.free[:k-1]
		return x, true
	}
	if n.next == n.max {
		return 0, false
	}
	n.next++
	return n.next, true
}

func (n *numbers) give(x uint32) { n.free = append(n.free, x) }
