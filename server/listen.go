package server

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenTCP listens at address. The listeners in old, which will be closed soon, may use the same address. The
// kernel lets the new one share it with them (SO_REUSEPORT) only while listenTCP runs, so that no other process
// can. So a change of addresses opens first and closes later, and an abandoned change has disturbed nobody.
func listenTCP(network, address string, old ...*net.TCPListener) (*net.TCPListener, error) {
	return listenTCPWith(nil, network, address, old...)
}

// listenAnywhere is listenTCP at an address that the machine may not have yet (ip(7), IP_FREEBIND, which is for IPv6, too).
func listenAnywhere(network, address string, old ...*net.TCPListener) (*net.TCPListener, error) {
	return listenTCPWith(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1) }, network, address, old...)
}

// listenTCPWith is listenTCP with an option more; nil: with none.
func listenTCPWith(option func(fd int) error, network, address string, old ...*net.TCPListener) (*net.TCPListener, error) {
	control := func(_, _ string, raw syscall.RawConn) (err error) {
		if option == nil {
			return nil
		}
		if e := raw.Control(func(fd uintptr) { err = option(int(fd)) }); e != nil {
			return e
		}
		return err
	}
	if len(old) == 0 {
		c := net.ListenConfig{Control: control}
		l, err := c.Listen(context.Background(), network, address)
		if err != nil {
			return nil, err
		}
		return l.(*net.TCPListener), nil
	}
	for _, o := range old {
		if err := share(o, true); err != nil {
			return nil, err
		}
		defer func() { _ = share(o, false) }() // fails only if o has been closed
	}
	c := net.ListenConfig{Control: func(network, address string, raw syscall.RawConn) error {
		return errors.Join(shareRaw(raw, true), control(network, address, raw))
	}}
	l, err := c.Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	tl := l.(*net.TCPListener)
	if err := share(tl, false); err != nil {
		return nil, errors.Join(err, tl.Close())
	}
	return tl, nil
}

func share(l *net.TCPListener, on bool) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return shareRaw(raw, on)
}

func shareRaw(raw syscall.RawConn, on bool) error {
	value := 0
	if on {
		value = 1
	}
	var err error
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value) }); e != nil {
		return e
	}
	return err
}

// listeners returns the TCP listeners of portals that have one.
func listeners(portals []portal) (list []*net.TCPListener) {
	for _, p := range portals {
		if t, ok := p.(interface{ listener() *net.TCPListener }); ok {
			list = append(list, t.listener())
		}
	}
	return list
}

// listenAdvice says what to do if listening at an address has failed with err. key is the configuration key of the
// address. The result is empty if the error says enough.
func listenAdvice(err error, key string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return `; end what uses the port ("ss -ltnp" lists it), or choose another in "` + key + `"`
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return `; this machine does not have the address: write one that "ip address" lists in "` + key + `", or "*" and the port for all`
	case errors.Is(err, syscall.EACCES):
		return `; ports below 1024 need root or CAP_NET_BIND_SERVICE: choose another in "` + key + `"`
	}
	return ""
}
