package mgmt

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
)

// Listen listens on a unix socket that only the user of this process may use. The socket
// takes the place of one that a daemon which was killed has left behind; while a daemon
// answers there it fails. Its directory has to be there.
func Listen(path string) (net.Listener, error) {
	s, err := listen("unix", path, onlyUs)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Who may connect to a socket: the user of this process and root, or everybody on this machine.
const (
	onlyUs   fs.FileMode = 0o600
	everyone fs.FileMode = 0o666
)

// Packets is a socket of type "unixpacket" that listens.
type Packets interface {
	AcceptUnix() (*net.UnixConn, error)
	Addr() net.Addr
	Close() error
	// Share returns the same socket once more. Whoever connects is accepted by one of those that have it; it is removed when the
	// last of them closes it.
	Share() (Packets, error)
}

// ListenPackets is Listen on a socket of type "unixpacket", which keeps messages apart.
func ListenPackets(path string) (Packets, error) { return listenPackets(path, onlyUs) }

// ListenPacketsOfAll is ListenPackets for a socket that everybody on this machine may use. The kernel says who has connected.
func ListenPacketsOfAll(path string) (Packets, error) { return listenPackets(path, everyone) }

func listenPackets(path string, mode fs.FileMode) (Packets, error) {
	s, err := listen("unixpacket", path, mode)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func listen(network, path string, mode fs.FileMode) (*socket, error) {
	if c, err := net.Dial(network, path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another daemon answers at %s: stop it, or choose another socket", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket: remove it, or choose another path", path)
	}
	// First under another name, so that nobody can connect before it has its mode.
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
	if err = os.Chmod(hidden, mode); err == nil {
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
	return newSocket(l, &socketFile{path: path, info: info}), nil
}

// socketFile is what is found at the path of a socket. The last user removes it.
type socketFile struct {
	path  string
	info  fs.FileInfo
	users atomic.Int32
}

// leave ends one use. It leaves a socket alone that has taken the place of this one.
func (f *socketFile) leave() {
	if f.users.Add(-1) > 0 {
		return
	}
	if info, err := os.Lstat(f.path); err == nil && os.SameFile(info, f.info) {
		_ = os.Remove(f.path)
	}
}

// socket removes itself when it is closed, unless others share it.
type socket struct {
	*net.UnixListener
	file *socketFile
	once sync.Once
}

// newSocket returns a socket that has l, and uses f.
func newSocket(l *net.UnixListener, f *socketFile) *socket {
	f.users.Add(1)
	return &socket{UnixListener: l, file: f}
}

// Addr is the path under which it is found.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.file.path, Net: "unix"} }

// Share implements Packets.
func (s *socket) Share() (Packets, error) {
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return newSocket(l.(*net.UnixListener), s.file), nil
}

// Close implements Packets, and net.Listener. Calls after the first do nothing: whoever accepts closes the socket, too.
func (s *socket) Close() (err error) {
	s.once.Do(func() {
		s.file.leave()
		err = s.UnixListener.Close()
	})
	return err
}
