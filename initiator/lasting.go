package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// Lasting is a session that is begun again whenever it is lost. Commands without an answer are sent
// again then, so they may be executed twice: it is for READ, WRITE, UNMAP, SYNCHRONIZE CACHE and the like.
// All sessions have the same ISID. The target ends what is left of the lost one, and waits for its stores,
// before it answers the login (RFC 7143 §6.3.5): no command of the old session takes effect after one of
// the new session. Its methods may be called from any goroutine.
//
//	         Start
//	           │
//	┌──────────▼──────────┐ lost, with its commands  ┌─────────┐
//	│ session: begins them │ ───────────────────────► │ waiting │ ── DeadTime ──► Done, with an error
//	└──────────▲──────────┘                          └────┬────┘
//	           └────────── Dial, Check, and all that waits ┘
type Lasting struct {
	url  URL
	opt  Options
	keep Keeping
	log  *slog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	over   chan struct{} // closed when run has returned

	mu      sync.Mutex // guards what follows; taken before Session.mu; not held while Done is called
	session *Session   // nil: lost
	waiting list       // for a session
	dead    error      // why commands do not wait; nil: they do
	closed  bool
	losses  int

	memMu    sync.Mutex // guards what follows; taken before Session.mu
	known    *Session   // whose device knows the memory; nil: none
	memories map[*Memory]func() rdma.Region
}

// Keeping says how a Lasting session is kept. Zero values stand for the defaults that the fields name.
type Keeping struct {
	// DeadTime is how long commands wait for a session. Then they fail, and later ones at once, until there
	// is a session again, which is tried for as long as Close is not called. 60 s.
	DeadTime time.Duration
	// Ping is the time between two pings, and how long the target may take to answer one. 5 s.
	Ping time.Duration
	// Timeout is how long a connection and its login may take. 15 s.
	Timeout time.Duration
	// Wait is how long the first session is tried for, unless the target refuses it. 0: once.
	Wait time.Duration
	// Check, unless it is nil, looks at each session before commands are sent. If it returns an error,
	// because it is another disk, say, the session is closed and the next one is tried.
	Check func(ctx context.Context, s *Session) error
}

const (
	defaultDeadTime = 60 * time.Second
	defaultPing     = 5 * time.Second
	defaultTimeout  = 15 * time.Second

	// redialMin and redialMax bound the pause between two attempts to get a session.
	redialMin = 100 * time.Millisecond
	redialMax = 2 * time.Second
)

func (k *Keeping) complete() {
	for _, d := range []struct {
		is    *time.Duration
		usual time.Duration
	}{{&k.DeadTime, defaultDeadTime}, {&k.Ping, defaultPing}, {&k.Timeout, defaultTimeout}} {
		if *d.is <= 0 {
			*d.is = d.usual
		}
	}
}

// DialLasting connects with the target that u names and logs in. ctx is for that alone.
// Options.Delivered is also called after commands have failed that waited for a session.
func DialLasting(ctx context.Context, u URL, o Options, k Keeping) (*Lasting, error) {
	k.complete()
	if o.ISID == (pdu.ISID{}) {
		o.ISID = RandomISID()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Lasting{
		url: u, opt: o, keep: k, log: o.Logger, over: make(chan struct{}), memories: make(map[*Memory]func() rdma.Region),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	s, err := l.first(ctx)
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.resume(s)
	go l.run(s)
	return l, nil
}

// first begins the first session. A target may come later than who uses it, after a power cut of both, say.
func (l *Lasting) first(ctx context.Context) (*Session, error) {
	enough := time.After(l.keep.Wait)
	said := ""
	for pause := redialMin; ; pause = min(2*pause, redialMax) {
		s, err := l.dial(ctx)
		if err == nil || l.keep.Wait <= 0 || refused(err) {
			return s, err
		}
		l.tell(err, &said)
		select {
		case <-enough:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// refused reports whether a target answers that it does not let us in (RFC 7143 §11.13.5: an error of the initiator's).
func refused(err error) bool {
	e, ok := errors.AsType[*LoginError](err)
	return ok && e.Status.Class() == pdu.LoginInitiatorError.Class()
}

// tell logs why there is no session, unless that was the last that was said.
func (l *Lasting) tell(err error, said *string) {
	if text := err.Error(); text != *said {
		l.log.Warn("no session yet", "target", l.url.String(), "reason", text)
		*said = text
	}
}

// dial begins a session that can be used.
func (l *Lasting) dial(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.keep.Timeout)
	defer cancel()
	s, err := Dial(ctx, l.url, l.opt)
	if err != nil {
		return nil, err
	}
	if err = l.introduce(s); err == nil && l.keep.Check != nil {
		err = l.keep.Check(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// introduce makes all memory known to the device of s.
func (l *Lasting) introduce(s *Session) (err error) {
	l.memMu.Lock()
	defer l.memMu.Unlock()
	for m := range l.memories {
		if l.memories[m], err = s.mover.adopt(m); err != nil {
			return err
		}
	}
	l.known = s
	return nil
}

// resume has s take over, and begins all that waits. False: Close came first, and has not seen s.
func (l *Lasting) resume(s *Session) bool {
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return false
		}
		if l.waiting.head == nil || s.reason() != nil {
			l.session, l.dead = s, nil
			l.mu.Unlock()
			return true
		}
		cs := l.waiting
		l.waiting = list{}
		l.mu.Unlock()
		s.start(cs)
	}
}

// run keeps a session until Close.
func (l *Lasting) run(s *Session) {
	defer close(l.over)
	for s != nil {
		l.watch(s)
		s = l.again(s.reason())
	}
}

// watch pings the target until the session has ended.
func (l *Lasting) watch(s *Session) {
	tick := time.NewTicker(l.keep.Ping)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.keep.Ping)
		if err := s.Ping(ctx); errors.Is(err, context.DeadlineExceeded) {
			s.stop(fmt.Errorf("the target has not answered a ping within %v", l.keep.Ping))
		}
		cancel()
	}
}

// again returns the next session, or nil after Close.
func (l *Lasting) again(reason error) *Session {
	l.mu.Lock()
	l.session = nil
	l.losses++
	loss := l.losses
	l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.log.Warn("session lost; its commands wait for the next", "target", l.url.String(), "reason", reason)
	}
	lost := time.Now()
	dead := time.AfterFunc(l.keep.DeadTime, func() { l.die(loss, reason) })
	defer dead.Stop()
	said := ""
	for pause := redialMin; ; pause = min(2*pause, redialMax) {
		if l.ctx.Err() != nil {
			return nil
		}
		s, err := l.dial(l.ctx)
		if err == nil && !l.resume(s) {
			_ = s.Close()
			return nil
		}
		if err == nil {
			l.log.Warn("session is back", "target", l.url.String(), "after", time.Since(lost).Round(time.Millisecond))
			return s
		}
		if l.ctx.Err() == nil {
			l.tell(err, &said)
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// die ends the waiting for the session after that loss.
func (l *Lasting) die(loss int, reason error) {
	l.mu.Lock()
	if l.losses != loss || l.session != nil || l.dead != nil {
		l.mu.Unlock()
		return
	}
	l.dead = fmt.Errorf("%v: no session for %v: %w", l.url, l.keep.DeadTime, reason)
	cs := l.waiting
	l.waiting = list{}
	err := l.dead
	l.mu.Unlock()
	l.log.Error("no session; commands fail until there is one", "target", l.url.String(), "for", l.keep.DeadTime, "reason", reason)
	l.fail(cs, err)
}

// fail ends commands.
func (l *Lasting) fail(cs list, err error) {
	if cs.head == nil {
		return
	}
	for c := cs.head; c != nil; c = c.next {
		c.Err = err
	}
	cs.done()
	if l.opt.Delivered != nil {
		l.opt.Delivered()
	}
}

// Start begins commands. Their outcome is told to Done of each. Commands that come or are outstanding
// while there is no session wait for the next one; Done gets an error only after DeadTime or Close.
func (l *Lasting) Start(cs ...*Command) {
	var x list
	for _, c := range cs {
		c.heir = l
		x.push(c)
	}
	l.mu.Lock()
	s, err := l.session, l.dead
	if s == nil && err == nil {
		for c := x.pop(); c != nil; c = x.pop() {
			l.waiting.push(c)
		}
	}
	l.mu.Unlock()
	if s != nil {
		s.start(x)
		return
	}
	for c := x.head; c != nil; c = c.next {
		c.Err, c.Status, c.Transferred, c.Sense = err, 0, 0, nil
	}
	x.done()
}

// adopt takes commands of from, which has ended. They may come late: the next session may be there already,
// and then has to begin them, for nobody looks at what waits before it is lost, too.
func (l *Lasting) adopt(from *Session, cs list) {
	l.mu.Lock()
	s, err := l.session, l.dead
	wait := err == nil && (s == nil || s == from)
	if wait {
		for c := cs.pop(); c != nil; c = cs.pop() {
			l.waiting.push(c)
		}
	}
	l.mu.Unlock()
	switch {
	case wait:
	case err != nil:
		l.fail(cs, err)
	default:
		s.start(cs)
	}
}

// Current returns the session, or nil while there is none. Commands that are begun there end with it.
func (l *Lasting) Current() *Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// ISID returns the initiator's part of the session's name.
func (l *Lasting) ISID() pdu.ISID { return l.opt.ISID }

// Alloc returns n bytes of memory for commands, which the device of every session knows.
func (l *Lasting) Alloc(n int) (*Memory, error) {
	m, err := newMemory(l.opt.Device, n)
	if err != nil {
		return nil, err
	}
	m.detach = func() rdma.Region {
		l.memMu.Lock()
		defer l.memMu.Unlock()
		detach := l.memories[m]
		delete(l.memories, m)
		if detach == nil {
			return nil
		}
		return detach()
	}
	l.memMu.Lock()
	var detach func() rdma.Region
	if l.known != nil {
		detach, err = l.known.mover.adopt(m)
		if l.known.reason() != nil {
			err = nil // the next session will know it
		}
	}
	l.memories[m] = detach
	l.memMu.Unlock()
	if err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// Close logs out. Commands under way or waiting end with ErrClosed. It must not be called from Done.
func (l *Lasting) Close() (err error) {
	l.mu.Lock()
	s, cs := l.session, l.waiting
	l.waiting = list{}
	l.dead, l.closed = ErrClosed, true
	l.mu.Unlock()
	l.cancel()
	l.fail(cs, ErrClosed)
	if s != nil {
		err = s.Close()
	}
	<-l.over
	return err
}
