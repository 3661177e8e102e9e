package tcp

import (
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/iscsi"
	"oneshot/mem"
)

const (
	// lingerTime is how long the last PDUs may take to reach a peer that does not read.
	lingerTime = 3 * time.Second
	// fairness is after how many batches in a row a connection lets others have the thread.
	fairness = 8
)

// Serve runs an iSCSI connection on tc, which the node has admitted, until it ends, and closes it. Its buffers come from
// pool. It returns why the connection ended; nil: the initiator closed it.
func Serve(node *iscsi.Node, tc *net.TCPConn, pool *mem.Pool) error {
	m, err := connect(node, tc, pool)
	if err != nil {
		return err
	}
	return m.serve()
}

// connect makes an iSCSI connection of tc.
func connect(node *iscsi.Node, tc *net.TCPConn, pool *mem.Pool) (*Mover, error) {
	m, err := newMover(tc, pool)
	if err != nil {
		_ = tc.Close()
		node.Dismiss()
		return nil, err
	}
	m.conn = node.NewConn(m)
	return m, nil
}

// serve is the life of the connection.
func (m *Mover) serve() error {
	err := m.read()
	m.conn.Lock()
	m.dead = true
	m.tx.blocked = false
	m.rx.release()
	m.conn.Lost(err)
	m.conn.Unlock()
	_ = m.tc.Close()
	close(m.kick)
	m.writer.Wait()
	return err
}

// Reasons for the end of a connection that are not the initiator's.
var (
	errEnded    = errors.New("ended by the target")
	errNoMemory = errors.New("no memory for a large request: the limit on buffer memory is reached (limits.memory)")
)

// read is the life of the goroutine that owns the socket. It stays inside one RawConn.Read
// as long as it can: that call parks the goroutine when onReadable says false, and wakes it
// for every later arrival.
func (m *Mover) read() error {
	var fail error
	onReadable := func(uintptr) bool {
		done, err := m.onReadable()
		fail = err
		return done
	}
	for {
		err := m.rc.Read(onReadable)
		switch {
		case errors.Is(fail, io.EOF):
			return nil
		case fail != nil:
			return fail
		case err != nil: // the time to linger is over
			return errEnded
		}
		<-m.resume
	}
}

// onReadable handles what the socket holds. done: the reader is to pause, or err says why it
// is to end.
func (m *Mover) onReadable() (done bool, err error) {
	for round := 1; ; round++ {
		if m.pace.due() {
			if done, err := m.census(); done {
				return true, err
			}
		}
		m.pace.wait()
		done, drained, err := m.look()
		m.pace.looked(m.commands)
		if done || drained {
			return done, err
		}
		if round%fairness == 0 {
			runtime.Gosched()
		}
	}
}

// look handles one batch of input. done is that of onReadable.
func (m *Mover) look() (done, drained bool, err error) {
	drained, err = m.batch()
	if err != nil || m.pausing {
		m.pausing = false
		return true, drained, err
	}
	return false, drained, nil
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
	_ = unix.Shutdown(m.fd, unix.SHUT_RDWR)
	m.wakeReader()
}

// shutdownWrite closes our half of the connection: what has been written still arrives,
// and the initiator closes its half in answer.
func (m *Mover) shutdownWrite() {
	if m.half || m.dead {
		return
	}
	m.half = true
	_ = unix.Shutdown(m.fd, unix.SHUT_WR)
}
