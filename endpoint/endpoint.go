// Package endpoint is the client's library for partitions that are RDMA endpoints: it opens one by its URL,
// whatever carries operations there, and reads, writes and flushes it, or hands the verbs through.
//
//	e, err := endpoint.Open(ctx, "rdma+local:///disk1/log", endpoint.Options{Durable: true})
//	buf, err := e.Alloc(1 << 20)              // memory that the device knows
//	err = e.WriteAt(ctx, buf[:4096], 8192)    // visible to all
//	err = e.Flush(ctx)                        // durable
//
//	n, err := e.Post(ws); n = e.Poll(cs)      // many at a time, without an allocation
//
// # Connections that end
//
// ReadAt, WriteAt and Flush connect again when the connection has ended, and repeat their operation.
// What was posted completes with rdma.StatusFlushed or an error, and Post fails until its owner calls
// Reconnect, because only the owner knows what may be posted after operations that were lost.
//
// A store that was opened again, by a daemon that was restarted, may have lost what nobody had flushed. Then
// numbers of writes have another generation (rdma.Generation), and Flush fails with a *RestartedError instead
// of promising what is gone.
//
// Where the name stands for another partition than it did at first, no connection is made: calls fail with an *AnotherError.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// Options say how an endpoint is to be used.
type Options struct {
	// Device reaches rdma+local:// endpoints of this process, which serves them. It still belongs to the caller. nil: the daemon of this
	// host serves them.
	Device rdma.Device
	// Network leads to other machines: a card in another process (package nic), say. It still belongs to the caller. nil: the
	// library opens a device.
	Network rdma.Device
	// User and Secret are who asks, and the proof, where the URL has none.
	User   string
	Secret []byte
	// Free lets works run and complete in any order (rdma.FreeStart, rdma.FreeFinish). Otherwise they take effect and
	// complete in the order of posting.
	Free bool
	// Durable makes Open fail on an endpoint of which nothing outlives a power cut or the end of the process
	// that serves it.
	Durable bool
	// Sole ends the endpoints that the same user has opened before and that may write, in this process or any other, and Open returns
	// when nothing of theirs is under way (rdma.RightSole): what an earlier life of a program has sent late is not written any more.
	// If a later life opens the partition in the same way, works and calls of this one fail with an error that is
	// rdma.ErrReplaced (errors.Is), until Reconnect is called. They do so, too, after a restart of the service, which does not know
	// whether there was a later life.
	Sole bool
	// Rights are those without which Open is to fail; 0: whatever there is.
	Rights rdma.Rights
	// MaxWork is how many works may be posted and not completed. 0: 64.
	MaxWork int
	// Retry bounds how long the library tries to connect again. 0: one minute; negative: it does not try.
	Retry time.Duration
}

const (
	defaultMaxWork = 64
	defaultRetry   = time.Minute
	maxCalls       = 32 // of ReadAt, WriteAt and Flush at a time
	firstPause     = 10 * time.Millisecond
	lastPause      = time.Second
)

// Endpoint is a partition that is open. Its methods may be called from any goroutine, except as they say.
type Endpoint struct {
	url  URL
	opts Options
	dev  rdma.Device
	addr string       // what Connect takes
	shut func() error // closes dev, if it is the library's
	cq   rdma.CompletionQueue

	connecting sync.Mutex           // held while another connection is made; taken before mu
	made       uint64               // connections so far; changed with connecting held
	now        atomic.Pointer[conn] // changed with connecting held
	posts      atomic.Pointer[conn] // that of Post: stays behind until Reconnect

	calls chan *call // that are free

	registering sync.Mutex // held while memory is registered, or given back; taken after connecting, before mu

	mu      sync.Mutex  // not held over calls of the provider that post
	dom     rdma.Domain // changed with connecting and registering held
	done    ring.Ring[rdma.Completion]
	batch   [64]rdma.Completion
	pending map[uint64]*call // that are posted, by ID
	next    uint64           // ID
	asleep  int              // who waits for an event
	waits   bool             // Wait counts in asleep
	wake    chan struct{}    // capacity 1: Wait is to look
	closed  bool
	blocks  []block
	maps    []*rdma.Mapping
	gen     lineage
}

// conn is one connection of the endpoint. Values but over are not changed.
type conn struct {
	qp     rdma.QueuePair
	info   rdma.Endpoint
	number uint64      // counts them
	over   atomic.Bool // somebody was about to make another one in its place
}

// block is memory of Alloc.
type block struct {
	rdma.Region
	free func([]byte) error
}

// release gives the memory back.
func (b *block) release() error {
	bytes := b.Bytes()
	return errors.Join(b.Deregister(), b.free(bytes))
}

// ownID marks the IDs of the library's works; those of Post have the bit clear.
const ownID = 1 << 63

// call is a ReadAt, WriteAt or Flush under way.
type call struct {
	done   chan rdma.Completion // capacity 1
	left   bool                 // nobody waits any more; guarded by Endpoint.mu
	asleep bool                 // who waits counts in Endpoint.asleep; changed with Endpoint.mu held
	ws     [1]rdma.Work
	sgl    [1]rdma.SGE
}

// VolatileError says that an endpoint keeps nothing.
type VolatileError struct {
	Name       string
	Durability rdma.Durability
}

func (e *VolatileError) Error() string {
	return fmt.Sprintf("%s keeps nothing over a power cut (its durability is %q): use a partition of a file or a device, or open it without Options.Durable", e.Name, e.Durability)
}

// RightsError says that an endpoint does not allow what is needed.
type RightsError struct {
	Name       string
	Want, Have rdma.Rights
}

func (e *RightsError) Error() string {
	return fmt.Sprintf("%s allows %q to this user, and %q is needed: ask for the rights with `target partition grant`", e.Name, e.Have, e.Want)
}

// Open connects with the partition that url names; ctx is for that alone. The caller closes the Endpoint. Errors wrap
// rdma.ErrNoEndpoint, a *VolatileError or a *RightsError if the partition is not there, or is not what o asks for.
func Open(ctx context.Context, url string, o Options) (*Endpoint, error) {
	u, err := ParseURL(url)
	if err == nil {
		err = u.identify(&o)
	}
	if err != nil {
		return nil, err
	}
	if o.MaxWork <= 0 {
		o.MaxWork = defaultMaxWork
	}
	if o.Retry == 0 {
		o.Retry = defaultRetry
	}
	e := &Endpoint{url: u, opts: o, pending: make(map[uint64]*call), calls: make(chan *call, maxCalls), wake: make(chan struct{}, 1)}
	for range maxCalls {
		e.calls <- &call{done: make(chan rdma.Completion, 1)}
	}
	if e.dev, e.addr, e.shut, err = dial(u, o); err != nil {
		return nil, err
	}
	if err := e.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %v: %w", u, err), e.Close())
	}
	return e, nil
}

// begin makes what belongs to the endpoint, and the first connection.
func (e *Endpoint) begin(ctx context.Context) (err error) {
	if !e.dev.Limits().Endpoints {
		return rdma.ErrNoEndpoint
	}
	if e.dom, err = e.dev.NewDomain(); err != nil {
		return err
	}
	if e.cq, err = e.dev.NewCompletionQueue(e.opts.MaxWork+maxCalls, e.event); err != nil {
		return err
	}
	c, err := e.connect(ctx, nil)
	if err != nil {
		return err
	}
	e.now.Store(c)
	e.posts.Store(c)
	return nil
}

// connect makes a connection; with former, one on which works of that queue pair may be repeated.
func (e *Endpoint) connect(ctx context.Context, former rdma.QueuePair) (*conn, error) {
	order := rdma.OrderStrict
	if e.opts.Free {
		order = (rdma.FreeStart | rdma.FreeFinish) & e.dev.Limits().Orders
	}
	qp, err := e.dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.cq, RecvCQ: e.cq, MaxWork: e.opts.MaxWork + maxCalls, Order: order,
	})
	if err != nil {
		return nil, err
	}
	if err = e.dev.Connect(ctx, qp, e.addr, rdma.ConnParams{Rights: e.opts.wish(), Former: former}); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	info := qp.Endpoint()
	if info == nil {
		return nil, errors.Join(rdma.ErrNoEndpoint, qp.Close())
	}
	if err := e.suits(info); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	e.made++
	return &conn{qp: qp, info: *info, number: e.made}, nil
}

// suits reports whether the endpoint is what the options ask for.
func (e *Endpoint) suits(i *rdma.Endpoint) error {
	switch {
	case e.opts.Durable && i.Durability == rdma.DurabilityNone:
		return &VolatileError{i.Name, i.Durability}
	case i.Rights&e.opts.Rights != e.opts.Rights:
		return &RightsError{i.Name, e.opts.Rights, i.Rights}
	case e.opts.Sole && !i.Rights.Changes():
		return &RightsError{i.Name, rdma.RightWrite, i.Rights}
	case e.opts.Sole && i.Rights&rdma.RightSole == 0:
		return fmt.Errorf("%w: %s cannot tell the earlier lives of a program from others (Options.Sole)", rdma.ErrUnsupported, i.Name)
	}
	return nil
}

// wish is what is asked of an endpoint.
func (o *Options) wish() rdma.Rights {
	if o.Sole {
		return o.Rights | rdma.RightSole
	}
	return o.Rights
}

// Sole reports whether the endpoint was opened with Options.Sole.
func (e *Endpoint) Sole() bool { return e.opts.Sole }

// Info describes the endpoint as it was when it was last connected. STag and Base are for the library alone.
func (e *Endpoint) Info() rdma.Endpoint { return e.now.Load().info }

// Counters are those of the connection.
func (e *Endpoint) Counters() rdma.Counters { return e.now.Load().qp.Counters() }

// Alloc returns n bytes of zeroes, aligned to a page, that the device knows: sources and sinks of operations
// are parts of such memory. It is gone after Free or Close.
func (e *Endpoint) Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("endpoint: Alloc of %d bytes: ask for 1 or more", n)
	}
	b, free, err := rdma.Alloc(e.dev, n)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	e.registering.Lock()
	defer e.registering.Unlock()
	r, err := e.dom.Register(b, rdma.AccessLocalWrite)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("endpoint: %d bytes of memory: %w", n, err), free(b))
	}
	m := block{r, free}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.Join(errClosed, m.release())
	}
	e.blocks = append(e.blocks, m)
	return b, nil
}

// Free gives memory from Alloc back, all that one call has returned. No work refers to it any more.
func (e *Endpoint) Free(b []byte) error {
	e.registering.Lock()
	defer e.registering.Unlock()
	e.mu.Lock()
	i := slices.IndexFunc(e.blocks, func(m block) bool { return address(m.Bytes()) == address(b) && len(m.Bytes()) == len(b) })
	if i < 0 {
		e.mu.Unlock()
		return errForeign
	}
	m := e.blocks[i]
	e.blocks = slices.Delete(e.blocks, i, i+1)
	e.mu.Unlock()
	return m.release()
}

// SGE returns b, a part of memory from Alloc, as an element of a scatter/gather list. It is good until Reconnect.
func (e *Endpoint) SGE(b []byte) (rdma.SGE, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := address(b)
	for i := range e.blocks {
		r := e.blocks[i].Region
		have := r.Bytes()
		if off := at - address(have); at >= address(have) && off <= uintptr(len(have)) && uintptr(len(b)) <= uintptr(len(have))-off {
			return rdma.SGE{Bytes: b, Region: r}, nil
		}
	}
	return rdma.SGE{}, errForeign
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

var (
	errForeign = errors.New("endpoint: the memory is not from Alloc of this endpoint")
	errClosed  = errors.New("endpoint: closed")
	errOwnID   = "ID with the uppermost bit set, which is the library's"
)

// Post posts works and returns how many were taken. RemoteSTag is filled in; RemoteOffset is counted in bytes from
// the start of the partition. IDs are the caller's, with the uppermost bit clear. The memory of a work belongs to the
// endpoint until its completion was polled. Errors are those of rdma.QueuePair; after rdma.ErrDisconnected call
// Reconnect. The caller has at most Options.MaxWork works posted and not polled.
func (e *Endpoint) Post(ws []rdma.Work) (int, error) { return e.posts.Load().postOwned(ws) }

// Connection numbers the connection that Post uses. Another one, which anybody may have made by Reconnect, has another number.
func (e *Endpoint) Connection() uint64 { return e.posts.Load().number }

// PostOn is Post for who has to know what has happened between two connections: on another one than that of the number it is rdma.ErrDisconnected.
func (e *Endpoint) PostOn(connection uint64, ws []rdma.Work) (int, error) {
	c := e.posts.Load()
	if c.number != connection {
		return 0, rdma.ErrDisconnected
	}
	return c.postOwned(ws)
}

// postOwned posts works of the caller's.
func (c *conn) postOwned(ws []rdma.Work) (int, error) {
	for i := range ws {
		if ws[i].ID&ownID != 0 {
			return 0, &rdma.WorkError{Index: i, Op: ws[i].Op, What: errOwnID}
		}
	}
	return c.post(ws)
}

func (c *conn) post(ws []rdma.Work) (int, error) {
	for i := range ws {
		ws[i].RemoteSTag = c.info.STag
		ws[i].RemoteOffset += c.info.Base
	}
	n, err := c.qp.Post(ws)
	if c.info.Base != 0 {
		for i := range ws {
			ws[i].RemoteOffset -= c.info.Base
		}
	}
	return n, err
}

// await waits for a moment where the completions are made, and reports whether that was possible.
func (c *conn) await() bool {
	a, ok := c.qp.(rdma.Awaiter)
	return ok && a.Await()
}

// Poll takes completions of works of Post and returns how many. It never blocks.
func (e *Endpoint) Poll(cs []rdma.Completion) (n int) {
	e.mu.Lock()
	for n < len(cs) && e.done.Len() > 0 {
		p := e.done.At(e.done.Head)
		cs[n], *p = *p, rdma.Completion{}
		e.done.Head++
		n++
	}
	for n < len(cs) {
		got := e.cq.Poll(cs[n:])
		if got == 0 {
			break
		}
		for i, end := n, n+got; i < end; i++ {
			if e.own(&cs[i]) {
				continue
			}
			if i != n {
				cs[n] = cs[i]
			}
			n++
		}
	}
	e.mu.Unlock()
	return n
}

// own takes a completion that is the library's. The lock is held.
func (e *Endpoint) own(c *rdma.Completion) bool {
	e.gen.see(c)
	if c.Op != rdma.OpRead && c.Op != rdma.OpFlush && c.Status == rdma.StatusOK {
		e.gen.wrote(c)
	}
	if c.ID&ownID == 0 {
		return false
	}
	k := e.pending[c.ID]
	delete(e.pending, c.ID)
	e.wakeUp(&k.asleep)
	if k.left {
		e.calls <- k
	} else {
		k.done <- *c
	}
	return true
}

// drain takes what has completed. The lock is held.
func (e *Endpoint) drain() {
	for {
		n := e.cq.Poll(e.batch[:])
		for i := range e.batch[:n] {
			if !e.own(&e.batch[i]) {
				e.done.Push(e.batch[i])
			}
		}
		clear(e.batch[:n])
		if n < len(e.batch) {
			break
		}
	}
	if e.done.Len() > 0 {
		e.wakeUp(&e.waits)
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// take is drain without the lock held.
func (e *Endpoint) take() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drain()
}

// event is told by the completion queue.
func (e *Endpoint) event() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drain()
	e.arm()
}

// arm asks for an event if somebody waits for one. The lock is held.
func (e *Endpoint) arm() {
	for e.asleep > 0 && !e.closed && !e.cq.Arm() {
		e.drain()
	}
}

// sleep has events called until wakeUp, and reports whether that was so before.
func (e *Endpoint) sleep(asleep *bool) (before bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if before = *asleep; !before {
		*asleep = true
		e.asleep++
	}
	e.drain()
	e.arm()
	return before
}

// wakeUp is the end of sleep. Who delivers what was waited for calls it: from then on nobody wants events. The lock is held.
func (e *Endpoint) wakeUp(asleep *bool) {
	if *asleep {
		*asleep = false
		e.asleep--
	}
}

// Wait returns when Poll has something to take, or when ctx is done. One goroutine calls it at a time.
func (e *Endpoint) Wait(ctx context.Context) error {
	for conn := e.posts.Load(); ; {
		if done, err := e.ready(ctx); done || err != nil {
			return err
		}
		if conn.await() || !e.sleep(&e.waits) { // it awaits once more before it sleeps
			continue
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		}
	}
}

// ready reports whether Poll has something to take, or that ctx is done.
func (e *Endpoint) ready(ctx context.Context) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drain(); e.done.Len() > 0 {
		return true, nil
	}
	err := ctx.Err()
	if err != nil {
		e.wakeUp(&e.waits)
	}
	return false, err
}

// Close ends the connection, gives mappings back, and frees the memory from Alloc. No other method is called during it or after it.
func (e *Endpoint) Close() error {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	blocks, maps := e.blocks, e.maps
	e.mu.Unlock()
	var errs []error
	for _, m := range maps {
		m.Unmap()
	}
	if c := e.now.Load(); c != nil {
		errs = append(errs, c.qp.Close())
	}
	if e.cq != nil {
		e.mu.Lock()
		e.drain()
		e.mu.Unlock()
		errs = append(errs, e.cq.Close())
	}
	for i := range blocks {
		errs = append(errs, blocks[i].release())
	}
	if e.dom != nil {
		errs = append(errs, e.dom.Close())
	}
	return errors.Join(append(errs, e.shut())...)
}
