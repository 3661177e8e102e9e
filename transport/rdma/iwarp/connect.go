package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"oneshot/ddp"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Connect implements rdma.Device.
func (d *Device) Connect(ctx context.Context, rq rdma.QueuePair, addr string, p rdma.ConnParams) error {
	q, ok := rq.(*queuePair)
	if !ok || q.dev != d {
		return soft.ErrForeign
	}
	req, offer := d.request(&p)
	if len(req.PrivateData) > ddp.MaxULPPrivateData {
		return errPrivate
	}
	if err := q.claim(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartupTimeout)
	defer cancel()
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	tc := nc.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { _ = tc.SetDeadline(time.Unix(1, 0)) })
	a, err := exchange(tc, req, offer)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		_ = tc.SetDeadline(time.Time{})
		if req.HasEnhanced {
			a.ord = depthOr(uint16(a.ord), req.Enhanced.ORD)
		} else {
			a.ird, a.ord = int(d.depth(p.ResponderResources)), int(d.depth(p.InitiatorDepth))
		}
		err = q.start(tc, a)
	}
	if err == nil {
		return nil
	}
	_ = tc.Close()
	if r, ok := errors.AsType[*rdma.RejectedError](err); ok {
		r.Addr = addr
		return err
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("who listens there does not answer the MPA Request, as another service would not, or one that hangs: %w", ctx.Err())
	}
	return fmt.Errorf("iwarp: connect to %s: %w", addr, err)
}

// request makes the MPA Request, and returns it with the one-shot offer in it, or nil.
func (d *Device) request(p *rdma.ConnParams) (*ddp.StartFrame, *ddp.OneShot) {
	f := &ddp.StartFrame{CRC: !d.cfg.NoCRC, Revision: 1, PrivateData: p.PrivateData}
	if d.cfg.PlainMPA {
		return f, nil
	}
	f.Revision, f.HasEnhanced = 2, true
	f.Enhanced = ddp.Enhanced{IRD: d.depth(p.ResponderResources), ORD: d.depth(p.InitiatorDepth)}
	if !d.cfg.ClientServer {
		f.Enhanced.PeerToPeer, f.Enhanced.RTRWrite, f.Enhanced.RTRRead = true, true, true
	}
	if p.OneShot == nil {
		return f, nil
	}
	offer := offerOf(p.OneShot)
	f.CRC = true // an STag must not be lost to corruption
	f.PrivateData = withContainer(p.PrivateData, offer)
	return f, &offer
}

// exchange sends the Request and evaluates the Reply.
func exchange(tc *net.TCPConn, req *ddp.StartFrame, offer *ddp.OneShot) (*agreed, error) {
	if _, err := tc.Write(req.AppendTo(nil)); err != nil {
		return nil, err
	}
	reply, err := readFrame(tc, true)
	if err != nil {
		return nil, err
	}
	if reply.Reject {
		return nil, &rdma.RejectedError{PrivateData: reply.PrivateData}
	}
	a, err := conclude(req, reply, offer)
	if err != nil {
		sendTerminate(tc, causeOf(err))
	}
	return a, err
}

func conclude(req, reply *ddp.StartFrame, offer *ddp.OneShot) (*agreed, error) {
	g, err := ddp.Agree(req, reply)
	if err != nil {
		return nil, err
	}
	a := &agreed{
		crc: g.CRC, ird: int(g.IRD), ord: int(g.ORD), initiator: true, rtr: g.RTR,
		peerData: reply.PrivateData,
	}
	if !reply.HasEnhanced {
		return a, nil
	}
	if sel, ok := ddp.FindOneShot(reply.PrivateData); ok {
		var offered ddp.OneShot
		if offer != nil {
			offered = *offer
		}
		if err := ddp.CheckSelection(offered, offer != nil, sel); err != nil {
			return nil, err
		}
		a.shot, a.crc = &sel, true
		a.peerData = withoutContainer(reply.PrivateData)
	}
	return a, nil
}
