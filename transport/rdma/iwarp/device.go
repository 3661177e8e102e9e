// Package iwarp is an RDMA device in user space: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and
// RDMAP (RFC 5040) over TCP, with the one-shot extension. It needs neither an RDMA card nor a
// kernel module, and its peers may have one.
//
//	device.go    Device, its limits and counters
//	memory.go    protection domains, windows
//	receive.go   queues of receives, own and shared
//	listen.go    connections that peers want    ┐ MPA startup
//	connect.go   connections that we want       ┘
//	queuepair.go the queue pair
//	life.go      the states of its life, and which may follow which
//	work.go      Post: checks, and the send queue
//	oneshot.go   STags advertised and closed
//	send.go      what is posted ─► FPDUs ─► writev
//	read.go      the goroutine that owns the socket: readv, FPDUs cut from the stream
//	place.go     a segment's way to its place, and what its message does
//	end.go       Terminate, disconnection, flush
//
// A connection has one goroutine, which is parked in the poller while nothing comes. It reads
// everything that has come with one readv, hands completions to the completion queues, calls
// their events, and sends everything that these have posted with one writev. Payload goes
// directly from the socket to its final place, and from registered memory to the socket; only
// small payloads are copied once, together with their headers. An idle connection holds no
// buffers.
package iwarp

import (
	"log/slog"
	"sync"
	"time"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Config configures a device. The zero value is valid.
type Config struct {
	Logger *slog.Logger // nil: silence
	Name   string       // for messages and counters; "": iwarp
	// STags is the greatest number of regions, windows and advertised STags at a time.
	// 0: 2²⁰.
	STags int
	// MaxReads bounds the RDMA Reads outstanding per connection, either way. 0: 128.
	MaxReads int
	// NoCRC lets the peer decide whether FPDUs have CRCs. One-shot connections always have them.
	NoCRC bool
	// PlainMPA has Connect speak revision 1 of MPA (RFC 5044), without IRD, ORD and one-shot.
	PlainMPA bool
	// ClientServer has Connect not offer the peer-to-peer model (RFC 6581 §9.2), in which it
	// sends a ready-to-receive message so that the other end may send first. Then the work of
	// the other end waits for the first message of this one.
	ClientServer bool
	// MaxULPDU is the largest ULPDU that is sent, in octets. 0: what fits into a TCP segment.
	MaxULPDU int
	// StartupTimeout bounds the exchange of MPA frames, 0: 10 s; AcceptTimeout how long the
	// owner of a listener may take to accept, 0: 10 s; LingerTime how long a connection may
	// take to end in good order, 0: 3 s.
	StartupTimeout, AcceptTimeout, LingerTime time.Duration
}

const (
	defaultSTags    = 1 << 20
	defaultMaxReads = 128
	maxQueuePair    = 1 << 16
	maxWork         = 1 << 15
	maxSGE          = 32
	maxMemory       = 4096 // elements of the memory of one advertised STag
	maxMessage      = soft.MaxMessage
	maxInline       = 256
)

// Device is the iWARP device.
type Device struct {
	cfg    Config
	log    *slog.Logger
	memory soft.Memory
	cqs    soft.Queues
	qps    soft.QueuePairs
	work   sync.WaitGroup // short-lived goroutines

	mu      sync.Mutex              // taken after queuePair.mu
	waiters map[stag.STag][]*waiter // waiting for the release of the last reference to invalidated memory
}

var _ rdma.Device = (*Device)(nil)

// Open makes a device. It has no other resources than memory; Close frees it.
func Open(c Config) (rdma.Device, error) {
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
	c.MaxReads = min(c.MaxReads, ddp.DepthUnknown-1)
	orTime(&c.StartupTimeout, 10*time.Second)
	orTime(&c.AcceptTimeout, 10*time.Second)
	orTime(&c.LingerTime, 3*time.Second)
	if c.Name == "" {
		c.Name = "iwarp"
	}
	d := &Device{cfg: c, log: c.Logger, waiters: make(map[stag.STag][]*waiter)}
	d.memory.Init(c.STags)
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	return d, nil
}

// Limits implements rdma.Device.
func (d *Device) Limits() rdma.Limits {
	return rdma.Limits{
		Name: d.cfg.Name, MaxQueuePair: maxQueuePair, MaxWork: maxWork,
		MaxSGE: maxSGE, MaxReadSGE: maxSGE, MaxMessage: maxMessage,
		MaxReads: d.cfg.MaxReads, MaxInline: maxInline, MaxPrivate: ddp.MaxULPPrivateData,
		Windows: true, OneShot: true, ReceiveWait: true,
		SendInvalidate: true, RegionInvalidate: true, EndTold: true, CountsRemote: true,
	}
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
	if d.qps.InUse() || d.cqs.InUse() {
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
