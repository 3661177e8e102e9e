package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ha/front"
)

// Portal is where a socket listens: an address, and a port of TCP.
type Portal struct {
	front.Address
	Port uint16
}

// AddrPort is that of the socket.
func (p Portal) AddrPort() netip.AddrPort { return netip.AddrPortFrom(p.IP, p.Port) }

// request is what a daemon asks. It is a message of JSON, and is answered by one.
type request struct {
	Op     op
	Portal                // that it is about; the port is of listen and tickle only
	AsOf   time.Duration  `json:",omitzero"` // of hold, on the clock of front.Now
	Remote netip.AddrPort `json:",omitzero"` // of tickle
}

type op string

const (
	opHello    op = "hello"    // who is there
	opHold     op = "hold"     // add an address, or go on to have it
	opDrop     op = "drop"     // remove one
	opAnnounce op = "announce" // one that is held
	opTickle   op = "tickle"   // Remote, with one that is held
	opListen   op = "listen"   // give the socket; with one: keep this one, unless there is one already
	opHas      op = "has"      // is there a socket
	opClose    op = "close"    // close the socket
	opLook     op = "look"     // read the configuration again, and close sockets that it does not have any more
)

// answer is what the keeper says.
type answer struct {
	Error    string `json:",omitempty"` // what was asked was not done
	New      bool   `json:",omitempty"` // hold: the address was not here
	Has      bool   `json:",omitempty"` // has: there is one
	Watchdog string `json:",omitempty"` // hello: the device that the keeper pets
}

const (
	// maxMessage is more than any message has.
	maxMessage = 1 << 10
	// maxFiles is more than any message brings.
	maxFiles = 4
)

// send sends a message, and a socket if there is one, which stays the caller's.
func send(c *net.UnixConn, message any, socket *os.File) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if socket == nil {
		_, _, err = c.WriteMsgUnix(b, nil, nil)
		return err
	}
	raw, err := socket.SyscallConn() // Fd would have the socket block, in both processes
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { _, _, err = c.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil) }); e != nil {
		return e
	}
	return err
}

// receive receives a message, and perhaps a socket, which is the caller's then.
func receive(c *net.UnixConn, message any) (socket *os.File, err error) {
	var in [maxMessage]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, k, flags, _, err := c.ReadMsgUnix(in[:], oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	parts, err := unix.ParseSocketControlMessage(oob[:k])
	for i := range parts {
		if got, err := unix.ParseUnixRights(&parts[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		if f := os.NewFile(uintptr(fd), "socket"); i == 0 {
			socket = f
		} else {
			_ = f.Close()
		}
	}
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
		err = errors.New("the message is too long")
	default:
		err = json.Unmarshal(in[:n], message)
	}
	if err != nil && socket != nil {
		_ = socket.Close()
		socket = nil
	}
	return socket, err
}

// listener makes a listener of a socket that came with a message, and of which the caller keeps the file.
func listener(socket *os.File, p Portal) (*net.TCPListener, error) {
	l, err := net.FileListener(socket)
	if err != nil {
		return nil, err
	}
	t, ok := l.(*net.TCPListener)
	if !ok || netip.MustParseAddrPort(l.Addr().String()) != p.AddrPort() || !listens(t) {
		return nil, errors.Join(fmt.Errorf("the socket does not listen at %v over TCP", p.AddrPort()), l.Close())
	}
	return t, nil
}

// listens reports whether listen(2) was called.
func listens(l *net.TCPListener) (does bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		does = err == nil && v == 1
	})
	return does && err == nil
}
