package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"oneshot/transport/rdma"
)

// Error says how a work has ended, if not well.
type Error struct {
	Op     rdma.Opcode
	Off, N int64 // bytes, in the partition
	Status rdma.Status
	Err    error // what the provider adds; may be nil
}

func (e *Error) Error() string {
	s := fmt.Sprintf("endpoint: %v of %d bytes at %d: %v", e.Op, e.N, e.Off, e.Status)
	if e.Op == rdma.OpFlush {
		s = fmt.Sprintf("endpoint: Flush: %v", e.Status)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns what the provider said.
func (e *Error) Unwrap() error { return e.Err }

// RestartedError says that the store was opened again, and may have lost writes.
type RestartedError struct {
	// Durable is the last number of a write that was known to be durable before.
	Durable uint64
}

func (e *RestartedError) Error() string {
	return fmt.Sprintf("endpoint: the store was opened again since the last flush: writes numbered above %d may be gone; write them again", e.Durable)
}

// AnotherError says that the name of an endpoint stands for another partition than it did when the endpoint was opened: that one was
// deleted or renamed, and what has been written is not in this one. Who opens the name again gets it.
type AnotherError struct {
	Name      string
	UUID, Was string
}

func (e *AnotherError) Error() string {
	return fmt.Sprintf("%s is another partition now: its UUID is %s, and was %s; uuid:%s is the former one, if it is still there", e.Name, e.UUID, e.Was, e.Was)
}

// lineage is what completions have told of the numbers of writes. It notices another generation.
type lineage struct {
	known      bool
	generation uint16
	durable    uint64 // the newest watermark of it
	newest     uint64 // number of the last of the writes that were not known to be durable when they completed
	written    uint64 // how many of these there were
	flushed    uint64 // of these, those that are known to be durable by now
	losses     uint64 // how often some may have been lost
	told       uint64 // of these, those that a Flush has told of
	lost       *RestartedError
}

// see looks at a completion.
func (l *lineage) see(c *rdma.Completion) {
	n := max(c.Seq, c.Durable)
	if n == 0 {
		return
	}
	g := rdma.Generation(n)
	if l.known && g != l.generation {
		if l.written > l.flushed {
			if l.losses == l.told { // else the number is that of the first loss
				l.lost = &RestartedError{l.durable}
			}
			l.losses++
		}
		l.durable, l.newest = 0, 0
	}
	l.known, l.generation = true, g
	l.durable = max(l.durable, c.Durable)
	if l.newest <= l.durable {
		l.flushed = l.written
	}
}

// wrote looks at the completion of a work that has changed octets. Some have no number: a Flush covers them.
func (l *lineage) wrote(c *rdma.Completion) {
	switch {
	case c.Seq == 0:
		l.newest = math.MaxUint64
	case c.Seq <= c.Durable:
		return
	}
	l.newest = max(l.newest, c.Seq)
	l.written++
}

// flushing is a Flush under way.
type flushing struct{ written, told uint64 }

// begin is the beginning of a Flush.
func (l *lineage) begin() flushing { return flushing{l.written, l.told} }

// end is the end of a Flush that has gone well. All that were under way when a loss was noticed tell of it.
func (l *lineage) end(f flushing) error {
	if l.flushed = max(l.flushed, f.written); l.flushed == l.written {
		l.newest = 0
	}
	if l.losses == f.told {
		return nil
	}
	l.told = l.losses
	return l.lost
}

// ReadAt fills p, memory from Alloc, with the bytes at off. Length and offset are multiples of the unit (Info). Errors
// are an *Error or a *RightsError, or the reason why there is no connection, an *AnotherError say. If ctx ends the wait, p belongs to the
// endpoint until Close.
func (e *Endpoint) ReadAt(ctx context.Context, p []byte, off int64) error {
	return e.do(ctx, rdma.OpRead, p, off)
}

// WriteAt writes p, memory from Alloc, at off: when it returns, everybody who reads sees it. A power cut may
// take it back until Flush. Lengths, errors and the end of ctx are as for ReadAt.
func (e *Endpoint) WriteAt(ctx context.Context, p []byte, off int64) error {
	return e.do(ctx, rdma.OpWrite, p, off)
}

// Flush makes durable what is complete: each WriteAt that has returned, and each work whose completion was
// polled. It fails with a *RestartedError if some of that may have been lost before it was durable: once, but so does each Flush that is
// under way meanwhile.
func (e *Endpoint) Flush(ctx context.Context) error {
	e.mu.Lock()
	f := e.gen.begin()
	e.mu.Unlock()
	if err := e.do(ctx, rdma.OpFlush, nil, 0); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gen.end(f)
}

// rights are what the library's own works need.
var rights = map[rdma.Opcode]rdma.Rights{rdma.OpRead: rdma.RightRead, rdma.OpWrite: rdma.RightWrite, rdma.OpFlush: rdma.RightFlush}

// do posts one work and waits for its end, over as many connections as it takes.
func (e *Endpoint) do(ctx context.Context, op rdma.Opcode, p []byte, off int64) error {
	w := rdma.Work{Op: op, Flags: rdma.Signaled, RemoteOffset: uint64(off)}
	begin := time.Now()
	for tries := 0; ; tries++ {
		conn := e.now.Load()
		var sge rdma.SGE
		if op != rdma.OpFlush { // after conn: its regions may be others than those of the connection before
			var err error
			if sge, err = e.SGE(p); err != nil {
				return err
			}
		}
		// An endpoint ends the connection of a user who asks for what he may not have.
		if have := conn.info.Rights; have&rights[op] == 0 {
			return &RightsError{conn.info.Name, rights[op], have}
		}
		c, err := e.once(ctx, conn, w, sge)
		if err != nil || c.Status == rdma.StatusOK {
			return err
		}
		failed := &Error{op, off, int64(len(p)), c.Status, c.Err}
		switch c.Status {
		case rdma.StatusFlushed, rdma.StatusTransport, rdma.StatusRemoteAccess: // the connection has ended, or the endpoint has changed
		default:
			return failed
		}
		if tries > 0 {
			if time.Since(begin) > e.opts.Retry {
				return failed
			}
			if err := pause(ctx, tries); err != nil {
				return errors.Join(failed, err)
			}
		}
		if err := e.renew(ctx, conn, conn.qp); err != nil {
			return errors.Join(failed, err)
		}
	}
}

// pause waits before one tries again, longer each time.
func pause(ctx context.Context, tries int) error {
	select {
	case <-time.After(min(firstPause<<min(tries, 10), lastPause)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// once posts a work on conn and waits for its completion.
func (e *Endpoint) once(ctx context.Context, conn *conn, w rdma.Work, sge rdma.SGE) (c rdma.Completion, err error) {
	var k *call
	select {
	case k = <-e.calls:
	case <-ctx.Done():
		return c, ctx.Err()
	}
	e.mu.Lock()
	e.next++
	id := e.next | ownID
	e.pending[id] = k
	e.mu.Unlock()
	k.ws[0], k.sgl[0], k.left = w, sge, false
	k.ws[0].ID = id
	if sge.Region != nil {
		k.ws[0].SGL = k.sgl[:]
	}
	for {
		if _, err = conn.post(k.ws[:]); err == nil {
			break
		}
		if errors.Is(err, rdma.ErrFull) { // the caller has posted more than MaxWork, and has to poll
			if err = pause(ctx, 0); err == nil {
				continue
			}
		}
		e.mu.Lock()
		delete(e.pending, id)
		e.mu.Unlock()
		e.calls <- k
		if errors.Is(err, rdma.ErrDisconnected) {
			return rdma.Completion{Status: rdma.StatusFlushed, Err: err}, nil
		}
		return c, err
	}
	for e.take(); len(k.done) == 0 && ctx.Err() == nil; {
		if conn.await() {
			e.take()
		} else if e.sleep(&k.asleep) { // otherwise it awaits once more
			break
		}
	}
	select {
	case c = <-k.done:
	case <-ctx.Done():
		// The memory stays the provider's until the completion comes, or the endpoint is closed.
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.pending[id] != nil {
			e.wakeUp(&k.asleep)
			k.left = true
			return c, ctx.Err()
		}
		c = <-k.done
		e.wakeUp(&k.asleep)
		e.calls <- k
		return c, nil
	}
	if k.asleep { // it has completed before sleep was called
		e.mu.Lock()
		e.wakeUp(&k.asleep)
		e.mu.Unlock()
	}
	e.calls <- k
	return c, nil
}

// Reconnect makes a new connection after the old one has ended, if no call has done so yet, and tries for as
// long as Options.Retry says. When it returns nothing is under way any more of the old one. What was posted on the old one completes. Info may have changed afterwards: a
// partition that is made smaller ends its connections. If the process has gone that the device was in, which may be the daemon of this host, elements
// of scatter/gather lists have to be made again (SGE). An endpoint that was opened with Options.Sole, and whose place another one has
// taken, takes its place back: the caller has to look what the partition holds before it writes.
func (e *Endpoint) Reconnect(ctx context.Context) error {
	posts := e.posts.Load()
	c := posts
	if now := e.now.Load(); now.over.Load() { // a call has made it, and could not make another one in its place
		c = now
	}
	var former rdma.QueuePair
	if !e.opts.Sole { // otherwise it waits for all that it had, and takes its place back
		former = c.qp
	}
	err := e.renew(ctx, c, former)
	if former != nil && errors.Is(err, rdma.ErrReplaced) { // who has come since has waited for that
		err = e.renew(ctx, c, nil)
	}
	if err != nil {
		return err
	}
	e.posts.CompareAndSwap(posts, e.now.Load())
	return nil
}

// renew makes a new connection if old is still in place; with former, one on which works of that may be repeated, when nothing of it is under way.
func (e *Endpoint) renew(ctx context.Context, old *conn, former rdma.QueuePair) error {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	switch {
	case closed:
		return errClosed
	case e.now.Load() != old:
		return nil
	case e.opts.Retry < 0:
		return rdma.ErrDisconnected
	}
	old.over.Store(true)
	_ = old.qp.Close() // whatever it says
	begin := time.Now()
	for tries := 0; ; tries++ {
		c, err := e.connect(ctx, former)
		if errors.Is(err, rdma.ErrDeviceLost) {
			if err = e.move(); err == nil {
				c, err = e.connect(ctx, former)
			}
		}
		// What is in memory is another partition each time that the store is made anew.
		if err == nil && c.info.UUID != old.info.UUID && old.info.Durability != rdma.DurabilityNone {
			err = errors.Join(&AnotherError{c.info.Name, c.info.UUID, old.info.UUID}, c.qp.Close())
		}
		if err == nil {
			e.now.Store(c)
			return nil
		}
		if permanent(err) || time.Since(begin) > e.opts.Retry || pause(ctx, tries) != nil {
			return fmt.Errorf("connect with %v again: %w", e.url, err)
		}
	}
}

// move makes another domain and registers all memory there, for the device of those that there are has gone with the process that ran it
// (nic.Lasting). Nothing is posted by them any more. connecting is held.
func (e *Endpoint) move() error {
	dom, err := e.dev.NewDomain()
	if err != nil {
		return err
	}
	e.registering.Lock()
	defer e.registering.Unlock()
	e.mu.Lock()
	was, before := e.dom, slices.Clone(e.blocks)
	e.mu.Unlock()
	now := slices.Clone(before)
	for i := range now {
		if now[i].Region, err = dom.Register(before[i].Bytes(), rdma.AccessLocalWrite); err != nil {
			for _, m := range now[:i] {
				_ = m.Deregister()
			}
			return errors.Join(err, dom.Close())
		}
	}
	e.mu.Lock()
	e.dom, e.blocks = dom, now
	e.mu.Unlock()
	for _, m := range before {
		err = errors.Join(err, m.Deregister())
	}
	return errors.Join(err, was.Close())
}

// permanent reports whether another try would fail in the same way.
func permanent(err error) bool {
	if errors.Is(err, rdma.ErrNoEndpoint) || errors.Is(err, rdma.ErrReplaced) || errors.Is(err, rdma.ErrUnsupported) || errors.Is(err, rdma.ErrDeviceLost) {
		return true
	}
	if _, ok := errors.AsType[*VolatileError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*AnotherError](err); ok {
		return true
	}
	_, ok := errors.AsType[*RightsError](err)
	return ok
}
