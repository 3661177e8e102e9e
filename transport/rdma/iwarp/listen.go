package iwarp

import (
	"container/list"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"oneshot/ddp"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// maxStarting is how many connections of a listener may be in their exchange of MPA frames, or wait
// for Accept. When there are as many, a new one ends the one that has been without a whole frame for
// the longest time.
const maxStarting = 1024

// listener waits for connections.
type listener struct {
	dev      *Device
	noCRC    bool
	tl       *net.TCPListener
	requests chan *request
	done     chan struct{}
	wg       sync.WaitGroup

	mu       sync.Mutex
	starting list.List // *net.TCPConn in their exchange of frames, the oldest first; guarded by mu
	begun    int       // connections that start or wait for their owner; guarded by mu
	closed   bool
}

// Listen implements rdma.Device.
func (d *Device) Listen(addr string) (rdma.Listener, error) {
	tl, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return d.ListenOn(tl.(*net.TCPListener), d.cfg.NoCRC), nil
}

// ListenOn is Listen with a TCP listener of the caller, which the result owns from then on. With noCRC the
// connecting ends decide whether FPDUs have CRCs, as Config.NoCRC does for the whole device: CRCs are used if
// either end asks for them (RFC 5044 §7.1.1).
func (d *Device) ListenOn(tl *net.TCPListener, noCRC bool) rdma.Listener {
	l := &listener{
		dev: d, noCRC: noCRC, tl: tl,
		requests: make(chan *request), done: make(chan struct{}),
	}
	l.wg.Go(l.run)
	return l
}

// Addr implements rdma.Listener.
func (l *listener) Addr() net.Addr { return l.tl.Addr() }

// Accept implements rdma.Listener.
func (l *listener) Accept() (rdma.Request, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements rdma.Listener.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.done)
	err := l.tl.Close()
	for e := l.starting.Front(); e != nil; e = e.Next() {
		_ = e.Value.(*net.TCPConn).Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
	return err
}

func (l *listener) run() {
	var wait time.Duration
	for {
		tc, err := l.tl.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, or the peer has gone already
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			l.dev.log.Warn("iwarp: cannot accept a connection", slog.Any("reason", err))
			select {
			case <-time.After(wait):
			case <-l.done:
				return
			}
			continue
		}
		wait = 0
		l.admit(tc)
	}
}

// admit starts a connection. If too many connections are starting, it ends the oldest of them.
func (l *listener) admit(tc *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.begun == maxStarting && !l.evict() {
		_ = tc.Close()
		return
	}
	l.begun++
	place := l.starting.PushBack(tc)
	l.wg.Go(func() {
		r := l.startup(tc)
		l.mu.Lock()
		evicted := place.Value == nil
		if !evicted {
			l.starting.Remove(place)
		}
		l.mu.Unlock()
		switch {
		case evicted && r != nil:
			r.drop()
		case r != nil:
			l.offer(r)
		}
		if !evicted {
			l.mu.Lock()
			l.begun--
			l.mu.Unlock()
		}
	})
}

// evict ends the oldest starting connection. False: all of them wait for Accept. The lock is held.
func (l *listener) evict() bool {
	oldest := l.starting.Front()
	if oldest == nil {
		return false
	}
	tc := l.starting.Remove(oldest).(*net.TCPConn)
	oldest.Value = nil
	l.begun--
	l.dev.log.Warn("iwarp: too many connections start at a time; the oldest gives way", slog.String("peer", tc.RemoteAddr().String()))
	_ = tc.Close()
	return true
}

// startup reads the MPA Request.
func (l *listener) startup(tc *net.TCPConn) *request {
	d := l.dev
	_ = tc.SetDeadline(time.Now().Add(d.cfg.StartupTimeout))
	frame, err := readFrame(tc, false)
	if err == nil && frame.Markers {
		var reply ddp.StartFrame
		if reply, err = ddp.Answer(frame, ddp.Enhanced{}, false); err != nil {
			_, _ = tc.Write(reply.AppendTo(nil))
		}
	}
	if err != nil {
		if !errors.Is(err, net.ErrClosed) { // closed by evict, or with the listener
			d.log.LogAttrs(context.Background(), slog.LevelWarn, "iwarp: connection does not start",
				slog.String("peer", tc.RemoteAddr().String()), slog.Any("reason", err))
		}
		_ = tc.Close()
		return nil
	}
	return newRequest(l, tc, frame)
}

// readFrame reads an MPA frame, and no octet after it.
func readFrame(r io.Reader, reply bool) (*ddp.StartFrame, error) {
	b := make([]byte, ddp.MaxStartFrame)
	if _, err := io.ReadFull(r, b[:ddp.StartFrameHeader]); err != nil {
		return nil, err
	}
	n, err := ddp.StartFrameLen(b[:ddp.StartFrameHeader], reply)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r, b[ddp.StartFrameHeader:n]); err != nil {
		return nil, err
	}
	f, err := ddp.ParseStartFrame(b[:n], reply)
	return &f, err
}

// offer hands a request to Accept. It gives up after AcceptTimeout.
func (l *listener) offer(r *request) {
	select {
	case l.requests <- r:
	case <-r.expired:
	case <-l.done:
		r.drop()
	}
}

// request is a connection that a peer wants.
type request struct {
	dev     *Device
	noCRC   bool
	tc      *net.TCPConn
	frame   *ddp.StartFrame
	offer   ddp.OneShot
	offered bool
	data    []byte
	timer   *time.Timer
	expired chan struct{}

	mu   sync.Mutex
	done bool // accepted, rejected or expired
}

func newRequest(l *listener, tc *net.TCPConn, f *ddp.StartFrame) *request {
	d := l.dev
	r := &request{dev: d, noCRC: l.noCRC, tc: tc, frame: f, data: f.PrivateData, expired: make(chan struct{})}
	if f.HasEnhanced {
		if r.offer, r.offered = ddp.FindOneShot(f.PrivateData); r.offered {
			r.data = withoutContainer(f.PrivateData)
		}
	}
	_ = tc.SetDeadline(time.Time{})
	r.mu.Lock()
	r.timer = time.AfterFunc(d.cfg.AcceptTimeout, r.expire)
	r.mu.Unlock()
	return r
}

// take claims the right to end the request. Only the first caller gets it.
func (r *request) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return false
	}
	r.done = true
	r.timer.Stop()
	return true
}

func (r *request) expire() {
	if r.take() {
		close(r.expired)
		r.dev.log.Warn("iwarp: nobody accepts the connection", slog.String("peer", r.tc.RemoteAddr().String()))
		_ = r.tc.Close()
	}
}

func (r *request) drop() {
	if r.take() {
		_ = r.tc.Close()
	}
}

// Device implements rdma.Request.
func (r *request) Device() rdma.Device { return r.dev }

// PeerData implements rdma.Request.
func (r *request) PeerData() []byte { return r.data }

// LocalAddr implements rdma.Request.
func (r *request) LocalAddr() net.Addr { return r.tc.LocalAddr() }

// RemoteAddr implements rdma.Request.
func (r *request) RemoteAddr() net.Addr { return r.tc.RemoteAddr() }

// Reject implements rdma.Request.
func (r *request) Reject(data []byte) error {
	if len(data) > ddp.MaxULPPrivateData {
		return errPrivate
	}
	if !r.take() {
		return errLate
	}
	reply, _ := ddp.Answer(r.frame, ddp.Enhanced{}, false)
	reply.Reject, reply.PrivateData = true, data
	return r.refuse(&reply)
}

// refuse sends a Reply with R=1 and closes.
func (r *request) refuse(reply *ddp.StartFrame) error {
	_ = r.tc.SetDeadline(time.Now().Add(r.dev.cfg.StartupTimeout))
	_, err := r.tc.Write(reply.AppendTo(nil))
	return errors.Join(err, r.tc.Close())
}

// Accept implements rdma.Request.
func (r *request) Accept(rq rdma.QueuePair, p rdma.ConnParams) error {
	q, ok := rq.(*queuePair)
	if !ok || q.dev != r.dev {
		return soft.ErrForeign
	}
	d := r.dev
	local := ddp.Enhanced{
		IRD: d.depth(p.ResponderResources), ORD: d.depth(p.InitiatorDepth),
		RTRWrite: true, RTRRead: true,
	}
	frame := *r.frame
	if e := &frame.Enhanced; e.ORD != ddp.DepthUnknown {
		// Linux relaxes RFC 6581 §9.1 as well: who is served less than it wants, wants less.
		e.ORD = min(e.ORD, local.IRD)
	}
	reply, err := ddp.Answer(&frame, local, !r.noCRC)
	a := agreed{peerData: r.data, peerToPeer: reply.Enhanced.PeerToPeer}
	reply.PrivateData = p.PrivateData
	if r.offered && p.OneShot != nil {
		if sel, ok := ddp.Select(r.offer, offerOf(p.OneShot)); ok {
			a.shot = &sel
			reply.CRC = true
			reply.PrivateData = withContainer(p.PrivateData, sel)
		}
	}
	if len(reply.PrivateData) > ddp.MaxULPPrivateData {
		return errPrivate
	}
	if err := q.claim(); err != nil {
		return err
	}
	if !r.take() {
		return errLate
	}
	if err != nil {
		reply.PrivateData = nil
		return errors.Join(err, r.refuse(&reply))
	}
	a.crc = reply.CRC || r.frame.CRC
	a.ird, a.ord = int(local.IRD), int(local.ORD)
	if reply.HasEnhanced {
		a.ird, a.ord = depthOr(reply.Enhanced.IRD, local.IRD), depthOr(reply.Enhanced.ORD, local.ORD)
	}
	_ = r.tc.SetDeadline(time.Now().Add(d.cfg.StartupTimeout))
	_, err = r.tc.Write(reply.AppendTo(nil))
	if err == nil {
		err = r.tc.SetDeadline(time.Time{})
	}
	if err == nil {
		err = q.start(r.tc, &a)
	}
	if err != nil {
		_ = r.tc.Close()
	}
	return err
}

// depth returns how many Reads may be outstanding: n, but at most as many as the device allows.
func (d *Device) depth(n int) uint16 {
	if n <= 0 || n > d.cfg.MaxReads {
		n = d.cfg.MaxReads
	}
	return uint16(n)
}

// depthOr returns a negotiated depth, or ours if the peer leaves the depth to the upper layers.
func depthOr(n, ours uint16) int {
	if n == ddp.DepthUnknown {
		n = ours
	}
	return int(n)
}

// The container stands behind the four octets of the iSER CM header, before the rest.

func withContainer(data []byte, o ddp.OneShot) []byte {
	var b []byte
	b = append(b, data[:min(len(data), ddp.CMHeaderLen)]...)
	b = append(b, make([]byte, ddp.CMHeaderLen-len(b))...)
	b = o.AppendTo(b)
	return append(b, data[min(len(data), ddp.CMHeaderLen):]...)
}

func withoutContainer(data []byte) []byte {
	words := int(data[ddp.CMHeaderLen+5])
	return slices.Concat(data[:ddp.CMHeaderLen], data[ddp.CMHeaderLen+4*words:])
}

// offerOf translates an offer to the container of the startup frame.
func offerOf(o *rdma.OneShotOffer) ddp.OneShot {
	s := ddp.OneShot{Flags: ddp.OfferEvery, Window: o.Window}
	for _, f := range [...]struct {
		on  bool
		bit ddp.OneShotFlags
	}{
		{o.Flags, ddp.OfferFlags},
		{o.Opcodes, ddp.OfferOpcodes},
		{o.Validated, ddp.OfferValidated},
		{o.Advertise, ddp.OfferAdvertise},
		{o.Close, ddp.OfferClose},
	} {
		if f.on {
			s.Flags |= f.bit
		}
	}
	return s
}

var (
	errPrivate = errors.New("iwarp: private data is too long; the limit is 251 bytes, with the offer of one-shot 235")
	errLate    = errors.New("iwarp: the connection request is no longer there")
)
