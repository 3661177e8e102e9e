package server

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/mem"
	"oneshot/nvmf"
)

// TestLimitsReachTheNodes: each limit of the configuration, and what discovery asks for, is that of the nodes, in their units.
func TestLimitsReachTheNodes(t *testing.T) {
	cfg := parse(t, `
stores: {d: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
discovery: {auth: {chap: {user: u, secret: twelve-bytes}, mutual: {user: m, secret: other-twelve-bytes}}}
limits:
  {connections: 101, sessions: 102, commands: 103, connections_per_session: 4, memory: 64MiB, memory_per_connection: 5MiB,
  login_timeout: 6s, nop_interval: 7s, nop_timeout: 8100ms, read_timeout: 10s}
`)
	want := iscsi.Limits{
		Discovery: iscsi.Auth{
			CHAP:   &login.Credentials{Name: "u", Secret: []byte("twelve-bytes")},
			Mutual: &login.Credentials{Name: "m", Secret: []byte("other-twelve-bytes")},
		},
		Connections: 101, Sessions: 102, LoginTimeout: 6, NOPInterval: 7, NOPTimeout: 9, ReadTimeout: 10,
	}
	if d := cmp.Diff(want, nodeLimits(cfg)); d != "" {
		t.Error(d)
	}
	pool := mem.NewPool(cfg.Limits.Memory)
	c := nodeConfig(cfg, pool, slog.New(slog.DiscardHandler))
	at := iscsi.Limits{
		Discovery: c.Discovery, Connections: c.Connections, Sessions: c.Sessions,
		LoginTimeout: c.LoginTimeout, NOPInterval: c.NOPInterval, NOPTimeout: c.NOPTimeout, ReadTimeout: c.ReadTimeout,
	}
	if d := cmp.Diff(want, at); d != "" {
		t.Errorf("at the start: %s", d)
	}
	if c.Commands != 103 || c.MemoryPerConnection != 5<<20 || c.Login.Offer.MaxConnections != 4 || pool.Stats().Limit != 64<<20 {
		t.Errorf("%d commands, %d bytes for each connection, %d connections of a session, %d bytes in all",
			c.Commands, c.MemoryPerConnection, c.Login.Offer.MaxConnections, pool.Stats().Limit)
	}
	if d := cmp.Diff(nvmf.Limits{Controllers: 102, ConnectTimeout: 6 * time.Second, ReadTimeout: 10 * time.Second}, nvmeLimits(cfg)); d != "" {
		t.Errorf("NVMe: %s", d)
	}
}
