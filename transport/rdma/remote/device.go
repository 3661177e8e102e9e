// Package remote is an RDMA device over an RDMA device: its queue pairs reach partitions that another machine
// serves (package partition/service), with the messages of partition/wire.
//
//	device.go     Device, domains and regions, which are those below
//	queuepair.go  the queue pair: its life, and what it tells
//	work.go       Post: checks; the list of what is posted; whose completion is next
//	send.go       works ─► requests: which may be sent, and where their memory is
//	answer.go     responses ─► completions
//	link.go       one connection: HELLO to ATTACHED, events
//	again.go      a connection that was lost comes back
//
// A Write of at most 16 KiB travels with its request. Other memory is advertised with the Send of the request
// (one-shot) and closed by the response; a device that has no one-shot below registers it for good, and requests
// name it (Config.Static). Requests are sent in the order of posting, up to the credits of the service, which
// keeps their order as package rdma says (Order): a fence costs no round trip, but behind Writes that go without a request (direct.go).
package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unsafe"

	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Config says how a device is to be.
type Config struct {
	Device rdma.Device // below; stays the owner's
	Pool   *mem.Pool   // of the memory of messages, 64 KiB for each queue pair; nil: one of its own. An rdma.Allocator has its own
	Logger *slog.Logger

	// Name and Secret are those of the client; without a name it is anonymous. Connect fails at a service that does
	// not prove that it knows the secret, too.
	Name   string
	Secret []byte

	// Static registers memory with remote access instead of advertising it for one request. It is always on over a
	// device without one-shot. Elements of scatter/gather lists have to be whole units then. Whoever is at the other end of a
	// connection can reach all memory of the queue pair's domain for as long as it is registered: to read it, and to write to it
	// if it has AccessLocalWrite. He can do so from the moment that the connection begins, before he has proved that he is the
	// service. So each service should have a domain of its own, in which only such memory is as that service may have.
	Static bool

	// Patience is how long the device tries to restore a lost connection, 0: 30 s; less than 0: it does not try.
	Patience time.Duration
	// Timeout bounds each attempt to connect, the greeting included, 0: 10 s.
	Timeout time.Duration
}

const (
	maxWork = 1 << 12
	// maxDiscard bounds one request to discard, in bytes.
	maxDiscard = 1 << 30
	// maxCredits is how many requests are outstanding at most.
	maxCredits = 64
)

// Device implements rdma.Device. Its methods may be called from any goroutine.
type Device struct {
	cfg    Config
	log    *slog.Logger
	limits rdma.Limits // of the device below
	static bool
	cqs    soft.Queues
	work   sync.WaitGroup // short-lived goroutines

	mu   sync.Mutex // taken after all other locks
	qps  map[*queuePair]struct{}
	past rdma.Counters
}

var _ rdma.Device = (*Device)(nil)

// sharing is a Device over one that registers only memory of its own (rdma.Allocator), and so does it.
type sharing struct {
	*Device
	rdma.Allocator
}

// Open makes a device. It has no other resources than memory; Close frees it. It is an rdma.Allocator if the device
// below is one.
func Open(c Config) rdma.Device {
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Pool == nil {
		c.Pool = mem.NewPool(64 << 20)
	}
	d := &Device{cfg: c, log: c.Logger, limits: c.Device.Limits(), qps: make(map[*queuePair]struct{})}
	d.static = c.Static || !d.limits.OneShot
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if a, ok := c.Device.(rdma.Allocator); ok {
		return sharing{d, a}
	}
	return d
}

// Limits implements rdma.Device.
func (d *Device) Limits() rdma.Limits {
	l := &d.limits
	return rdma.Limits{
		Name: "remote over " + l.Name, MaxQueuePair: l.MaxQueuePair, MaxWork: min(l.MaxWork, maxWork),
		MaxSGE: l.MaxSGE, MaxReadSGE: l.MaxSGE, MaxMessage: soft.MaxMessage, MaxReads: min(l.MaxWork, maxWork),
		EndTold: true, CountsRemote: true,
		Endpoints: true, Orders: rdma.FreeStart | rdma.FreeFinish, Flush: true, Atomics: rdma.AtomicsAll,
	}
}

// NewCompletionQueue implements rdma.Device. The queue grows to what is asked of it.
func (d *Device) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
	return d.cqs.New(event), nil
}

// NewReceiveQueue implements rdma.Device: there are none, for an endpoint sends nothing.
func (d *Device) NewReceiveQueue(rdma.Domain, int) (rdma.ReceiveQueue, error) {
	return nil, rdma.ErrUnsupported
}

// Listen implements rdma.Device: package partition/service serves partitions.
func (d *Device) Listen(string) (rdma.Listener, error) { return nil, rdma.ErrUnsupported }

// Close implements rdma.Device.
func (d *Device) Close() error {
	d.work.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) > 0 || d.cqs.InUse() {
		return soft.ErrInUse
	}
	return nil
}

// Counters implements rdma.Device. Registrations are those of the device below.
func (d *Device) Counters() rdma.Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := d.past
	d.cqs.AddTo(&sum)
	for q := range d.qps {
		q.n.AddTo(&sum)
	}
	return sum
}

// domain is a protection domain, that of the device below.
type domain struct {
	dev   *Device
	below rdma.Domain
}

// NewDomain implements rdma.Device.
func (d *Device) NewDomain() (rdma.Domain, error) {
	below, err := d.cfg.Device.NewDomain()
	if err != nil {
		return nil, err
	}
	return &domain{d, below}, nil
}

var errRemoteAccess = errors.New("remote: endpoints take only memory with local access")

// Register implements rdma.Domain.
func (d *domain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	if a&^rdma.AccessLocalWrite != 0 {
		return nil, errRemoteAccess
	}
	with := a
	if d.dev.static {
		with |= rdma.AccessRemoteRead
		if a&rdma.AccessLocalWrite != 0 {
			with |= rdma.AccessRemoteWrite
		}
	}
	below, err := d.below.Register(b, with)
	if err != nil {
		return nil, err
	}
	return &region{Region: below, domain: d, access: a}, nil
}

// NewWindow implements rdma.Domain.
func (d *domain) NewWindow() (rdma.Window, error) { return nil, rdma.ErrUnsupported }

// Close implements rdma.Domain.
func (d *domain) Close() error { return d.below.Close() }

// region is registered memory.
type region struct {
	rdma.Region
	domain *domain
	access rdma.Access

	mu   sync.Mutex // a leaf
	gone bool       // Deregister was called
}

// Deregister implements rdma.Region.
func (r *region) Deregister() error {
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	return r.Region.Deregister()
}

// put writes what an atomic operation has found to b, a part of r: the device below knows nothing of that. False: the memory is its owner's again.
func (r *region) put(b []byte, v uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		binary.NativeEndian.PutUint64(b, v)
	}
	return !r.gone
}

// sge returns e for the device below, or says what is wrong with it.
func (d *domain) sge(e *rdma.SGE, need rdma.Access) (_ rdma.SGE, what string) {
	r, ok := e.Region.(*region)
	switch {
	case !ok:
		return rdma.SGE{}, "memory without a region of this device"
	case r.domain != d:
		return rdma.SGE{}, "region of another protection domain"
	case r.access&need != need:
		return rdma.SGE{}, "region does not allow local writes"
	}
	if _, ok := offset(e.Bytes, r.Bytes()); !ok {
		return rdma.SGE{}, "memory is not inside of its region"
	}
	return rdma.SGE{Bytes: e.Bytes, Region: r.Region}, ""
}

// offset returns where b begins in r. False: it is not inside.
func offset(b, r []byte) (uint64, bool) {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(r)))
	off := uint64(at - from)
	return off, at >= from && off <= uint64(len(r)) && uint64(len(b)) <= uint64(len(r))-off
}

// LostError says that the service has begun anew, and that writes which had completed may be lost: those whose
// number is From or larger, and atomic operations that were not durable. What was outstanding has not been repeated.
type LostError struct{ From uint64 }

func (e *LostError) Error() string {
	return fmt.Sprintf("remote: the service of the partition has begun anew: writes from number %d on, which were not durable, may be lost", e.From)
}
