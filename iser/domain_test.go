package iser

import (
	"bytes"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/test/attack"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// strict is a device that wants sinks of Reads to allow remote writes, as iWARP cards do, and sees what is registered.
type strict struct {
	rdma.Device
	// opened is called with each region that a peer may write to, and its domain.
	opened func(*strictDomain, rdma.Region)

	mu      sync.Mutex
	domains []*strictDomain // guarded by mu
	refuse  error           // of registrations that a peer may write to; guarded by mu
}

type strictDomain struct {
	rdma.Domain
	device *strict
}

func (s *strict) Limits() rdma.Limits {
	l := s.Device.Limits()
	l.ReadSinkWrite, l.ReceiveWait = true, false
	return l
}

func (s *strict) NewDomain() (rdma.Domain, error) {
	d, err := s.Device.NewDomain()
	if err != nil {
		return nil, err
	}
	own := &strictDomain{d, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.domains = append(s.domains, own)
	return own, nil
}

func (s *strict) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	c.Domain = c.Domain.(*strictDomain).Domain
	return s.Device.NewQueuePair(c)
}

// open returns how many domains are open.
func (s *strict) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.domains)
}

func (d *strictDomain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	s := d.device
	s.mu.Lock()
	refuse, opened := s.refuse, s.opened
	s.mu.Unlock()
	remote := a&(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0
	if remote && refuse != nil {
		return nil, refuse
	}
	r, err := d.Domain.Register(b, a)
	if err == nil && remote && opened != nil {
		opened(d, r)
	}
	return r, err
}

func (d *strictDomain) Close() error {
	s := d.device
	s.mu.Lock()
	defer s.mu.Unlock()
	s.domains = slices.DeleteFunc(s.domains, func(x *strictDomain) bool { return x == d })
	return d.Domain.Close()
}

func newStrictBench(t *testing.T) (*bench, *strict) {
	t.Helper()
	device, err := iwarp.Open(iwarp.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	check(t, err)
	s := &strict{Device: device}
	t.Cleanup(func() { // after the bench has ended
		if n := s.open(); n != 0 {
			t.Errorf("%d domains are left", n)
		}
	})
	return newBenchOn(t, 64<<20, s, "127.0.0.1:0"), s
}

// attack has a peer write to memory of another connection, and reports whether its own connection
// outlives that.
func (c *client) attack(r rdma.Region) bool {
	_, err := c.qp.Post([]rdma.Work{{
		Op: rdma.OpWrite, SGL: []rdma.SGE{{Bytes: c.buf[:512], Region: c.region}}, RemoteSTag: r.STag(), RemoteOffset: r.Base(),
	}})
	check(c.t, err)
	ping := pdu.NOPOutFields{Immediate: true, ITT: 77, TTT: pdu.ReservedTag, CmdSN: c.cmdSN}
	c.offending = true
	c.send(ping.AppendTo(nil), nil, false, false, 0, 0)
	_, alive := c.receive()
	return alive
}

// TestSinksOfReads: where the sink of a Read has to allow remote writes, only the sink does, for as long as the
// Read lasts, and for the connection of the command only: another initiator that knows the STag ends its own connection
// and changes nothing.
func TestSinksOfReads(t *testing.T) {
	for name, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(name, func(t *testing.T) {
			b, device := newStrictBench(t)
			attack.Bounded(t, os.Getpid(), "a peer that writes to sinks of another", 40, func() { sinksOfReads(t, device, b.dial(direct), b.dial(false)) })
		})
	}
}

// sinksOfReads has writer write to a target over device, and other attack.
func sinksOfReads(t *testing.T, device *strict, writer, other *client) {
	other.isid = 1
	for _, c := range []*client{writer, other} {
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0)
	}
	var sinks []rdma.Region
	var held []*strictDomain
	device.mu.Lock()
	device.opened = func(d *strictDomain, r rdma.Region) { // the Read is not posted yet
		if len(r.Bytes()) > mem.MaxLease {
			t.Errorf("%d bytes of I/O memory can be written to by peers", len(r.Bytes()))
		}
		if sinks == nil && other.attack(r) {
			t.Error("a peer writes to the sink of another connection")
		}
		sinks, held = append(sinks, r), append(held, d)
	}
	device.mu.Unlock()

	const n = 256 << 10
	_, err := rand.Read(writer.buf[:n])
	check(t, err)
	want := bytes.Clone(writer.buf[:n])
	if res := writer.do(rw16(0x8a, 0, n/512), true, false, n, 0); res.Status() != 0 {
		t.Fatalf("WRITE: status %#x", res.Status())
	}
	if len(sinks) == 0 {
		t.Fatal("no sink was registered")
	}
	clear(writer.buf)
	if res := writer.do(rw16(0x88, 0, n/512), false, true, n, 0); res.Status() != 0 {
		t.Fatalf("READ: status %#x", res.Status())
	}
	if !bytes.Equal(writer.buf[:n], want) {
		t.Error("what is read is not what was written")
	}
	for _, r := range sinks {
		if err := r.Deregister(); err == nil {
			t.Error("a sink stays registered after its Read")
		}
	}
	// Its own peer, too, finds nothing behind the STag any more.
	if writer.attack(sinks[0]) {
		t.Error("a peer writes to a sink after the Read")
	}
	if slices.ContainsFunc(held, func(d *strictDomain) bool { return d != held[0] }) {
		t.Error("the sinks of one connection lie in several domains")
	}
}

// TestSinkRefused: a connection for whose Reads the device takes no memory ends, and nothing is left registered.
func TestSinkRefused(t *testing.T) {
	b, device := newStrictBench(t)
	c := b.dial(false)
	c.logIn("")
	c.do(make([]byte, 6), false, false, 0, 0)
	device.mu.Lock()
	device.refuse = errors.New("no room for registrations")
	device.mu.Unlock()
	c.offending = true
	c.start(rw16(0x8a, 0, 8), true, false, 0, 4096, 0)
	if a, ok := c.receive(); ok {
		t.Errorf("an answer: % x", a.h)
	}
}
