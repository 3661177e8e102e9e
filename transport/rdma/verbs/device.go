//go:build verbs && cgo && linux

package verbs

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs/internal/finder"
)

// Built says whether this build, which has the tag verbs, can use devices.
const Built = true

const (
	// maxSGE is the most elements of a list. Every request has room for that many.
	maxSGE = 16
	// maxWork is the longest queue. Devices offer up to a million.
	maxWork = 1 << 15
	// Private data that the connection managers carry: IBTA 12.7.34 for the request, of which
	// rdma_cm takes 36 bytes; MPA 512, of which librdmacm counts no more than 255, and
	// RFC 6581 takes 4.
	maxPrivateIB, maxPrivateIWARP = 56, 248
	// siwVendor and rxeVendor are the vendor IDs of the kernel's software devices.
	siwVendor = 0x626d74
	rxeVendor = 0xffffff
	// siwSendpage is the length in bytes from which on siw hands the pages of a request to TCP. TCP may refer to
	// them even after siw has completed later requests. siw copies signalled requests of any length.
	// (SENDPAGE_THRESH in siw is the size of a page, which is 4096 or more.)
	siwSendpage = 4096
)

// load loads the libraries, once.
var load = sync.OnceValue(func() error {
	if missing := C.os_load((*C.os_find)(finder.Function)); missing != nil {
		return fmt.Errorf("verbs: %s cannot be loaded: install rdma-core, libibverbs1, librdmacm1 and ibverbs-providers", C.GoString(missing))
	}
	return nil
})

// errno converts the result of a function of the shim to an error.
func errno(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(-rc)
}

// Device is an RDMA device of the kernel.
type Device struct {
	cfg    Config
	log    *slog.Logger
	ctx    *C.struct_ibv_context
	limits rdma.Limits
	iwarp  bool
	siw    bool // the device is siw, which needs special handling
	// lastWQE: the device sends IBV_EVENT_QP_LAST_WQE_REACHED; see queuePair.awaitLast.
	lastWQE bool
	node    string // the path in sysfs, which exists as long as the device
	port    C.int
	maxCQE  int

	async   *poller
	manager *manager
	filler  *C.struct_ibv_cq // of siw, see occupy
	work    sync.WaitGroup   // goroutines

	registrations atomic.Uint64
	sleeping      atomic.Bool   // polling is off: goroutines of queues sleep at once
	closing       chan struct{} // closed by free

	// numbers is held while a queue pair gets or gives up its number, because a completion is assigned
	// by the number of its queue pair.
	numbers sync.Mutex

	mu  sync.Mutex
	qps map[*queuePair]struct{}
	cqs map[*completionQueue]struct{}
	// regions keeps the garbage collector from freeing memory that the device may write to.
	regions   map[*region]struct{}
	listeners map[*listener]struct{}
	past      rdma.Counters // of queue pairs and completion queues that are closed
	gone      error         // the device has been removed or is broken
}

var _ rdma.Device = (*Device)(nil)

// Open opens a device. Errors say what to do.
func Open(c Config) (rdma.Device, error) {
	c.fill()
	if c.Spin == 0 {
		c.Spin = defaultSpin()
	}
	if err := load(); err != nil {
		return nil, err
	}
	raiseMemlock()
	d := &Device{cfg: c, log: c.Logger.With("device", c.Name), qps: make(map[*queuePair]struct{}), cqs: make(map[*completionQueue]struct{}), regions: make(map[*region]struct{}), listeners: make(map[*listener]struct{}), closing: make(chan struct{})}
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.free())
	}
	d.work.Go(d.watch)
	d.work.Go(d.look)
	return d, nil
}

// raiseMemlock raises the limit on registered memory as far as this process may. siw enforces the limit
// even for root. If the limit is still too low, registering memory fails.
func raiseMemlock() {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited) == nil {
		return
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur < l.Max {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l)
	}
}

// find opens the device called name and returns its context.
func find(name string) (*C.struct_ibv_context, bool, error) {
	var n C.int
	list, err := C.os_devices(&n)
	if list == nil {
		return nil, false, fmt.Errorf("verbs: no RDMA devices: %w; is the module ib_uverbs loaded (modprobe ib_uverbs)?", err)
	}
	defer C.os_free_devices(list)
	names := make([]string, 0, n)
	for _, dev := range unsafe.Slice(list, int(n)) {
		if names = append(names, C.GoString(C.os_device_name(dev))); names[len(names)-1] != name {
			continue
		}
		ctx, err := C.os_open(dev)
		if ctx == nil {
			return nil, false, fmt.Errorf("verbs: open %s: %w; /dev/infiniband/uverbs* has to be there and readable for this process", name, err)
		}
		return ctx, C.os_is_iwarp(dev) != 0, nil
	}
	if n == 0 {
		return nil, false, fmt.Errorf("verbs: there is no RDMA device %s, nor any other: \"rdma link add rxe0 type rxe netdev eth0\" makes one of the network interface eth0", name)
	}
	return nil, false, fmt.Errorf("verbs: there is no RDMA device %s; there are %v", name, names)
}

func (d *Device) open() (err error) {
	if d.ctx, d.iwarp, err = find(d.cfg.Name); err != nil {
		return err
	}
	d.node = C.GoString(C.os_device_node(d.ctx))
	if err := d.measure(); err != nil {
		return err
	}
	if d.siw {
		if err := d.occupy(); err != nil {
			return err
		}
	}
	if d.async, err = newPoller(int(C.os_async_fd(d.ctx)), d.cfg.Name+" events"); err != nil {
		return err
	}
	d.manager, err = newManager(d.log)
	return err
}

// siwFiller is how many completions a queue of siw has to have room for to be longer than 0x90000 bytes, at 32 each.
const siwFiller = 1 << 15

// occupy makes a queue that is never used. The kernel identifies the memory of siw's queues by keys, which are offsets
// in an imaginary file. siw's library takes the key 0x90000 for an invalid one, and fails to make the queue that has it. The
// first queue of a context, if it is long enough, covers that offset.
func (d *Device) occupy() (err error) {
	if d.filler, err = C.os_create_cq(d.ctx, siwFiller, nil); d.filler == nil {
		return fmt.Errorf("verbs: completion queue of %s: %w", d.cfg.Name, err)
	}
	return nil
}

// measure asks the device what it can do.
func (d *Device) measure() error {
	var a C.struct_ibv_device_attr
	if err := errno(C.os_query_device(d.ctx, &a)); err != nil {
		return fmt.Errorf("verbs: query %s: %w", d.cfg.Name, err)
	}
	var p C.struct_ibv_port_attr
	for i := C.int(1); i <= C.int(a.phys_port_cnt); i++ {
		if err := errno(C.os_query_port(d.ctx, i, &p)); err != nil {
			return fmt.Errorf("verbs: query port %d of %s: %w", i, d.cfg.Name, err)
		}
		if d.port = i; p.state == C.IBV_PORT_ACTIVE {
			break
		}
	}
	d.maxCQE, d.siw = int(a.max_cqe), a.vendor_id == siwVendor
	d.lastWQE = !d.siw && a.vendor_id != rxeVendor
	d.limits = d.limitsOf(&a, &p)
	return d.measureInline()
}

// limitsOf returns the limits of a device with the given attributes of device and port.
func (d *Device) limitsOf(a *C.struct_ibv_device_attr, p *C.struct_ibv_port_attr) rdma.Limits {
	l := rdma.Limits{
		Name: d.cfg.Name, MaxQueuePair: int(a.max_qp), MaxWork: min(int(a.max_qp_wr), maxWork) - markers,
		MaxSGE: min(int(a.max_sge), maxSGE), MaxMessage: int64(uint32(p.max_msg_sz)),
		MaxReads:            min(int(a.max_qp_rd_atom), int(a.max_qp_init_rd_atom)),
		MaxPrivate:          maxPrivateIB,
		ReadSinkWrite:       d.iwarp && !d.siw, // siw does not ask for it
		ReceiveWait:         !d.iwarp,
		PartTakesReceive:    true,
		SendInvalidate:      a.device_cap_flags&C.IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
		UnguardedInvalidate: d.siw,
		UnguardedRead:       d.siw,
		Windows:             a.max_mw > 0 && a.device_cap_flags&(C.IBV_DEVICE_MEM_WINDOW_TYPE_2A|C.IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0,
	}
	if a.max_srq_sge > 0 {
		l.MaxSGE = min(l.MaxSGE, int(a.max_srq_sge))
	}
	if l.MaxReadSGE = l.MaxSGE; a.max_sge_rd > 0 {
		l.MaxReadSGE = min(l.MaxSGE, int(a.max_sge_rd))
	}
	if d.siw {
		l.LateSource = siwSendpage
	}
	if d.iwarp {
		l.MaxPrivate = maxPrivateIWARP
	}
	return l
}

// measureInline finds out by trial how many bytes the device takes inline, because the device does not say.
func (d *Device) measureInline() error {
	pd, err := C.os_alloc_pd(d.ctx)
	if pd == nil {
		return fmt.Errorf("verbs: %s: %w", d.cfg.Name, err)
	}
	defer C.os_dealloc_pd(pd)
	cq, err := C.os_create_cq(d.ctx, 4, nil)
	if cq == nil {
		return fmt.Errorf("verbs: %s: %w", d.cfg.Name, err)
	}
	defer C.os_destroy_cq(cq)
	for _, n := range []C.uint32_t{256, 128, 80, 64, 0} {
		c := C.struct_os_qp_config{pd: pd, send_cq: cq, recv_cq: cq, max_send: 4, max_recv: 4, max_sge: C.uint32_t(d.limits.MaxSGE), max_inline: n}
		qp, e := C.os_create_qp(&c)
		if err = e; qp == nil {
			continue
		}
		C.os_destroy_qp(qp)
		d.limits.MaxInline = int(n)
		return nil
	}
	return fmt.Errorf("verbs: %s makes no queue pair: %w", d.cfg.Name, err)
}

// Limits implements rdma.Device.
func (d *Device) Limits() rdma.Limits { return d.limits }

// SetPolling switches polling on or off: with polling, the goroutines of completion queues poll for Config.Spin
// before they sleep, which saves wake-ups and takes processor time. It takes effect at once, also for queues that
// exist. At first polling is on. d is a device of this package.
func SetPolling(d rdma.Device, on bool) { d.(*Device).sleeping.Store(!on) }

// watch handles the asynchronous events of the device.
func (d *Device) watch() {
	var e C.struct_os_async
	for d.async.wait(func(uintptr) bool { return C.os_get_async(d.ctx, &e) == 0 }) {
		d.happened(&e)
		C.os_ack_async(&e)
	}
}

// ErrResponse is the reason with which a connection ends for which siw has not sent a whole Read Response. siw gives it
// also when the Response has left, and the peer ends the connection before siw looks after it (siw_qp_sq_proc_tx of
// Linux 6.1): so it may stand for a good end.
var ErrResponse = errors.New("siw could not send a Read Response: the peer asked for memory that it may not read, or has ended the connection")

func (d *Device) happened(e *C.struct_os_async) {
	err := fmt.Errorf("verbs: %s: %s", d.cfg.Name, C.GoString(e.text))
	if d.siw && e._type == C.IBV_EVENT_QP_REQ_ERR {
		err = fmt.Errorf("verbs: %s: %w", d.cfg.Name, ErrResponse)
	}
	switch e._type {
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR:
		d.endAll(err, func(q *queuePair) bool { return q.number == e.qpn })
	case C.IBV_EVENT_QP_LAST_WQE_REACHED:
		d.mu.Lock()
		for q := range d.qps {
			if q.number == e.qpn && q.last != nil {
				q.lastOnce.Do(func() { close(q.last) })
			}
		}
		d.mu.Unlock()
	case C.IBV_EVENT_CQ_ERR:
		d.endAll(err, func(q *queuePair) bool {
			return unsafe.Pointer(q.sendCQ.cq) == e.cq || unsafe.Pointer(q.recvCQ.cq) == e.cq
		})
	case C.IBV_EVENT_DEVICE_FATAL:
		d.lost(err)
	case C.IBV_EVENT_PORT_ERR, C.IBV_EVENT_PORT_ACTIVE:
		d.log.Info("RDMA port", "port", uint32(e.port), "event", C.GoString(e.text))
	default:
		d.log.Debug("RDMA device", "event", C.GoString(e.text))
	}
}

// endAll ends the connections that match.
func (d *Device) endAll(err error, match func(*queuePair) bool) {
	d.mu.Lock()
	var list []*queuePair
	for q := range d.qps {
		if match(q) {
			list = append(list, q)
		}
	}
	d.mu.Unlock()
	for _, q := range list {
		q.end(byError, err)
	}
}

var errInUse = errors.New("verbs: still in use")

// Close implements rdma.Device. It waits for connections that are ending.
func (d *Device) Close() error {
	d.mu.Lock()
	if len(d.qps) > 0 || len(d.cqs) > 0 || len(d.listeners) > 0 {
		d.mu.Unlock()
		return errInUse
	}
	d.mu.Unlock()
	return d.free()
}

// free frees everything that Open has made.
func (d *Device) free() error {
	var errs []error
	close(d.closing)
	if d.async != nil {
		errs = append(errs, d.async.close())
	}
	d.work.Wait() // connections have ended, and their identifiers are destroyed
	if d.manager != nil {
		d.manager.end()
		d.manager.work.Wait()
	}
	if d.filler != nil {
		C.os_destroy_cq(d.filler)
	}
	if d.gone != nil {
		letGo(d.ctx)
	}
	if d.ctx != nil {
		errs = append(errs, errno(C.os_close(d.ctx)))
	}
	return errors.Join(errs...)
}

// Counters implements rdma.Device.
func (d *Device) Counters() rdma.Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := d.past
	sum.Registrations = d.registrations.Load()
	for q := range d.qps {
		q.n.addTo(&sum)
	}
	for c := range d.cqs {
		c.addTo(&sum)
	}
	return sum
}

// counters are those of one queue pair.
type counters struct {
	posts, works, receivePosts, receives, binds, invalidations, doorbells atomic.Uint64
	messagesOut, messagesIn, bytesOut, bytesIn, reads                     atomic.Uint64
}

func (n *counters) addTo(c *rdma.Counters) {
	c.Posts += n.posts.Load()
	c.Works += n.works.Load()
	c.ReceivePosts += n.receivePosts.Load()
	c.Receives += n.receives.Load()
	c.Binds += n.binds.Load()
	c.Invalidations += n.invalidations.Load()
	c.Doorbells += n.doorbells.Load()
	c.MessagesOut += n.messagesOut.Load()
	c.MessagesIn += n.messagesIn.Load()
	c.BytesOut += n.bytesOut.Load()
	c.BytesIn += n.bytesIn.Load()
	c.Reads += n.reads.Load()
}

// examine asks the device for its limits by opening it.
func examine(i *Info) {
	d, err := Open(Config{Name: i.Name})
	if err != nil {
		i.Problems = append(i.Problems, err.Error())
		return
	}
	i.Limits = d.Limits()
	if err := d.Close(); err != nil {
		i.Problems = append(i.Problems, err.Error())
	}
}

func (c *Config) fill() {
	or := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	or(&c.ConnectTimeout, 5*time.Second)
	or(&c.AcceptTimeout, 10*time.Second)
	or(&c.LingerTime, 3*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}
