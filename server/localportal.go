package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"oneshot/config"
	"oneshot/mgmt"
	"oneshot/partition"
	osp "oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/nic/card"
)

// localFront opens portals for partitions of this machine: programs connect to a socket, and share memory with the daemon.
//
//	program: remote ─ nic ══ shared memory ══ card ─ local.Narrow ── pair ── local.Device ─ service: daemon
//
// So who has connected has queue pairs of his own that lead to the service of the portal and nowhere else, and what is known of him
// (SO_PEERCRED) is known of his queue pairs.
type localFront struct{ *partitionFront }

// localPortal is such a portal.
type localPortal struct {
	front   *localFront
	socket  mgmt.Packets
	card    *card.Server
	device  *local.Device // of service
	pairs   rdma.Listener // of device
	service *osp.Service
	users   *localUsers

	ctx      context.Context // ends with the portal
	cancel   context.CancelFunc
	begun    atomic.Bool // serve is called, or will be
	released sync.Once
}

// Bounds of a portal. One user on the machine cannot take all places, or all memory.
const (
	mostPrograms       = 64
	mostProgramsOfUser = mostPrograms / 2
	shareOfProgram     = 4 // one program has at most a fourth of the memory that all have,
	shareOfUser        = 2 // and all of one user have at most half of it
)

func (f *localFront) open(p *config.Portal, replaces []portal) (_ portal, err error) {
	l := &localPortal{front: f, device: local.Open(local.Config{Logger: f.log}), users: newLocalUsers(f.registry)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			l.undo()
		}
	}()
	if l.service, err = f.service(p, l.device, l.users, l.identify); err != nil {
		return nil, err
	}
	if l.pairs, err = l.device.Listen("pair:0"); err != nil {
		return nil, err
	}
	if l.socket, err = listenPackets(p.Socket, replaces); err != nil {
		return nil, err
	}
	l.card = card.New(card.Config{
		Logger: f.log, Open: l.welcome, Programs: mostPrograms, ProgramsOfUser: mostProgramsOfUser,
		HelloTimeout: f.startTimeout,
		Memory:       f.limits.Memory / shareOfProgram, Together: f.limits.Memory, TogetherOfUser: f.limits.Memory / shareOfUser,
	})
	return l, nil
}

// listenPackets listens at path, or shares the socket of a portal that will be closed.
func listenPackets(path string, replaces []portal) (mgmt.Packets, error) {
	for _, r := range replaces {
		if old, ok := r.(*localPortal); ok {
			return old.socket.Share()
		}
	}
	return mgmt.ListenPacketsOfAll(path)
}

// undo frees what open has made before it failed.
func (p *localPortal) undo() {
	p.cancel()
	if p.pairs != nil {
		_ = p.pairs.Close()
	}
	if p.service != nil {
		p.front.forget(p.service)
		_ = p.service.Close()
	}
	_ = p.device.Close()
}

// welcome returns the device of a program that has connected.
func (p *localPortal) welcome(peer card.Peer) (rdma.Device, error) {
	d := &programDevice{portal: p, Narrow: local.OpenNarrow(local.Config{
		Logger: p.front.log, Name: fmt.Sprintf("pid %d", peer.PID),
	}, p.pairs)}
	p.users.enter(d.Device, peer)
	return d, nil
}

// programDevice is the device of a program.
type programDevice struct {
	*local.Narrow
	portal *localPortal
}

// Close implements rdma.Device.
func (d *programDevice) Close() error {
	d.portal.users.leave(d.Device)
	return d.Narrow.Close()
}

// identify returns who asks for a connection. His program is there: it waits for the answer.
func (p *localPortal) identify(r rdma.Request) partition.Identity {
	return p.users.identity(local.Origin(r))
}

// status returns what there is of programs.
func (p *localPortal) status() mgmt.Programs {
	programs, c := p.card.Programs(), &p.card.Counters
	return mgmt.Programs{
		Portal: p.Addr().String(), Connected: len(programs),
		Refused: c.Refused.Load(), Silent: c.Silent.Load(), MemoryRefused: c.MemoryRefused.Load(),
		Connections: p.service.Connections(), ConnectionsRefused: p.service.Refused(), Users: p.users.status(programs),
	}
}

// Addr implements portal.
func (p *localPortal) Addr() net.Addr { return p.socket.Addr() }

// Close implements portal.
func (p *localPortal) Close() error {
	p.cancel()
	err := p.socket.Close()
	if !p.begun.Load() {
		p.release()
	}
	return err
}

func (p *localPortal) begin() bool {
	p.begun.Store(true)
	return true
}

// serve implements portal. When it ends programs lose their connections, but nobody waits for stores that hold them up.
func (p *localPortal) serve() error {
	failed := make(chan error, 1)
	p.front.closing.Go(func() {
		defer p.release()
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.service.Serve(p.pairs) })
		failed <- p.card.Serve(p.ctx, p.socket)
		_ = p.pairs.Close()
		wg.Wait()
	})
	select {
	case err := <-failed:
		return err
	case <-p.ctx.Done():
		return nil
	}
}

// release ends the connections, without waiting for stores.
func (p *localPortal) release() {
	p.released.Do(func() {
		p.front.closing.Go(func() {
			p.front.forget(p.service)
			if err := errors.Join(p.pairs.Close(), p.service.Close(), p.device.Close()); err != nil {
				p.front.log.Error("close a portal for partitions", "portal", p.Addr().String(), "reason", err)
			}
		})
	})
}

// close implements frontEnd. The services are among those of partitionFront, which waits for them.
func (f *localFront) close() error { return nil }
