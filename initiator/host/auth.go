package host

import (
	"context"
	"errors"
	"fmt"

	"oneshot/nvme"
	"oneshot/nvme/auth"
)

// prove does what the answer to Connect asks for: the host proves who it is, and the controller, too, if Options.ControllerSecret is there.
func (c *Controller) prove(ctx context.Context, q *queue, requirements uint32) error {
	switch {
	case requirements&nvme.ConnectASCR != 0:
		return errors.New("the controller wants a secure channel (TLS), which this host has not")
	case requirements&nvme.ConnectATR != 0:
		return c.authenticate(ctx, q)
	case c.opt.ControllerSecret != nil:
		return errors.New("the controller does not authenticate, and so it proves nothing: it has to, because there is a secret for it")
	}
	return nil
}

// authenticate proves who this host is on a queue (Base 2.0 §8.13.5).
func (c *Controller) authenticate(ctx context.Context, q *queue) error {
	if c.opt.Secret == nil {
		return errors.New("the controller wants the host to prove who it is (DH-HMAC-CHAP), and there is no secret")
	}
	send := func(m []byte) error {
		return q.do(ctx, &Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.AuthSend), DWords: [6]uint32{nvme.AuthDWord10, uint32(len(m))}, Out: m})
	}
	names := auth.Names{Host: c.opt.HostNQN, Subsystem: c.url.Subsystem}
	side, m := auth.NewHost(names, auth.Rules{Host: c.opt.Secret, Controller: c.opt.ControllerSecret}, uint16(c.transactions.Add(1)))
	b := make([]byte, auth.MaxMessage)
	for m != nil {
		if err := send(m); err != nil {
			return err
		}
		if side.Done() {
			break
		}
		x := &Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.AuthReceive), DWords: [6]uint32{nvme.AuthDWord10, uint32(len(b))}, In: b}
		err := q.do(ctx, x)
		if err != nil {
			return err
		}
		if m, err = side.Next(b[:x.Transferred]); err != nil {
			if m != nil {
				_ = send(m) // whether the controller hears why does not matter any more
			}
			return err
		}
	}
	return nil
}

// Authenticate proves again who this host is, on each queue, while commands run. After an error the queue concerned ends.
func (c *Controller) Authenticate(ctx context.Context) error {
	for _, q := range c.queues {
		if err := c.authenticate(ctx, q); err != nil {
			return fmt.Errorf("queue %d: %w", q.id, err)
		}
	}
	return nil
}
