package registry

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/internal/latency"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/volume"
)

// Endpoint is a partition as a queue pair uses it: a handle of its volume that counts operations. Whoever has
// opened it enforces the rights that were granted. Its methods promise what those of volume.Handle do.
type Endpoint struct {
	*volume.Handle
	part    *part
	request Request
	rights  rdma.Rights
	number  uint64
	lineage uint64 // the number of the first endpoint of those that follow each other
	size    int64  // bytes, when it was opened
	since   time.Time
	gone    sync.Once
	closed  chan struct{}

	n      [classes]counter
	failed [failures]atomic.Uint64
}

// counter counts the operations of a class. A look at the clock costs more than most of them, so only one in
// sampled is timed. Its time counts for all that have completed since the one that was timed before.
type counter struct {
	begun, done atomic.Uint64
	bytes       atomic.Uint64

	mu      sync.Mutex // a leaf; held by one operation in sampled, and by readers
	timed   bool       // last is valid
	last    int64      // nanoseconds that the last timed one took
	settled uint64     // operations in buckets
	buckets [latency.Buckets]uint64
	sum     int64 // nanoseconds
}

const sampled = 64

// settle puts what has completed into the buckets. mu is held.
func (c *counter) settle() {
	if n := c.done.Load() - c.settled; c.timed {
		c.buckets[latency.Bucket(c.last)] += n
		c.sum += c.last * int64(n)
		c.settled += n
	}
}

// time notes how long an operation took, which is counted already.
func (c *counter) time(took int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timed, c.last = true, took
	c.settle()
}

// tell calls Gone.
func (e *Endpoint) tell(err error) { e.gone.Do(func() { e.request.Gone(err) }) }

// Describe says what was opened, with the size that it had then.
func (e *Endpoint) Describe() rdma.Endpoint {
	s := e.part.store
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	d := rdma.Endpoint{UUID: e.part.uuid.String(), Rights: e.rights}
	if p := s.find(e.part.uuid); p != nil {
		d = s.describe(p, e.size, e.rights)
	}
	return d
}

// Lends reports whether the store lends its memory.
func (e *Endpoint) Lends() bool { return e.part.volume.Lends() }

// Close ends the use of the partition. Nothing is outstanding, and nothing is submitted any more. It is called
// once.
func (e *Endpoint) Close() {
	e.Handle.Close()
	r := e.part.store.r
	r.mu.Lock()
	defer r.mu.Unlock()
	e.part.past.Add(e.Counts())
	e.part.past.InFlight = 0
	r.open--
	r.shares.Free(e.request.Identity.Shares())
	e.part.store.shares.Free(e.request.Identity.Shares())
	delete(e.part.endpoints, e)
	e.part.left()
	close(e.closed)
}

// Lineage is what an endpoint follows (Request.Follows) whose user goes on where the user of this one was.
func (e *Endpoint) Lineage() uint64 { return e.lineage }

// who tells the users apart that rdma.RightSole is about.
func (e *Endpoint) who() string { return e.request.Identity.String() }

// Submit starts op; see volume.Handle.
func (e *Endpoint) Submit(op *backend.Op) bool {
	m := e.begin(op, op.Kind)
	if !e.Handle.Submit(op) {
		return false
	}
	m.end()
	return true
}

// CompareSwap changes 8 octets; see volume.Handle.
func (e *Endpoint) CompareSwap(op *backend.Op, compare, swap uint64) bool {
	m := e.begin(op, backend.Flush) // any that is counted with the others
	if !e.Handle.CompareSwap(op, compare, swap) {
		return false
	}
	m.end()
	return true
}

// FetchAdd changes 8 octets; see volume.Handle.
func (e *Endpoint) FetchAdd(op *backend.Op, add uint64) bool {
	m := e.begin(op, backend.Flush)
	if !e.Handle.FetchAdd(op, add) {
		return false
	}
	m.end()
	return true
}

// Map maps memory of the partition, which counts as an operation under way until unmap; see volume.Handle.
func (e *Endpoint) Map(off, n int64, write bool, recall func()) (b []byte, unmap func(), err error) {
	b, end, err := e.Handle.Map(off, n, write, recall)
	if err != nil {
		return nil, nil, err
	}
	c := &e.n[Other]
	c.begun.Add(1)
	return b, sync.OnceFunc(func() {
		c.done.Add(1)
		end()
	}), nil
}

// metered is an operation under way.
type metered struct {
	e     *Endpoint
	op    *backend.Op
	done  backend.Completer // the owner's
	class Class
	timed bool
	began time.Duration // if timed
}

var (
	_       backend.Corker = (*metered)(nil)
	_       backend.Aged   = (*metered)(nil)
	meters                 = sync.Pool{New: func() any { return new(metered) }}
	started                = time.Now()
)

func (e *Endpoint) begin(op *backend.Op, kind backend.Kind) *metered {
	m := meters.Get().(*metered)
	*m = metered{e: e, op: op, done: op.Done, class: Other}
	switch kind {
	case backend.Read:
		m.class = Read
	case backend.Write:
		m.class = Write
	}
	op.Done = m
	if m.timed = e.n[m.class].begun.Add(1)%sampled == 1; m.timed {
		m.began = time.Since(started)
	}
	return m
}

// end counts, and gives the operation its owner's Completer back.
func (m *metered) end() {
	e, op := m.e, m.op
	op.Done = m.done
	c := &e.n[m.class]
	switch {
	case op.Err != nil:
		e.failed[failureOf(op.Err)].Add(1)
	case m.class != Other:
		c.bytes.Add(uint64(op.Len))
	}
	c.done.Add(1)
	if m.timed {
		c.time(int64(time.Since(started) - m.began))
	}
	*m = metered{}
	meters.Put(m)
}

// OpDone is for the volume.
func (m *metered) OpDone(op *backend.Op) {
	m.end()
	op.Done.OpDone(op)
}

// Cork is for the volume.
func (m *metered) Cork() backend.Uncorker { return backend.Cork(m.done) }

// Age is for the volume.
func (m *metered) Age() (uint8, backend.Guard) { return backend.Age(m.done) }

// Class is a class of operations that are counted together.
type Class uint8

// The classes.
const (
	Read Class = iota
	Write
	Other // flushes, discards, atomic operations
	classes
)

// Failure is why an operation failed.
type Failure uint8

// The failures.
const (
	FailedMedium  Failure = iota
	FailedSpace           // no room on the medium
	FailedDenied          // a reservation, or SANITIZE
	FailedRange           // outside the partition, which has become smaller below
	FailedPromise         // durability was lost earlier
	failures
)

func (f Failure) String() string {
	return [...]string{"medium_error", "no_space", "denied", "outside", "durability_lost"}[f]
}

func failureOf(err error) Failure {
	if _, ok := errors.AsType[*durable.LostError](err); ok {
		return FailedPromise
	}
	switch err.(type) { //nolint:errorlint // an error of the medium may wrap any other
	case *backend.SpaceError:
		return FailedSpace
	case *backend.DeniedError:
		return FailedDenied
	case *backend.RangeError:
		return FailedRange
	}
	return FailedMedium
}

// Counts is what was done. It is a copy, which belongs to the caller.
type Counts struct {
	Buckets  [classes][latency.Buckets]uint64 // operations by Class and latency; see counter
	SumNS    [classes]int64
	Bytes    [classes]uint64 // of operations that ended well; none of Other
	Failed   [failures]uint64
	InFlight int64
}

// Add adds o to c.
func (c *Counts) Add(o *Counts) {
	for i := range c.Buckets {
		for j := range c.Buckets[i] {
			c.Buckets[i][j] += o.Buckets[i][j]
		}
		c.SumNS[i] += o.SumNS[i]
		c.Bytes[i] += o.Bytes[i]
	}
	for i := range c.Failed {
		c.Failed[i] += o.Failed[i]
	}
	c.InFlight += o.InFlight
}

// Counts returns what was done through e so far.
func (e *Endpoint) Counts() *Counts {
	c := new(Counts)
	for i := range e.n {
		n := &e.n[i]
		n.mu.Lock()
		n.settle()
		c.Buckets[i], c.SumNS[i], c.Bytes[i] = n.buckets, n.sum, n.bytes.Load()
		n.mu.Unlock()
		done := n.done.Load() // before begun, so that it is no larger
		c.InFlight += int64(n.begun.Load() - done)
	}
	for i := range e.failed {
		c.Failed[i] = e.failed[i].Load()
	}
	return c
}

// Info is what is known of an open endpoint.
type Info struct {
	Number    uint64 // of this life of the daemon
	Store     string
	Partition string
	UUID      partition.UUID
	Identity  string // for people
	Rights    rdma.Rights
	Order     rdma.Order
	Via       string
	Size      int64 // bytes, as it was opened
	Since     time.Time
	Counts    Counts
}

// info returns it. Registry.mu is held.
func (e *Endpoint) info(s *Store, p *part) Info {
	i := Info{
		Number: e.number, Store: s.name, UUID: p.uuid, Identity: e.request.Identity.String(),
		Rights: e.rights, Order: e.request.Order, Via: e.request.Via, Size: e.size, Since: e.since, Counts: *e.Counts(),
	}
	if entry := s.find(p.uuid); entry != nil {
		i.Partition = entry.Name
	}
	return i
}
