package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ha/front"
	"oneshot/internal/loglimit"
	"oneshot/internal/peercred"
)

// Options are what a keeper needs.
type Options struct {
	// Socket is that of the daemon, of type "unixpacket". Serve closes it.
	Socket interface {
		AcceptUnix() (*net.UnixConn, error)
		Close() error
	}
	// Portals reads the configuration: a daemon gets these addresses and sockets, and no other ones.
	Portals  func() ([]Portal, error)
	Watchdog *Watchdog // nil: none
	Log      *slog.Logger
}

// Keeper is the process that holds the addresses and the sockets.
type Keeper struct {
	Options
	asks  chan ask
	heard chan front.Address // that another machine has announced. Announcements are repeated: what finds no room is lost
	quiet loglimit.Gate

	// All of these belong to the goroutine of run.
	core    *Core
	portals map[Portal]bool
	sockets map[Portal]*net.TCPListener
	watches map[front.Address]*front.Watch // of addresses that were held

	watchers sync.WaitGroup
}

// ask is a request on its way to run. reply gets the answer, and perhaps a socket, which is the receiver's.
type ask struct {
	request
	socket *os.File
	reply  chan<- reply
}

type reply struct {
	answer
	socket *os.File
}

const (
	// maxPeers is the number of connections at a time: that of the daemon, of one that is about to end, and a few more.
	maxPeers = 8
	// answerTime is how long the keeper waits for somebody to take an answer.
	answerTime = time.Second
)

// New reads the configuration.
func New(o Options) (*Keeper, error) {
	k := &Keeper{Options: o, asks: make(chan ask), heard: make(chan front.Address, 16), core: NewCore(), sockets: make(map[Portal]*net.TCPListener), watches: make(map[front.Address]*front.Watch)}
	return k, k.look()
}

// Serve serves daemons until ctx ends. What the machine has then it keeps for as long as the kernel holds it, so that another keeper can go on:
// a daemon that lives has the sockets, too, and gives them to that one.
func (k *Keeper) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		defer cancel()
		err = k.accept(ctx, &wg)
	})
	stop := context.AfterFunc(ctx, func() { _ = k.Socket.Close() })
	defer stop()
	k.run(ctx)
	wg.Wait()
	for _, l := range k.sockets {
		err = errors.Join(err, l.Close())
	}
	for a := range k.watches {
		k.unwatch(a)
	}
	k.watchers.Wait()
	if k.Watchdog != nil {
		err = errors.Join(err, k.Watchdog.Close())
	}
	return err
}

func (k *Keeper) accept(ctx context.Context, wg *sync.WaitGroup) error {
	places := make(chan struct{}, maxPeers)
	for {
		c, err := k.Socket.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			return err
		}
		why := mayAsk(c)
		select {
		case places <- struct{}{}:
		default:
			why = fmt.Errorf("there are %d connections already", maxPeers)
		}
		if why != nil {
			k.Log.Warn("a connection was refused", "reason", why)
			_ = c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-places }()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			defer func() { _ = c.Close() }()
			if err := k.serve(ctx, c); ctx.Err() == nil && !errors.Is(err, io.EOF) {
				k.Log.Warn("a connection was ended", "reason", err)
			}
		})
	}
}

// mayAsk refuses who may not use the socket.
func mayAsk(c *net.UnixConn) error {
	peer, err := peercred.Of(c)
	if err != nil {
		return err
	}
	return admits(peer, os.Geteuid(), os.Getegid())
}

// admits refuses who is neither root, nor the keeper's user, nor of its group: the unit gives it that of the daemon.
func admits(peer *unix.Ucred, uid, gid int) error {
	if peer.Uid == 0 || int(peer.Uid) == uid || int(peer.Gid) == gid {
		return nil
	}
	return fmt.Errorf("process %d is of user %d and group %d: the keeper serves root, user %d and group %d", peer.Pid, peer.Uid, peer.Gid, uid, gid)
}

// serve takes one request after the other.
func (k *Keeper) serve(ctx context.Context, c *net.UnixConn) error {
	replies := make(chan reply, 1)
	for {
		a := ask{reply: replies}
		var err error
		if a.socket, err = receive(c, &a.request); err != nil {
			return err
		}
		select {
		case k.asks <- a:
		case <-ctx.Done():
			closeFile(a.socket)
			return ctx.Err()
		}
		r := <-replies // run answers what it has taken
		closeFile(a.socket)
		if err = c.SetWriteDeadline(time.Now().Add(answerTime)); err == nil {
			err = send(c, &r.answer, r.socket)
		}
		closeFile(r.socket)
		if err != nil {
			return err
		}
	}
}

func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// run owns the core and the sockets, and answers. What is due by the clock comes first: the process may have been stopped meanwhile.
func (k *Keeper) run(ctx context.Context) {
	for {
		now := front.Now()
		k.do(k.core.Tick(now, nil))
		t := time.NewTimer(k.core.Next(now) - front.Now())
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case a := <-k.asks:
			k.do(k.core.Tick(front.Now(), nil))
			a.reply <- k.answer(&a)
		case a := <-k.heard:
			if k.core.Heard(front.Now(), a) {
				k.Log.Info("another machine has announced the address", "address", a.String())
			}
		case <-t.C:
		}
		t.Stop()
	}
}

func (k *Keeper) do(list []Action) {
	for _, a := range list {
		var err error
		switch a.Kind {
		case Add:
			if err = a.Address.Add(); err != nil {
				k.core.Drop(a.Address)
			}
		case Remove:
			if err = a.Address.Remove(); err == nil {
				k.core.Drop(a.Address)
				k.Log.Warn("an address was removed: the daemon has not asked for it any more", "address", a.Address.String())
			}
		case Reset:
			k.reset(a.Address)
		case Pet:
			if k.Watchdog != nil {
				err = k.Watchdog.pet()
			}
		}
		k.complain(err)
	}
}

func (k *Keeper) complain(err error) {
	if err == nil {
		return
	}
	if _, ok := k.quiet.Pass(time.Minute); ok {
		k.Log.Error("something could not be done", "reason", err)
	}
}

func (k *Keeper) answer(a *ask) (r reply) {
	if err := k.obey(a, &r); err != nil {
		r.Error = err.Error()
	}
	return r
}

func (k *Keeper) obey(a *ask, r *reply) (err error) {
	switch a.Op {
	case opHello:
		if k.Watchdog != nil {
			r.Watchdog = k.Watchdog.Path
		}
		return nil
	case opLook:
		return k.look()
	}
	if err := k.allows(a); err != nil {
		return err
	}
	now := front.Now()
	switch a.Op {
	case opHold:
		if r.New, err = k.core.Hold(now, a.Address, a.AsOf); r.New {
			k.watch(a.Address)
			if err = a.Address.Add(); err != nil {
				k.core.Drop(a.Address)
			}
		}
		return err
	case opDrop:
		if err = a.Address.Remove(); err == nil {
			k.core.Drop(a.Address)
		}
		return err
	case opListen:
		r.socket, err = k.listen(a.Portal, a.socket)
		return err
	case opHas:
		r.Has = k.sockets[a.Portal] != nil
		return nil
	case opClose:
		return k.shut(a.Portal)
	case opAnnounce, opTickle:
		if !k.core.Holds(now, a.Address) {
			return fmt.Errorf("%v is not held", a.Address)
		}
		if a.Op == opAnnounce {
			return a.Address.Announce()
		}
		return front.Tickle(a.AddrPort(), a.Remote)
	}
	return fmt.Errorf("there is no request %q", a.Op)
}

// allows refuses what the configuration does not have, which may have changed. What it had before stays allowed until the next opLook: the daemon may be
// about to change to what the file says now, or have failed to.
func (k *Keeper) allows(a *ask) error {
	if k.has(a) {
		return nil
	}
	list, err := k.Portals()
	for _, p := range list {
		k.portals[p] = true
	}
	if k.has(a) {
		return nil
	}
	return errors.Join(fmt.Errorf("the keeper's configuration has no portal with the address %v that goes with a mirror", a.Address), err)
}

func (k *Keeper) has(a *ask) bool {
	if a.Port != 0 {
		return k.portals[a.Portal]
	}
	for p := range k.portals {
		if p.Address == a.Address {
			return true
		}
	}
	return false
}

// look reads the configuration. If that fails, all stays as it is.
func (k *Keeper) look() error {
	list, err := k.Portals()
	if err != nil {
		return err
	}
	k.portals = make(map[Portal]bool)
	for _, p := range list {
		k.portals[p] = true
	}
	for p := range k.sockets {
		if !k.portals[p] {
			err = errors.Join(err, k.shut(p))
		}
	}
	for a := range k.watches {
		if !slices.ContainsFunc(list, func(p Portal) bool { return p.Address == a }) {
			k.unwatch(a)
		}
	}
	return err
}

// shut closes the socket of a portal, if there is one.
func (k *Keeper) shut(p Portal) error {
	l := k.sockets[p]
	if l == nil {
		return nil
	}
	delete(k.sockets, p)
	return l.Close()
}

// watch begins to hear who else announces an address, anew if it has before: the interface may be another one.
func (k *Keeper) watch(a front.Address) {
	k.unwatch(a)
	w, err := a.Watch()
	if err != nil {
		k.complain(fmt.Errorf("%v: it will not be heard that another machine has it: %w", a, err))
		return
	}
	k.watches[a] = w
	k.watchers.Go(func() {
		for w.Next() == nil {
			select {
			case k.heard <- a:
			default:
			}
		}
	})
}

func (k *Keeper) unwatch(a front.Address) {
	if w := k.watches[a]; w != nil {
		delete(k.watches, a)
		_ = w.Close() // nothing was written
	}
}

// listen returns a copy of the socket of a portal. If there is none yet it is given, or, if that is nil, one that is made here.
func (k *Keeper) listen(p Portal, given *os.File) (*os.File, error) {
	k.do(k.core.Listen(p.Address, nil))
	l := k.sockets[p]
	if l == nil {
		var err error
		if given != nil {
			l, err = listener(given, p)
		} else {
			l, err = open(p)
		}
		if err != nil {
			return nil, err
		}
		k.sockets[p] = l
	}
	return l.File()
}

// open listens at an address that the machine may not have yet (ip(7), IP_FREEBIND, which is for IPv6, too).
func open(p Portal) (*net.TCPListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); e != nil {
			return e
		}
		return err
	}}
	l, err := c.Listen(context.Background(), "tcp", p.AddrPort().String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// reset ends the connections that wait at an address for somebody to accept them, so that their hosts come to the machine that has it now. The address
// is not here any more: who sends with another one needs IP_TRANSPARENT (ip(7)).
func (k *Keeper) reset(a front.Address) {
	n := 0
	for p, l := range k.sockets {
		if raw, err := l.SyscallConn(); p.Address == a && err == nil {
			_ = raw.Control(func(fd uintptr) { n += resetAll(int(fd)) }) // fails only if it is closed
		}
	}
	if n > 0 {
		k.Log.Info("connections that waited for the daemon were reset: their hosts find the address elsewhere", "address", a.String(), "connections", n)
	}
}

func resetAll(socket int) (n int) {
	for {
		if err := unix.SetNonblock(socket, true); err != nil { // it is the daemon's, too, which may have changed that
			return n
		}
		fd, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC)
		if err != nil {
			return n
		}
		n++
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
}
