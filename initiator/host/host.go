// Package host is the client's side of NVMe over TCP, as a library: a host in user space. It depends on nothing of the
// target but the way of bytes over a socket (transport/bytestream) and the codecs.
//
//	URL, Options ─► Dial ─► Controller ─┬─ Command: Start, Do    any command, of any queue
//	                                    ├─ Namespace: ReadAt, …  a disk
//	                                    └─ queue 0, 1, …         a connection each
//	Discover ─► subsystems
//
// A Controller has an admin queue and some I/O queues. Any number of goroutines may use it. Commands of one queue are sent in the
// order of Start, and end in any order; queues know nothing of each other.
//
// # Wake-ups
//
// Whoever finds that commands have ended calls Done of each, one goroutine of a queue at a time, which is mostly that of its
// socket; what Done starts leaves with the next batch. So whoever keeps a number of commands outstanding needs no goroutine
// per command, and a batch costs one system call in each direction.
package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/nvme/tcp/pdu"
)

// Scheme is that of URLs.
const Scheme = "nvme+tcp"

const defaultPort = "4420"

// URL says what to connect with:
//
//	nvme+tcp://host[:port]/[nqn[/nsid]][?header_digest=crc32c&data_digest=crc32c]
//
// The port is 4420 if none is given.
type URL struct {
	Address      string // host:port
	Subsystem    string // its NQN; empty: none named
	NSID         uint32 // 0: none named
	HeaderDigest bool
	DataDigest   bool
}

// IsURL reports whether s is meant for this package.
func IsURL(s string) bool { return strings.HasPrefix(s, Scheme+"://") }

// ParseURL reads a URL.
func ParseURL(s string) (u URL, err error) {
	rest, ok := strings.CutPrefix(s, Scheme+"://")
	if !ok {
		return u, fmt.Errorf("the URL does not begin with %s://", Scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	host, port := strings.TrimSuffix(strings.TrimPrefix(authority, "["), "]"), defaultPort
	if h, p, err := net.SplitHostPort(authority); err == nil {
		host, port = h, p
	}
	if n, err := strconv.Atoi(port); host == "" || err != nil || n < 1 || n > 65535 {
		return u, fmt.Errorf("%q is no host:port", authority)
	}
	u.Address = net.JoinHostPort(host, port)
	name, nsid, _ := strings.Cut(path, "/")
	if u.Subsystem = name; name == "" && nsid != "" {
		return u, errors.New("the URL has no name of a subsystem in front of the namespace")
	}
	if name != "" {
		if err := nvme.CheckNQN(name); err != nil {
			return u, err
		}
	}
	if nsid != "" {
		n, err := strconv.ParseUint(nsid, 10, 32)
		if err != nil || n == 0 || n >= nvme.AllNamespaces {
			return u, fmt.Errorf("%q is no namespace: these have numbers from 1 on", nsid)
		}
		u.NSID = uint32(n)
	}
	keys, err := url.ParseQuery(query)
	if err != nil {
		return u, err
	}
	for key, values := range keys {
		into := map[string]*bool{"header_digest": &u.HeaderDigest, "data_digest": &u.DataDigest}[key]
		switch {
		case into == nil:
			return u, fmt.Errorf("the URL has the key %q: there are header_digest and data_digest", key)
		case len(values) != 1 || values[0] != "crc32c" && values[0] != "none":
			return u, fmt.Errorf("%s is %q: write crc32c or none", key, strings.Join(values, ","))
		}
		*into = values[0] == "crc32c"
	}
	return u, nil
}

// String returns the URL.
func (u URL) String() string {
	s := Scheme + "://" + u.Address
	if u.Subsystem != "" {
		s += "/" + u.Subsystem
	}
	if u.NSID != 0 {
		s += "/" + strconv.FormatUint(uint64(u.NSID), 10)
	}
	mark := "?"
	for _, d := range []struct {
		on  bool
		key string
	}{{u.HeaderDigest, "header_digest"}, {u.DataDigest, "data_digest"}} {
		if d.on {
			s += mark + d.key + "=crc32c"
			mark = "&"
		}
	}
	return s
}

// Options are what a URL does not say. Zero values stand for what is written with them.
type Options struct {
	HostNQN string   // DefaultNQN
	HostID  [16]byte // a random one
	// Queues is how many I/O queues there are, if the controller grants as many: 1; -1: none.
	Queues int
	Depth  int // commands outstanding at most in each of them: 128, or what the controller takes
	// KeepAlive is how long the controller may hear nothing of the host: 15 s. The host speaks twice as often.
	KeepAlive time.Duration
	// Secret is what the host proves to know when the controller asks (DH-HMAC-CHAP), and ControllerSecret what the controller then has to
	// prove; nil: there is none.
	Secret, ControllerSecret *auth.Secret
	Logger                   *slog.Logger // none
}

// DefaultNQN is the name of hosts that are given none.
const DefaultNQN = "nqn.2026-11.example.oneshot:host"

const (
	adminEntries     = 32
	defaultDepth     = 128
	maxDepth         = 1023 // that a CID has bits for
	defaultKeepAlive = 15 * time.Second
	closeTime        = 5 * time.Second
	// inputMemory is what queues read to, besides the memory of commands.
	inputMemory = 64 << 20
)

func (o *Options) complete() error {
	if o.HostNQN == "" {
		o.HostNQN = DefaultNQN
	}
	if err := nvme.CheckNQN(o.HostNQN); err != nil {
		return fmt.Errorf("name of the host: %w", err)
	}
	if o.HostID == [16]byte{} {
		_, _ = rand.Read(o.HostID[:])
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	o.Queues = max(o.Queues, 0)
	switch {
	case o.Depth == 0:
		o.Depth = defaultDepth
	case o.Depth < 1 || o.Depth > maxDepth:
		return fmt.Errorf("a depth of %d: 1 to %d commands of a queue can be outstanding", o.Depth, maxDepth)
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = defaultKeepAlive
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Controller is a controller of a subsystem that this host has made.
type Controller struct {
	url  URL
	opt  Options
	pool *mem.Pool

	ID   uint16          // CNTLID
	Info nvme.Controller // what it says of itself: those fields that nvme.ParseController reads

	queues  []*queue // the first is the admin queue
	capsule int      // bytes of data in a capsule of an I/O queue
	depth   int      // of I/O queues

	transactions atomic.Uint32 // authentications so far

	stop   chan struct{} // ends keep-alive
	closed sync.Once
	wg     sync.WaitGroup
}

// Dial connects with the subsystem that u names, and has the controller ready. ctx is for that alone.
func Dial(ctx context.Context, u URL, o Options) (*Controller, error) {
	if u.Subsystem == "" {
		return nil, fmt.Errorf("%v names no subsystem (%s://host:port/nqn…/nsid); list them: initiator ls", u, Scheme)
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Controller{url: u, opt: o, pool: mem.NewPool(inputMemory), stop: make(chan struct{})}
	if err := c.start(ctx); err != nil {
		c.end()
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	return c, nil
}

// start makes the queues (NVMe over Fabrics, Base 2.0 §3.5.1).
func (c *Controller) start(ctx context.Context) error {
	admin, err := c.connect(ctx, 0, adminEntries-1)
	if err != nil {
		return err
	}
	caps, err := c.property(ctx, nvme.PropCAP, true)
	if err != nil {
		return err
	}
	if err := c.setProperty(ctx, nvme.PropCC, nvme.CCEnable|nvme.CCEntrySizes); err != nil {
		return err
	}
	if err := c.awaitStatus(ctx, nvme.CSTSReady, nvme.CSTSReady); err != nil {
		return err
	}
	b := make([]byte, nvme.IdentifyLen)
	if err := c.Admin(ctx, &Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}, In: b}); err != nil {
		return err
	}
	c.Info = nvme.ParseController(b)
	c.wg.Go(func() { c.keepAlive(admin) })
	if c.opt.Queues == 0 || c.Info.Type == nvme.DiscoveryController {
		return nil
	}
	c.capsule = int(c.Info.IOCCSZ)*16 - nvme.SQELen
	if c.depth = min(c.opt.Depth, int(caps&0xffff)); c.depth == 0 {
		return errors.New("the controller has queues of one entry (CAP.MQES 0), which the standard excludes: no command could be outstanding")
	}
	n := uint32(c.opt.Queues - 1)
	set := &Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureQueues), n<<16 | n}}
	if err := c.Admin(ctx, set); err != nil {
		return err
	}
	granted := min(int(set.CQE.DW0&0xffff), int(set.CQE.DW0>>16)) + 1
	for qid := range min(c.opt.Queues, granted) {
		if _, err := c.connect(ctx, uint16(qid+1), c.depth); err != nil {
			return err
		}
	}
	c.wg.Go(func() { c.endWith(admin) })
	return nil
}

// endWith ends the I/O queues when the admin queue has ended: without it there is no controller (NVMe over Fabrics, Base 2.0 §3.3.2.1).
func (c *Controller) endWith(admin *queue) {
	<-admin.ended
	for _, q := range c.queues[1:] {
		q.fail(admin.cause())
	}
}

// connect makes a queue, of which depth commands can be outstanding.
func (c *Controller) connect(ctx context.Context, qid uint16, depth int) (*queue, error) {
	q, err := c.open(ctx, qid, depth)
	if err != nil {
		return nil, err
	}
	c.queues = append(c.queues, q)
	const noFlowControl = 4 // nobody looks at SQHD, so that data can bear the status
	f := nvme.ConnectFields{HostID: c.opt.HostID, CNTLID: nvme.DynamicController, SubNQN: c.url.Subsystem, HostNQN: c.opt.HostNQN}
	x := &Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect), DWords: [6]uint32{uint32(qid) << 16, noFlowControl<<16 | uint32(depth)}}
	if qid == 0 {
		x.DWords[2] = uint32(c.opt.KeepAlive.Milliseconds())
	} else {
		f.CNTLID = c.ID
	}
	x.Out = f.AppendTo(nil)
	if err := q.do(ctx, x); err != nil {
		return nil, fmt.Errorf("queue %d: %w", qid, err)
	}
	if qid == 0 {
		c.ID = uint16(x.CQE.DW0)
	}
	if err := c.prove(ctx, q, x.CQE.DW0); err != nil {
		return nil, fmt.Errorf("queue %d: %w", qid, err)
	}
	q.connected(c.capsule)
	return q, nil
}

// keepAlive speaks up before the controller takes the host for lost, and takes the controller for lost when it does not answer within
// the same time (NVMe Base 2.0 §3.9).
func (c *Controller) keepAlive(admin *queue) {
	if c.opt.KeepAlive < 0 {
		return
	}
	const perTime = 2 // how often the host speaks up within the time
	t := time.NewTicker(c.opt.KeepAlive / perTime)
	defer t.Stop()
	answered := make(chan struct{}, 1)
	x := &Command{Opcode: nvme.AdminKeepAlive, Done: func(*Command) { answered <- struct{}{} }}
	for ticks := 0; ; { // since x was sent; 0: it is not under way
		select {
		case <-c.stop:
			return
		case <-admin.ended:
			return
		case <-answered:
			ticks = 0
			continue
		case <-t.C:
		}
		switch ticks++; ticks {
		case 1:
			admin.start(x)
		case 1 + perTime:
			if len(answered) == 0 {
				admin.fail(fmt.Errorf("the controller has not answered a Keep Alive for %v", c.opt.KeepAlive))
			}
		}
	}
}

// property reads a property, of 8 bytes or 4.
func (c *Controller) property(ctx context.Context, p nvme.Property, wide bool) (uint64, error) {
	x := &Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertyGet), DWords: [6]uint32{0, uint32(p)}}
	if wide {
		x.DWords[0] = 1
	}
	err := c.Admin(ctx, x)
	return uint64(x.CQE.DW1)<<32 | uint64(x.CQE.DW0), err
}

func (c *Controller) setProperty(ctx context.Context, p nvme.Property, v uint32) error {
	return c.Admin(ctx, &Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(p), v}})
}

// statusPause lies between two looks at CSTS.
const statusPause = 2 * time.Millisecond

// awaitStatus waits until the bits mask of CSTS are want.
func (c *Controller) awaitStatus(ctx context.Context, mask, want uint32) error {
	for {
		v, err := c.property(ctx, nvme.PropCSTS, false)
		switch {
		case err != nil:
			return err
		case uint32(v)&nvme.CSTSFatal != 0:
			return errors.New("the controller says that it cannot go on (CSTS.CFS)")
		case uint32(v)&mask == want:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(statusPause):
		}
	}
}

// Queues is how many I/O queues there are.
func (c *Controller) Queues() int { return max(0, len(c.queues)-1) }

// Start sends commands to I/O queue n, from 0 on, which end with their Done. The parts of a fused pair are given in one call.
func (c *Controller) Start(n int, list ...*Command) { c.queues[n+1].start(list...) }

// Do executes commands of I/O queue n, and returns the first of their failures. When ctx ends it no longer waits, with the error of
// ctx: then the commands are lost to the caller, with their memory.
func (c *Controller) Do(ctx context.Context, n int, list ...*Command) error {
	return c.queues[n+1].do(ctx, list...)
}

// Admin executes an admin command as Do does.
func (c *Controller) Admin(ctx context.Context, x *Command) error { return c.queues[0].do(ctx, x) }

// Abort asks the controller to end a command of I/O queue n that was started, and reports whether it says that it has (NVMe Base 2.0 §5.1). The
// command ends with its Done in any case. One that waits for a slot of the queue, or has ended, is not asked for.
func (c *Controller) Abort(ctx context.Context, n int, x *Command) (bool, error) {
	cid, ok := c.queues[n+1].named(x)
	if !ok {
		return false, nil
	}
	a := &Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | uint32(n+1)}}
	err := c.Admin(ctx, a)
	return err == nil && a.CQE.DW0&1 == 0, err
}

// Close shuts the controller down, which has it make durable what was written, and ends its queues. An error says that it could not be
// shut down; of a controller that was known to be lost before none is told.
func (c *Controller) Close() error {
	var err error
	c.closed.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if c.Info.Type != nvme.DiscoveryController && c.queues[0].alive() {
			const normal = 1 << 14
			if err = c.setProperty(ctx, nvme.PropCC, nvme.CCEnable|nvme.CCEntrySizes|normal); err == nil {
				err = c.awaitStatus(ctx, nvme.CSTSShutdown, nvme.CSTSShutdownDone)
			}
		}
		c.end()
	})
	return err
}

// end ends all queues.
func (c *Controller) end() {
	close(c.stop)
	for _, q := range c.queues {
		q.close()
	}
	c.wg.Wait()
	c.pool.Close()
}

// Counters are what has crossed between this process and the kernel since the controller was made, all queues together.
type Counters struct{ Reads, Writes, BytesIn, BytesOut, Commands uint64 }

// Counters returns them.
func (c *Controller) Counters() (sum Counters) {
	for _, q := range c.queues {
		q.mu.Lock()
		sum.Reads += q.link.Reads
		sum.Writes += q.link.Writes
		sum.BytesIn += q.link.BytesIn
		sum.BytesOut += q.link.Out.Written
		sum.Commands += q.commands
		q.mu.Unlock()
	}
	return sum
}

// Discover asks the discovery service at u which subsystems there are.
func Discover(ctx context.Context, u URL, o Options) ([]nvme.Discovered, error) {
	u.Subsystem, u.NSID, o.Queues = nvme.DiscoveryNQN, 0, -1
	o.ControllerSecret = nil // that of a subsystem
	c, err := Dial(ctx, u, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	const tries, most = 10, 1 << 14
	for range tries {
		head := make([]byte, nvme.DiscoveryEntryLen)
		if err := c.log(ctx, head, 0); err != nil {
			return nil, err
		}
		generation, n := nvme.ParseDiscoveryHeader(head)
		if n > most {
			return nil, fmt.Errorf("%v: a discovery log with %d entries", u, n)
		}
		var list []nvme.Discovered
		entry := make([]byte, nvme.DiscoveryEntryLen)
		for i := range n {
			if err := c.log(ctx, entry, (i+1)*nvme.DiscoveryEntryLen); err != nil {
				return nil, err
			}
			list = append(list, nvme.ParseDiscovered(entry))
		}
		if err := c.log(ctx, head, 0); err != nil {
			return nil, err
		}
		if again, _ := nvme.ParseDiscoveryHeader(head); again == generation {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%v: the discovery log changes all the time", u)
}

// log reads a part of the discovery log.
func (c *Controller) log(ctx context.Context, b []byte, off uint64) error {
	n := uint32(len(b)/4 - 1)
	return c.Admin(ctx, &Command{
		Opcode: nvme.AdminGetLogPage, In: b,
		DWords: [6]uint32{uint32(nvme.LogDiscovery) | n<<16, n >> 16, uint32(off), uint32(off >> 32)},
	})
}

// HexID is an identifier as nvme-cli prints it.
func HexID(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// ic is what the host asks for in ICReq.
func (u *URL) ic() pdu.IC { return pdu.IC{HeaderDigest: u.HeaderDigest, DataDigest: u.DataDigest} }
