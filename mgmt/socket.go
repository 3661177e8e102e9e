package mgmt

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// Listen listens on a unix socket that only the user of this process may use. The socket
// takes the place of one that a daemon which was killed has left behind; while a daemon
// answers there it fails. Its directory has to be there.
func Listen(path string) (net.Listener, error) {
	s, err := listen("unix", path)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Packets is a socket of type "unixpacket" that listens.
type Packets interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// ListenPackets is Listen on a socket of type "unixpacket", which keeps messages apart.
func ListenPackets(path string) (Packets, error) {
	s, err := listen("unixpacket", path)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func listen(network, path string) (*socket, error) {
	if c, err := net.Dial(network, path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another daemon answers at %s: stop it, or choose another socket", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket: remove it, or choose another path", path)
	}
	// First under another name, so that nobody can connect before its mode is 0600.
	hidden := fmt.Sprintf("%s.%d", path, os.Getpid()%1e5)
	_ = os.Remove(hidden)
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: hidden, Net: network})
	if errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("the directory %s does not exist: create it, or choose another socket", filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, 0o600); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = os.Remove(hidden)
		return nil, errors.Join(fmt.Errorf("cannot make the socket %s: %w", path, err), l.Close())
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{UnixListener: l, path: path, info: info}, nil
}

// socket removes itself when it is closed.
type socket struct {
	*net.UnixListener
	path string
	info fs.FileInfo
	once sync.Once
}

// Addr is the path under which it is found.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close leaves a socket alone that has taken the place of this one.
func (s *socket) Close() error {
	s.once.Do(func() {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
			_ = os.Remove(s.path)
		}
	})
	return s.UnixListener.Close()
}
