package tcp

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"oneshot/internal/stream"
	"oneshot/iscsi"
	"oneshot/mem"
)

// Config is how connections are served.
type Config struct {
	Node *iscsi.Node
	Pool *mem.Pool // of their buffers
	// NoModeration has them answer each batch of commands at once.
	NoModeration bool
	Counters     *Counters // nil: nothing is counted
}

// Counters count the moderation of connections. Each adds what it has counted now and then, and at
// its end.
type Counters struct {
	Censuses atomic.Uint64 // counts of the commands that an initiator keeps outstanding
	Pauses   atomic.Uint64
	PausedNS atomic.Uint64 // nanoseconds of all pauses
}

// Serve runs an iSCSI connection on tc, which the node has admitted, until it ends, and closes it. It returns why the
// connection ended; nil: the initiator closed it.
func (cfg *Config) Serve(tc *net.TCPConn) error {
	m, err := cfg.connect(tc)
	if err != nil {
		return err
	}
	return m.serve()
}

// connect makes an iSCSI connection of tc.
func (cfg *Config) connect(tc *net.TCPConn) (*Mover, error) {
	m, err := newMover(tc)
	if err != nil {
		_ = tc.Close()
		cfg.Node.Dismiss()
		return nil, err
	}
	m.pace.off, m.pace.counters = cfg.NoModeration, cfg.Counters
	m.conn = cfg.Node.NewConn(m)
	m.Attach(m.conn)
	return m, nil
}

// serve is the life of the connection.
func (m *Mover) serve() error {
	err := m.Read(m.onReadable)
	m.pace.tell()
	m.End(err)
	return err
}

// onReadable handles what the socket holds, as far as one look tells.
func (m *Mover) onReadable() (stream.Round, error) {
	if m.pace.due() {
		if r, err := m.census(); r == stream.Pause || err != nil {
			return r, err
		}
	}
	m.pace.wait()
	r, err := m.look()
	m.pace.looked(m.commands)
	return r, err
}

// look handles one batch of input, and counts its commands.
func (m *Mover) look() (stream.Round, error) {
	m.commands = 0
	return m.Look()
}

// Blame implements bytestream.Mover.
func (m *Mover) Blame(err error) error {
	if _, socket := errors.AsType[syscall.Errno](err); !socket && err != io.EOF {
		m.conn.Violation(err)
	}
	return err
}
