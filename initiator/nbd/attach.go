package nbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
)

// Options of Attach. A value of 0 or nil stands for the default that the field names, if it names one.
type Options struct {
	URL       initiator.URL     // of a LUN
	Initiator initiator.Options // of each session; ISID and Delivered are not used
	Device    int               // the index (0 is nbd0); -1: one that this disk had and that nobody serves, or any
	// Connections is how many sockets the device has, each with a session: 1.
	Connections int
	ReadOnly    bool
	// DeadTime is how long requests wait for the target before they fail: 60 s.
	DeadTime time.Duration
	// Probe is the time between two looks at the size of the disk: 5 s.
	Probe time.Duration
	// Ping and Wait are those of initiator.Keeping.
	Ping   time.Duration
	Wait   time.Duration
	Kernel Kernel // Netlink
	Log    *slog.Logger

	sys string // for tests: in the place of sysBlock
}

const (
	// MaxConnections is the most that a device has.
	MaxConnections  = 16
	defaultDeadTime = 60 * time.Second
	defaultProbe    = 5 * time.Second
	// orphanTime is how long requests wait for another process when this one has died.
	orphanTime = 300 * time.Second
	// hangTime is how much longer than DeadTime a request may take before a device with several sockets gives
	// one up.
	hangTime = 30 * time.Second
	// socketBuffer is how much a socket holds, in bytes.
	socketBuffer = 4 << 20
)

func (o *Options) complete() error {
	if o.Connections == 0 {
		o.Connections = 1
	}
	if o.Connections < 1 || o.Connections > MaxConnections {
		return fmt.Errorf("%d connections: 1 to %d are possible", o.Connections, MaxConnections)
	}
	if o.URL.LUN < 0 {
		return fmt.Errorf("%v names no LUN (…/iqn/0); list them: initiator ls", o.URL)
	}
	if o.DeadTime <= 0 {
		o.DeadTime = defaultDeadTime
	}
	if o.Probe <= 0 {
		o.Probe = defaultProbe
	}
	if o.Kernel == nil {
		o.Kernel = Netlink{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.sys == "" {
		o.sys = sysBlock
	}
	if o.Initiator.InitiatorName == "" {
		o.Initiator.InitiatorName = initiator.DefaultName
	}
	return nil
}

// Attachment is a device that this process serves. Serve may be called again when it has returned ErrLeft; Close when it has
// returned.
type Attachment struct {
	Index int

	opt      Options
	back     backend
	log      *slog.Logger
	unlock   func()
	sessions []*initiator.Lasting
	conns    []*Conn
	slots    [MaxConnections]atomic.Pointer[Conn] // of conns, for the goroutines of sessions
	unmap    initiator.Unmapping
	readOnly bool
	unit     atomic.Pointer[initiator.LU]

	checkMu  sync.Mutex // guards identity
	identity *initiator.Identity

	ended  chan error // of Conn.Serve, one for each of conns
	left   int        // of these, not disconnected yet, as far as Serve knows
	serves sync.WaitGroup
}

// Attach makes a device of the disk, or takes over the one that a process has left. ctx is for that alone.
func Attach(ctx context.Context, o Options) (_ *Attachment, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	a := &Attachment{
		Index: o.Device, opt: o, log: o.Log, ended: make(chan error, o.Connections),
		back: backend{url: o.URL.String(), name: o.Initiator.InitiatorName, isid: initiator.RandomISID(), sockets: o.Connections},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	left, err := a.find()
	if err != nil {
		return nil, err
	}
	if err := a.logIn(ctx); err != nil {
		return nil, err
	}
	if err := a.recognize(left); err != nil {
		return nil, err
	}
	if err := a.connect(left); err != nil {
		return nil, err
	}
	a.tune()
	return a, nil
}

// find looks for a device that another process has left, and adopts its names if it is to be taken over.
func (a *Attachment) find() (left bool, err error) {
	list, err := attachedIn(a.opt.sys)
	if err != nil {
		return false, err
	}
	for _, d := range list {
		mine := d.URL == a.back.url && d.name == a.back.name
		switch {
		case a.Index >= 0 && d.Index == a.Index && !mine:
			return false, fmt.Errorf("nbd%d belongs to %s", d.Index, orSomething(d.URL))
		case mine && (d.Index == a.Index || a.Index < 0 && !d.Served):
			if a.opt.ReadOnly && !d.ReadOnly { // the kernel does not change that of a device that is there
				return false, fmt.Errorf("%s is there, and programs can write to it: detach it, and attach it again to have it read-only", d.Path)
			}
			a.Index = d.Index
			a.back.isid, a.back.sockets, a.back.disk = d.isid, d.Sockets, d.disk
			a.ended = make(chan error, d.Sockets)
			left = true
		}
	}
	if a.Index >= 0 {
		a.unlock, err = lock(a.Index)
	}
	return left, err
}

// recognize looks whether the disk is the one that the device to be taken over was made of: what the kernel holds of that belongs to no
// other one. A new device is made of this disk.
func (a *Attachment) recognize(left bool) error {
	a.checkMu.Lock()
	defer a.checkMu.Unlock()
	switch is := digestOf(a.identity); {
	case !left:
		a.back.disk = is
	case a.back.disk != "" && a.back.disk != is:
		return fmt.Errorf("%v is another disk now than that of which %s was made: it is %+v; if the device is not to wait for the former one, unmount it, and end it with detach --force", a.opt.URL, Path(a.Index), *a.identity)
	}
	return nil
}

func orSomething(url string) string {
	if url == "" {
		return "something else"
	}
	return url
}

// logIn begins the sessions and asks what the disk is like.
func (a *Attachment) logIn(ctx context.Context) error {
	for i := range a.back.sockets {
		o := a.opt.Initiator
		o.ISID = nth(a.back.isid, i)
		o.Logger = a.log
		k := initiator.Keeping{DeadTime: a.opt.DeadTime, Ping: a.opt.Ping, Wait: a.opt.Wait, Check: a.check}
		o.Delivered = a.deliver(i)
		l, err := initiator.DialLasting(ctx, a.opt.URL, o, k)
		if err != nil {
			return err
		}
		a.sessions = append(a.sessions, l)
	}
	s := a.sessions[0].Current()
	if s == nil {
		return fmt.Errorf("%v: the session was lost at once", a.opt.URL)
	}
	u := a.unit.Load()
	switch b := u.BlockSize(); b {
	case 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("%v has blocks of %d bytes: nbd takes 512 to 4096", a.opt.URL, b)
	}
	unit, err := s.LU(ctx, a.opt.URL.LUN)
	if err != nil {
		return err
	}
	if a.unmap, err = unit.Unmapping(ctx); err != nil {
		return err
	}
	a.readOnly, err = unit.ReadOnly(ctx)
	a.readOnly = a.readOnly || a.opt.ReadOnly
	return err
}

// deliver returns what answers the requests of a socket.
func (a *Attachment) deliver(i int) func() {
	return func() {
		if c := a.slots[i].Load(); c != nil {
			c.Flush()
		}
	}
}

// nth returns the ISID of a session.
func nth(id pdu.ISID, i int) pdu.ISID {
	id[len(id)-1] += byte(i)
	return id
}

// check looks whether a new session is one with the same disk, and takes note of its size.
func (a *Attachment) check(ctx context.Context, s *initiator.Session) error {
	u, err := a.look(ctx, s)
	if err != nil {
		return err
	}
	a.checkMu.Lock()
	defer a.checkMu.Unlock()
	if old := a.unit.Load(); old == nil || old.Size() <= u.Size() {
		a.unit.Store(u) // of a smaller one probe tells the kernel, too
	}
	return nil
}

// look returns the disk as it is now, or an error if that is another one.
func (a *Attachment) look(ctx context.Context, s *initiator.Session) (*initiator.LU, error) {
	u, err := s.LU(ctx, a.opt.URL.LUN)
	if err != nil {
		return nil, err
	}
	id, err := s.Identify(ctx, a.opt.URL.LUN)
	if err != nil {
		return nil, err
	}
	id.Revision, id.Designators = "", nil // of the target's software, and of the way to the disk among others
	a.checkMu.Lock()
	defer a.checkMu.Unlock()
	switch old := a.unit.Load(); {
	case a.identity == nil:
		a.identity = &id
	case !reflect.DeepEqual(*a.identity, id):
		return nil, fmt.Errorf("%v is another disk now: %+v, not %+v", a.opt.URL, id, *a.identity)
	case old.BlockSize() != u.BlockSize():
		return nil, fmt.Errorf("%v has blocks of %d bytes now, not of %d", a.opt.URL, u.BlockSize(), old.BlockSize())
	}
	return u, nil
}

// connect makes the sockets, serves them, and gives the kernel its ends.
func (a *Attachment) connect(left bool) error {
	s := a.setting()
	defer func() {
		for _, fd := range s.Sockets {
			_ = unix.Close(fd)
		}
	}()
	for i, l := range a.sessions {
		ours, theirs, err := socketPair()
		if err != nil {
			return err
		}
		s.Sockets = append(s.Sockets, theirs)
		c, err := NewConn(ours, Disk{
			Unit: func() Unit { return a.unit.Load() }, Unmap: a.unmap, Start: l.Start, Patience: a.opt.DeadTime,
			Alloc: func(n int) (*initiator.Memory, []byte, error) {
				m, err := l.Alloc(n)
				if err != nil {
					return nil, nil, err
				}
				return m, m.Bytes(), nil
			},
			Log: a.log.With("url", a.back.url),
		})
		if err != nil {
			return err
		}
		a.conns = append(a.conns, c)
		a.slots[i].Store(c)
	}
	a.left = len(a.conns)
	for _, c := range a.conns {
		c.Watch(a.conns)
		a.serves.Go(func() { a.ended <- c.Serve() })
	}
	if left {
		return a.opt.Kernel.Reconfigure(s)
	}
	index, err := a.opt.Kernel.Connect(s)
	if err != nil {
		return err
	}
	a.Index = index
	if a.unlock == nil {
		a.unlock, err = lock(index)
	}
	return err
}

// setting is what the kernel is told of the device.
func (a *Attachment) setting() Setting {
	u := a.unit.Load()
	s := Setting{
		Index: a.Index, Size: u.Size(), BlockSize: u.BlockSize(), DeadTime: orphanTime, Backend: a.back.String(),
		Flags: FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagCanMultiConn,
	}
	if a.unmap.Most > 0 {
		s.Flags |= FlagSendTrim
	}
	if a.readOnly {
		s.Flags |= FlagReadOnly
	}
	if a.back.sockets > 1 {
		// Linux gives up a socket whose request takes longer than this, and sends the request through another;
		// 0 would stand for 30 s. A device with one socket waits.
		s.Timeout = a.opt.DeadTime + hangTime
	}
	return s
}

// socketPair returns a connected pair: our end, and the kernel's.
func socketPair() (*net.UnixConn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	for _, fd := range fds {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
		}
	}
	f := os.NewFile(uintptr(fds[0]), "")
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	return c.(*net.UnixConn), fds[1], nil
}

// tune has the kernel send requests that are as long as commands are, where 128 KiB are its usual limit, and TRIMs that take no more
// commands than there are for one.
func (a *Attachment) tune() {
	queue := filepath.Join(a.opt.sys, fmt.Sprintf("nbd%d", a.Index), "queue")
	if err := os.WriteFile(filepath.Join(queue, "max_sectors_kb"), []byte(strconv.Itoa(a.unit.Load().MaxTransfer()>>10)), 0); err != nil {
		a.log.Warn("requests to the disk stay short: the kernel does not take another limit", "reason", err)
	}
	if a.unmap.Most == 0 || maxUnmaps*mostUnmapped(a.unmap) > math.MaxUint32 { // the kernel's own limit
		return
	}
	if err := os.WriteFile(filepath.Join(queue, "discard_max_bytes"), []byte(strconv.FormatInt(maxUnmaps*mostUnmapped(a.unmap), 10)), 0); err != nil {
		a.log.Warn("of long discards a part may have no effect: the kernel does not take another limit", "reason", err)
	}
}

// ErrLeft is the end of Serve when the device stays, without anybody who serves it.
var ErrLeft = errors.New("the device stays, and waits for another attach")

// Serve serves the device until it is detached, which is no error, or ctx ends: then it returns ErrLeft. It
// keeps the size of the device that of the disk.
func (a *Attachment) Serve(ctx context.Context) error {
	tick := time.NewTicker(a.opt.Probe)
	defer tick.Stop()
	// A target that does not answer keeps a probe waiting. Meanwhile the kernel may give up a socket: then nothing that it has sent there
	// may begin any more, for it sends it again through another one.
	probing, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	idle := make(chan struct{}, 1)
	idle <- struct{}{}
	for {
		select {
		case err := <-a.ended:
			if err != nil {
				return err
			}
			if a.left--; a.left == 0 {
				return nil
			}
		case <-ctx.Done():
			return ErrLeft
		case <-tick.C:
			select {
			case <-idle:
				probes.Go(func() {
					a.probe(probing)
					idle <- struct{}{}
				})
			default: // the last one is under way
			}
		}
	}
}

// probe tells the kernel of another size. Errors are those of the session, which others notice.
func (a *Attachment) probe(ctx context.Context) {
	s := a.sessions[0].Current()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.opt.DeadTime)
	defer cancel()
	u, err := a.look(ctx, s)
	if err != nil {
		a.log.Debug("the size is not known", "reason", err)
		return
	}
	a.resize(u)
}

func (a *Attachment) resize(u *initiator.LU) {
	a.checkMu.Lock()
	a.unit.Store(u)
	a.checkMu.Unlock()
	s := a.setting()
	if now, err := deviceIn(filepath.Join(a.opt.sys, fmt.Sprintf("nbd%d", a.Index))); err != nil || now.Size == s.Size {
		return
	}
	if err := a.opt.Kernel.Reconfigure(s); err != nil {
		a.log.Error("the disk has another size, and the device keeps the old one", "bytes", s.Size, "reason", err)
		return
	}
	a.log.Warn("the disk has another size", "bytes", s.Size)
}

// Close ends the sessions. The device stays, unless it is detached.
func (a *Attachment) Close() (err error) {
	for _, c := range a.conns { // before the kernel sends again through one what it has sent through another
		c.mute()
	}
	for _, c := range a.conns {
		c.Shut()
	}
	a.serves.Wait()
	for _, l := range a.sessions {
		err = errors.Join(err, l.Close())
	}
	for _, c := range a.conns {
		c.Close()
	}
	if a.unlock != nil {
		a.unlock()
	}
	return err
}
