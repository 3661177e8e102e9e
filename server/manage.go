package server

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"time"

	"oneshot/config"
	"oneshot/internal/iostat"
	"oneshot/internal/latency"
	"oneshot/internal/version"
	"oneshot/iscsi"
	"oneshot/mgmt"
	"oneshot/scsi"
	"oneshot/transport/tcp"
)

var _ mgmt.Target = (*Server)(nil)

// latencyBounds holds the upper bounds of the buckets of all histograms, in nanoseconds.
var latencyBounds = func() []int64 {
	bounds := make([]int64, latency.Buckets-1)
	for i := range bounds {
		bounds[i] = int64(latency.Bound(i))
	}
	return bounds
}()

// Status implements mgmt.Target.
func (s *Server) Status() mgmt.Status {
	s.mu.Lock()
	cfg, loaded, targets, subsystems := s.cfg, s.loaded, s.targets, maps.Clone(s.subsystems)
	var portals []mgmt.Portal
	var locals []*localPortal
	for _, p := range s.portals {
		if l, ok := p.portal.(*localPortal); ok {
			locals = append(locals, l)
		}
		portals = append(portals, mgmt.Portal{Transport: string(p.config.Transport), Address: p.Addr().String()})
	}
	s.mu.Unlock()
	sessions, connected := s.node.SessionCounts(), 0
	for _, n := range sessions {
		connected += n
	}
	pool := s.pool.Stats()
	status := mgmt.Status{
		Version: version.String(), PID: os.Getpid(), Started: s.started, Time: time.Now(), Config: cfg.File, Loaded: loaded,
		Portals: portals, Counters: countersOf(s.node.Counters(), &s.moderation), BoundsNS: latencyBounds, Connected: connected,
		Buffers: mgmt.Buffers{Limit: pool.Limit, InUse: pool.InUse, Mapped: pool.Mapped, Leases: pool.Leases},
		Targets: make([]mgmt.Node, len(cfg.Targets)), Devices: s.rdma.counters(),
		Cluster: s.clusterStatus(), Objects: s.heaps.status(), NVMe: s.nvmeStatus(cfg, subsystems),
	}
	for _, l := range locals {
		status.Programs = append(status.Programs, l.status())
	}
	for i := range cfg.Targets {
		t := &cfg.Targets[i]
		status.Targets[i] = mgmt.Node{Name: t.Name, Alias: t.Alias, Sessions: sessions[t.Name], LUNs: lunsOf(cfg, t, targets[t.Name])}
	}
	return status
}

// lunsOf combines what the configuration says of the LUNs of a target with their counters.
func lunsOf(cfg *config.Config, t *config.Target, st *scsi.Target) []mgmt.LUN {
	stats := make(map[uint16]*scsi.LUNStats)
	all := st.Stats()
	for i := range all {
		stats[all[i].LUN] = &all[i]
	}
	luns := make([]mgmt.LUN, 0, len(t.LUNs))
	for i := range t.LUNs {
		l := &t.LUNs[i]
		s := stats[l.Number]
		if s == nil {
			continue // a change is under way
		}
		blocks, blockSize := s.LU.Capacity()
		luns = append(luns, mgmt.LUN{
			Number: l.Number, Store: l.Shows(), StoreType: string(cfg.Store(l.Store).Type), Serial: s.LU.Serial(),
			Bytes: int64(blocks) * int64(blockSize), BlockSize: blockSize, ReadOnly: l.ReadOnly, IO: ioOf(&s.Stats),
		})
	}
	return luns
}

func ioOf(s *iostat.Stats) mgmt.IO {
	class := func(c iostat.Class, bytes uint64) mgmt.Class {
		h := &s.Commands[c]
		return mgmt.Class{Bytes: bytes, SumNS: uint64(max(h.Sum, 0)), Latency: append([]uint64(nil), h.Buckets[:]...)}
	}
	io := mgmt.IO{
		Read: class(iostat.Read, s.ReadBytes), Write: class(iostat.Write, s.WriteBytes), Other: class(iostat.Other, 0),
		InFlight: s.InFlight,
	}
	for i, n := range s.Failed {
		if n == 0 {
			continue
		}
		if iostat.Failure(i) == iostat.UnitAttention {
			io.Attentions = n
			continue
		}
		if io.Failed == nil {
			io.Failed = make(map[string]uint64)
		}
		io.Failed[iostat.Failure(i).String()] = n
	}
	return io
}

func countersOf(c *iscsi.Counters, m *tcp.Counters) mgmt.Counters {
	return mgmt.Counters{
		Connections: c.Connections.Load(), Refused: c.Refused.Load(), Logins: c.Logins.Load(), LoginFailures: c.LoginFailures.Load(),
		Redirects:      c.Redirects.Load(),
		ProtocolErrors: c.ProtocolErrors.Load(), Rejects: c.Rejects.Load(), IgnoredCommands: c.IgnoredCommands.Load(),
		DigestErrors: c.DigestErrors.Load(),
		Moderation:   mgmt.Moderation{Censuses: m.Censuses.Load(), Pauses: m.Pauses.Load(), PausedNS: m.PausedNS.Load()},
	}
}

// Sessions implements mgmt.Target.
func (s *Server) Sessions() []mgmt.Session {
	var list []mgmt.Session
	for _, n := range s.node.Sessions() {
		conns := make([]mgmt.Connection, len(n.Connections))
		for i := range conns {
			c := &n.Connections[i]
			conns[i] = mgmt.Connection{
				CID: c.CID, Peer: c.Peer, Local: c.Local, Transport: c.Transport,
				HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest,
			}
		}
		list = append(list, mgmt.Session{
			ID: n.TSIH, Initiator: n.Initiator, ISID: hex.EncodeToString(n.ISID[:]), Target: n.Target, Connection: conns[0],
			Connections: conns, Since: n.Since, Buffers: n.Buffers, IO: ioOf(&n.Stats),
		})
	}
	return list
}

// DropSession implements mgmt.Target.
func (s *Server) DropSession(id uint16) bool {
	return s.node.DropSession(id, "the administrator asks for it")
}

// Reload implements mgmt.Target by the function given to OnReload.
func (s *Server) Reload(ctx context.Context) (mgmt.Reload, error) {
	if s.reload == nil {
		return mgmt.Reload{}, errors.New("this target has no configuration file to read again")
	}
	return s.reload(ctx)
}

// OnReload sets what Reload does. Call it before Serve.
func (s *Server) OnReload(f func(context.Context) (mgmt.Reload, error)) { s.reload = f }

// Health implements mgmt.Target. It fails once the server is closing, and hangs if the server does.
func (s *Server) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errClosing
	}
	return nil
}
