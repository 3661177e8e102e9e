package nvmetcp

import (
	"errors"
	"io"
	"net"
	"syscall"

	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

// Serve runs a connection on tc, which the node has admitted and which has come through a portal of that group, until it ends,
// and closes it. It returns why the connection ended; nil: the host closed it.
func Serve(n *nvmf.Node, group uint16, tc *net.TCPConn) error {
	m, err := open(n, group, tc)
	if err != nil {
		return err
	}
	return m.serve()
}

// open makes a mover of tc, or closes it.
func open(n *nvmf.Node, group uint16, tc *net.TCPConn) (*Mover, error) {
	m, err := newMover(tc)
	if err != nil {
		_ = tc.Close()
		n.Dismiss()
		return nil, err
	}
	m.queue = n.NewQueue(m, group)
	m.Attach(m.queue)
	return m, nil
}

// serve runs the connection until it ends.
func (m *Mover) serve() error {
	err := m.Read(m.Look)
	m.End(err)
	return err
}

// Blame implements bytestream.Mover. It tells the host that it broke the rules, if that is what err says (NVMe/TCP 1.0 §3.5). The connection ends when the host closes it; until then what
// comes is thrown away, for a socket that is closed with unread bytes takes back what it has sent.
func (m *Mover) Blame(err error) error {
	e, broken := errors.AsType[*pdu.Error](err)
	if !broken {
		if _, socket := errors.AsType[syscall.Errno](err); !socket && err != io.EOF {
			m.queue.Violation(err)
		}
		return err
	}
	m.queue.Violation(err)
	c := m.Out.Control()
	c.Buf = pdu.AppendTerm(c.Buf, pdu.C2HTermReq, e, m.offender)
	m.Send(c)
	m.In.Drop()
	m.mute = true
	m.Terminate(nvmf.WhenSent)
	return nil
}
