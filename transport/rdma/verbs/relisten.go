//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"iter"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siw stops listening when a TCP connection ends before siw has accepted it, as that of a port scanner may: until then the
// connection has the callbacks of the listening socket, and siw takes its end for the end of that socket (siw_cm.c,
// SIW_CM_WORK_PEER_CLOSE). The kernel tells nobody, and refuses all peers from then on. But siw listens with a socket of
// TCP, which /proc/net/tcp lists. So look counts these sockets, and again listens anew when one is missing. The
// connection manager lets two identifiers listen at one port in no case (RDMA_OPTION_ID_REUSEADDR only lets them be
// bound to it), so the old one has to be destroyed first.
//
// That is dangerous: siw frees its endpoint of the socket when it closes the socket, and uses the endpoint once more
// when the identifier is destroyed. If the kernel has given the memory to somebody else, rdma_destroy_id waits for ever, or
// worse. siw keeps the endpoint as long as there are TCP connections that it has accepted and that have not sent their MPA
// request yet, for 5 s at most. So this package always has some such connections of its own, the guards. They end after the
// identifier is destroyed. Then siw counts one reference too few, warns in the kernel's log ("siw_cep_put"), and touches the
// memory right after it has freed it; no way was found to spare it that.

const (
	// guardEvery is the least time between two guards, and guardTime how long one stays: less than siw's MPAREP_TIMEOUT of
	// 5 s, so that some are there at any time.
	guardEvery, guardTime = lookTime - lookTime/10, 4 * time.Second
	// destroyTime is how long again waits for the kernel to destroy an identifier.
	destroyTime = 10 * time.Second
)

// guards are connections to siw's listening sockets, of all devices that listen.
type guards struct {
	conns []*guard
	since time.Time
}

// guard is a socket of one. None is closed before siw has had the time to accept it, even if this program is late:
// otherwise it would end the listening socket itself. So there is no time limit for the connection.
type guard struct {
	dev  *Device
	fd   int
	from net.TCPAddr
}

// newGuard begins a connection to siw's socket for address. It returns nil if there is no way.
func (d *Device) newGuard(address *net.TCPAddr) *guard {
	to, through := d.socket(address)
	if to == nil {
		return nil
	}
	g := newGuard(to, through)
	if g != nil {
		g.dev = d
	}
	return g
}

// newGuard begins a connection through a network interface; empty: any.
func newGuard(to *net.TCPAddr, through string) *guard {
	family, at := unixAddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if through != "" {
		err = unix.BindToDevice(fd, through)
	}
	if err == nil {
		err = unix.Connect(fd, at)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil
	}
	g := &guard{fd: fd}
	switch a, _ := unix.Getsockname(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		g.from.IP, g.from.Port = a.Addr[:], a.Port
	case *unix.SockaddrInet6:
		g.from.IP, g.from.Port = a.Addr[:], a.Port
	}
	return g
}

// unixAddr returns an address in the form of package unix.
func unixAddr(a *net.TCPAddr) (family int, at unix.Sockaddr) {
	if ip := a.IP.To4(); ip != nil {
		return unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}
	}
	to := &unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())}
	if i, err := net.InterfaceByName(a.Zone); err == nil {
		to.ZoneId = uint32(i.Index)
	}
	return unix.AF_INET6, to
}

// end ends a guard with octets that are no MPA request, because siw loses memory with a connection that ends without any.
// siw then closes the connection, and end returns.
func (g *guard) end() {
	_, _ = unix.Write(g.fd, make([]byte, 20)) // the length of a request
	until := time.Now().Add(guardTime)
	for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}, int(max(0, time.Until(until)).Milliseconds()))
	}
	_ = unix.Close(g.fd)
}

// look sees to it that siw listens. Each siw device that listens calls it, once a second.
func (on *listening) look(d *Device) {
	if !on.turn.TryLock() {
		return // somebody else is at it
	}
	if !on.lost && !on.isOver() && !on.isStuck() && on.missed(sockets) {
		d.work.Go(func() {
			defer on.turn.Unlock()
			on.again(d)
		})
		return
	}
	defer on.turn.Unlock()
	on.keepGuards(time.Now())
}

// isOver reports whether all listeners are closed.
func (on *listening) isOver() bool {
	select {
	case <-on.closed:
		return true
	default:
		return false
	}
}

// isStuck reports whether the kernel is still destroying the former identifier. turn is held.
func (on *listening) isStuck() bool {
	if on.stuck != nil {
		select {
		case <-on.stuck:
			on.stuck = nil
		default:
		}
	}
	return on.stuck != nil
}

// missed reports whether there are fewer sockets than there were, as count tells. turn is held.
func (on *listening) missed(count func(*net.TCPAddr) int) bool {
	n := count(&on.at)
	on.sockets = max(on.sockets, n)
	// The list may lack one if another socket is closed while it is read, so it is read twice.
	return n < on.sockets && count(&on.at) < on.sockets
}

// again makes an identifier that listens in the place of the one whose socket is gone. turn is held.
func (on *listening) again(d *Device) {
	log := on.manager.log.With("address", on.addr.String())
	fails := func(err error) {
		if text := err.Error(); text != on.failed {
			on.failed = text
			log.Error("siw listens no more, and nobody can connect; it is tried again every second", "reason", err)
		}
	}
	if on.listens && !on.isGuarded() {
		on.lost = true
		log.Error("siw listens no more, and nobody can connect; to listen again could crash the kernel: restart this machine")
		return
	}
	id, handle, err := on.manager.newID(on) // before the other goes: the manager ends with the last
	if err != nil {
		fails(err)
		return
	}
	was, wasHandle := on.id, on.handle
	on.id, on.handle, on.listens = id, handle, false
	gone := make(chan struct{})
	go func() { // nobody waits for it if it never ends
		defer close(gone)
		on.manager.destroy(was, wasHandle)
	}()
	select {
	case <-gone:
	case <-on.closed:
		return
	case <-d.closing:
		return
	case <-time.After(on.patience):
		on.stuck = gone
		log.Error("siw listens no more, nobody can connect, and the kernel hangs: restart this machine")
		return
	}
	on.release()
	sa := sockaddr(&on.at)
	if err := errno(C.os_cm_listen(id, unsafe.Pointer(&sa), backlog)); err != nil {
		fails(err)
		return
	}
	on.listens, on.failed = true, ""
	on.sockets = sockets(&on.at)
	on.keepGuards(time.Now())
	log.Warn("siw had closed its listening socket, as it does when a connection ends too early; it listens again")
}

// keepGuards makes guards if it is time, and ends old ones. turn is held.
func (on *listening) keepGuards(now time.Time) {
	if on.sockets == 0 || !on.listens || on.lost {
		return
	}
	for len(on.guards) > 0 && now.Sub(on.guards[0].since) >= guardTime {
		on.end(on.guards[0])
		on.guards = on.guards[1:]
	}
	if n := len(on.guards); n > 0 && now.Sub(on.guards[n-1].since) < guardEvery {
		return
	}
	on.mu.Lock()
	listeners := on.listeners
	on.mu.Unlock()
	g := guards{since: now}
	for _, l := range listeners {
		if !l.dev.siw {
			continue
		}
		if c := l.dev.newGuard(&on.at); c != nil {
			g.conns = append(g.conns, c)
		}
	}
	if len(g.conns) > 0 {
		on.guards = append(on.guards, g)
	}
}

// isGuarded reports whether siw has accepted a guard of each device, and waits for its request. turn is held.
func (on *listening) isGuarded() bool {
	held := make(map[*Device]bool)
	for r := range tcpSockets("tcp", "tcp6") {
		const established, none = "01", "0" // a connection that was not accepted has no inode
		if r.state != established || r.inode == none || !isAt(r.local, nil, on.at.Port) {
			continue
		}
		for _, g := range on.guards {
			for _, c := range g.conns {
				held[c.dev] = held[c.dev] || isAt(r.remote, c.from.IP, c.from.Port)
			}
		}
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	return !slices.ContainsFunc(on.listeners, func(l *listener) bool { return l.dev.siw && !held[l.dev] })
}

// release ends all guards. turn is held.
func (on *listening) release() {
	for _, g := range on.guards {
		on.end(g)
	}
	on.guards = nil
}

// end ends guards.
func (on *listening) end(g guards) {
	for _, c := range g.conns {
		on.ending.Go(c.end)
	}
}

// socket returns the address at which this machine reaches siw's socket for at, and the network interface through which
// it does; empty: any. Without an address there is no way.
func (d *Device) socket(at *net.TCPAddr) (to *net.TCPAddr, through string) {
	if !at.IP.IsUnspecified() {
		return at, ""
	}
	i := d.netInterface() // the socket is bound to it
	if i == nil {
		return nil, ""
	}
	addrs, _ := i.Addrs()
	if ip := reachable(addrs, at.IP.To4() != nil); ip != nil {
		return &net.TCPAddr{IP: ip, Port: at.Port}, i.Name
	}
	return nil, ""
}

// reachable returns the first address at which a socket for all addresses is reached, or nil; one for those of IPv4 only
// if v4 says so.
func reachable(addrs []net.Addr, v4 bool) net.IP {
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && (n.IP.To4() != nil || !v4) {
			return n.IP
		}
	}
	return nil
}

// netInterface returns siw's network interface, or nil.
func (d *Device) netInterface() *net.Interface {
	all, _ := net.Interfaces()
	return interfaceOf(line(filepath.Join(sysfs, d.cfg.Name, "ports/1/gids/0")), all)
}

// interfaceOf returns the interface to which a GID of siw's belongs, or nil: the GID begins with the hardware address.
func interfaceOf(text string, all []net.Interface) *net.Interface {
	gid, _ := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	at := slices.IndexFunc(all, func(i net.Interface) bool {
		return len(i.HardwareAddr) > 0 && bytes.HasPrefix(gid, i.HardwareAddr)
	})
	if at < 0 {
		return nil
	}
	return &all[at]
}

// sockets counts the TCP sockets that listen at an address, the kernel's own among them.
func sockets(at *net.TCPAddr) int { return listenersAt(at, tcpSockets("tcp"), tcpSockets("tcp6")) }

// listenersAt counts those of tables that listen at an address. A table may have one twice, if another socket began to
// listen while the table was read.
func listenersAt(at *net.TCPAddr, tables ...iter.Seq[tcpSocket]) int {
	inodes := make(map[string]bool)
	for _, t := range tables {
		for r := range t {
			const listens = "0A"
			if r.state != listens {
				break // they come first
			}
			if isAt(r.local, at.IP, at.Port) {
				inodes[r.inode] = true
			}
		}
	}
	return len(inodes)
}

// tcpSocket is what the kernel says of one. Addresses are in the form that isAt understands.
type tcpSocket struct{ local, remote, state, inode string }

// tcpSockets goes through tables in /proc/net. Those that cannot be read are empty.
func tcpSockets(tables ...string) iter.Seq[tcpSocket] {
	return func(yield func(tcpSocket) bool) {
		for _, name := range tables {
			f, err := os.Open("/proc/self/net/" + name)
			if err != nil {
				continue
			}
			lines := bufio.NewScanner(f)
			lines.Scan() // the heads of the columns
			more := true
			for more && lines.Scan() {
				if s, ok := parseSocket(lines.Text()); ok {
					more = yield(s)
				}
			}
			_ = f.Close()
			if !more {
				return
			}
		}
	}
}

// parseSocket reads a line of a table of sockets. False: it has too few columns.
func parseSocket(line string) (tcpSocket, bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return tcpSocket{}, false
	}
	return tcpSocket{local: f[1], remote: f[2], state: f[3], inode: f[9]}, true
}

// isAt reports whether text, from a table of sockets, is ip and port; a nil ip stands for any. The address is in words of 32
// bits in host order, as hexadecimal digits.
func isAt(text string, ip net.IP, port int) bool {
	words, number, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	p, err2 := strconv.ParseUint(number, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return false
	}
	for w := range slices.Chunk(b, 4) {
		binary.NativeEndian.PutUint32(w, binary.BigEndian.Uint32(w))
	}
	return int(p) == port && (ip == nil || net.IP(b).Equal(ip))
}
