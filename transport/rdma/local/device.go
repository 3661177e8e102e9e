// Package local is an RDMA device without a wire. Its queue pairs reach each other inside of the process,
// and endpoints: stores, or parts of them, that somebody opens for it.
//
//	device.go     Device, its limits and counters
//	memory.go     protection domains, windows
//	receive.go    queues of receives, own and shared
//	queuepair.go  the queue pair, whatever is at its far end
//	listen.go     addresses "pair:N"
//	narrow.go     a device that reaches one of these alone
//	pair.go       two queue pairs: a copy takes the place of the wire
//	expose.go     what a peer reaches that is no memory
//	endpoint.go   a queue pair to a store: connecting and ending
//	order.go      which work may start, and whose completion is next
//	store.go      a work on its way through the store
//	map.go        memory of a store that its user has
//
// Pairs connect parts of one program, and by way of a card (transport/rdma/nic/card) other programs with this one. Work is done in Post, as far as it
// can be.
//
// The works of an endpoint go to the store as they are: the scatter/gather list is the list of segments of
// the store's operation, and nothing is copied here. If the store answers at once, the completion is in the
// queue before Post returns.
package local

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Config says how a device is to be. The zero value is one without endpoints.
type Config struct {
	Logger *slog.Logger // nil: silence
	Name   string       // for people; "": local
	// STags is how many regions, windows and endpoints there may be at a time. 0: 64 Ki.
	STags int
	// MaxReads is the most that Reads of a queue pair returns. 0: 128.
	MaxReads int
	// Parallel is the most bytes of one operation of the store: a longer Read or Write of an endpoint becomes
	// several operations, which run in parallel. 0: 1 MiB.
	Parallel int64
	// AcceptTimeout bounds how long the owner of a listener may take to accept, 0: 10 s; LingerTime how long
	// a pair may take to end in good order, 0: 3 s.
	AcceptTimeout, LingerTime time.Duration
	// Open, if set, opens endpoints. It is called by Connect.
	Open Opener
}

const (
	defaultSTags    = 1 << 16
	defaultMaxReads = 128
	defaultParallel = 1 << 20
	maxQueuePair    = 1 << 16
	maxWork         = 1 << 15
	maxSGE          = 32
	maxMessage      = soft.MaxMessage
	maxInline       = 256
	maxPrivate      = 256
)

var (
	errBound   = errors.New("local: window is bound; invalidate it first")
	errNotIdle = errors.New("local: queue pair is, or was, connected already")
	errAborted = errors.New("local: connection aborted")
	errLinger  = errors.New("local: the peer does not take what was sent before the end")
)

// Device implements rdma.Device. Its methods may be called from any goroutine.
type Device struct {
	cfg    Config
	log    *slog.Logger
	memory soft.Memory
	cqs    soft.Queues
	qps    soft.QueuePairs
	work   sync.WaitGroup // short-lived goroutines

	mapped atomic.Int64 // mappings of endpoints

	still sync.Cond // the last reference to memory that allows no access is released; its lock is a leaf
}

var _ rdma.Device = (*Device)(nil)

// Open makes a device. It has no other resources than memory; Close frees it.
func Open(c Config) *Device {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&c.STags, defaultSTags)
	or(&c.MaxReads, defaultMaxReads)
	orTime(&c.AcceptTimeout, 10*time.Second)
	orTime(&c.LingerTime, 3*time.Second)
	if c.Parallel <= 0 {
		c.Parallel = defaultParallel
	}
	if c.Name == "" {
		c.Name = "local"
	}
	d := &Device{cfg: c, log: c.Logger}
	d.memory.Init(c.STags)
	d.still.L = new(sync.Mutex)
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	return d
}

// Limits implements rdma.Device.
func (d *Device) Limits() rdma.Limits {
	l := rdma.Limits{
		Name: d.cfg.Name, MaxQueuePair: maxQueuePair, MaxWork: maxWork,
		MaxSGE: maxSGE, MaxReadSGE: maxSGE, MaxMessage: maxMessage,
		MaxReads: d.cfg.MaxReads, MaxInline: maxInline, MaxPrivate: maxPrivate,
		Windows: true, ReceiveWait: true,
		SendInvalidate: true, RegionInvalidate: true, EndTold: true, CountsRemote: true,
	}
	if d.cfg.Open != nil {
		l.Endpoints, l.Flush, l.Atomics = true, true, rdma.AtomicsAll
		l.Orders = rdma.FreeStart | rdma.FreeFinish
	}
	return l
}

// NewCompletionQueue implements rdma.Device. The queue grows to what is asked of it.
func (d *Device) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
	return d.cqs.New(event), nil
}

// NewDomain implements rdma.Device.
func (d *Device) NewDomain() (rdma.Domain, error) {
	return &domain{dev: d, Domain: d.memory.NewDomain()}, nil
}

// Close implements rdma.Device.
func (d *Device) Close() error {
	d.work.Wait()
	if d.qps.InUse() || d.cqs.InUse() || d.mapped.Load() != 0 {
		return soft.ErrInUse
	}
	return nil
}

// Counters implements rdma.Device.
func (d *Device) Counters() rdma.Counters {
	sum := d.qps.Counters()
	d.memory.AddTo(&sum)
	d.cqs.AddTo(&sum)
	return sum
}
