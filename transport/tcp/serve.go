package tcp

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/stream"
	"oneshot/iscsi"
	"oneshot/mem"
)

// lingerTime is how long the last PDUs may take to reach a peer that does not read.
const lingerTime = 3 * time.Second

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
	m, err := newMover(tc, cfg.Pool)
	if err != nil {
		_ = tc.Close()
		cfg.Node.Dismiss()
		return nil, err
	}
	m.pace.off, m.pace.counters = cfg.NoModeration, cfg.Counters
	m.conn = cfg.Node.NewConn(m)
	return m, nil
}

// serve is the life of the connection.
func (m *Mover) serve() error {
	err := m.read()
	m.pace.tell()
	m.conn.Lock()
	m.dead = true
	m.tx.blocked = false
	m.rx.release()
	m.abandon() // before the nexus ends: what it counts later nobody sees
	m.conn.Lost(err)
	m.conn.Unlock()
	_ = m.tc.Close()
	m.sock.Close()
	return err
}

// Reasons for the end of a connection that are not the initiator's.
var (
	errEnded    = errors.New("ended by the target")
	errNoMemory = errors.New("no memory for a large request: the limit on buffer memory is reached (limits.memory)")
)

// read is the life of the goroutine that owns the socket.
func (m *Mover) read() error {
	err, over := m.sock.Read(m.onReadable)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case over != nil: // the time to linger
		return errEnded
	}
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

// look handles one batch of input.
func (m *Mover) look() (stream.Round, error) {
	drained, err := m.batch()
	switch {
	case m.pausing:
		m.pausing = false
		return stream.Pause, err
	case drained:
		return stream.Drained, err
	}
	return stream.More, err
}

// batch reads once, and answers what can be answered at once with one write.
func (m *Mover) batch() (drained bool, err error) {
	m.commands = 0
	m.conn.Lock()
	defer m.conn.Unlock()
	switch {
	case m.dead:
		return true, errEnded
	case m.isFull():
		m.dropIn()
		m.paused, m.pausing = true, true
		return true, nil
	case !m.lendIn():
		return true, errNoMemory
	}
	drained, err = m.receive()
	if drained {
		m.dropIn()
	}
	if err != nil {
		m.blame(err)
	}
	return drained, err
}

// blame tells the session that the initiator broke the rules, if that is what err says.
func (m *Mover) blame(err error) {
	if _, socket := errors.AsType[syscall.Errno](err); !socket && err != io.EOF {
		m.conn.Violation(err)
	}
}

// linger bounds the time that the last PDUs may take.
func (m *Mover) linger() { _ = m.tc.SetDeadline(time.Now().Add(lingerTime)) }

// broken ends the use of the socket. The reader notices.
func (m *Mover) broken() {
	if m.dead {
		return
	}
	m.dead = true
	_ = unix.Shutdown(m.sock.FD, unix.SHUT_RDWR)
	m.wakeReader()
}

// shutdownWrite closes our half of the connection: what has been written still arrives,
// and the initiator closes its half in answer.
func (m *Mover) shutdownWrite() {
	if m.half || m.dead {
		return
	}
	m.half = true
	_ = unix.Shutdown(m.sock.FD, unix.SHUT_WR)
}
