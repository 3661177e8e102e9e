package nvmetcp

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/stream"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

// lingerTime is how long the last PDUs may take to reach a host that does not read, and the host to close the connection in answer to a
// termination request.
const lingerTime = 3 * time.Second

// Serve runs a connection on tc, which the node has admitted, until it ends, and closes it. It returns why the connection
// ended; nil: the host closed it.
func Serve(n *nvmf.Node, tc *net.TCPConn) error {
	m, err := newMover(tc)
	if err != nil {
		_ = tc.Close()
		n.Dismiss()
		return err
	}
	m.queue = n.NewQueue(m)
	return m.serve()
}

// serve is the life of the connection.
func (m *Mover) serve() error {
	err := m.read()
	m.queue.Lock()
	m.dead = true
	m.tx.blocked = false
	m.rx.release()
	m.abandon()
	m.queue.Lost(err)
	m.queue.Unlock()
	_ = m.tc.Close()
	m.sock.Close()
	return err
}

// Reasons for the end of a connection that are not the host's.
var (
	errEnded    = errors.New("ended by the target")
	errNoMemory = errors.New("no memory for input: the limit on buffer memory is reached (limits.memory)")
)

// read is the life of the goroutine that owns the socket.
func (m *Mover) read() error {
	err, over := m.sock.Read(m.look)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case over != nil: // the time to linger
		return errEnded
	}
	return err
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
	m.queue.Lock()
	defer m.queue.Unlock()
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
	return drained, m.blame(err)
}

// blame tells the host that it broke the rules, if that is what err says (NVMe/TCP 1.0 §3.5). The connection ends when the host closes it; until then what
// comes is thrown away, for a socket that is closed with unread bytes takes back what it has sent.
func (m *Mover) blame(err error) error {
	if err == nil {
		return nil
	}
	e, broken := errors.AsType[*pdu.Error](err)
	if !broken {
		if _, socket := errors.AsType[syscall.Errno](err); !socket && err != io.EOF {
			m.queue.Violation(err)
		}
		return err
	}
	m.queue.Violation(err)
	c := m.tx.control()
	c.buf = pdu.AppendTerm(c.buf, pdu.C2HTermReq, e, m.rx.offender())
	m.enqueue(c)
	m.rx.drop()
	m.mute = true
	m.Terminate(nvmf.WhenSent)
	return nil
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

// shutdownWrite closes our half of the connection: what has been written still arrives, and the host closes its half in
// answer.
func (m *Mover) shutdownWrite() {
	if m.half || m.dead {
		return
	}
	m.half = true
	_ = unix.Shutdown(m.sock.FD, unix.SHUT_WR)
}
