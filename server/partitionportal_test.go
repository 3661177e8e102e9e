package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"oneshot/config"
	"oneshot/ddp"
	"oneshot/endpoint"
	"oneshot/mgmt"
	"oneshot/transport/rdma"
)

// portalText serves a divided file store to initiators, and its partitions to programs.
const portalText = `
stores: {disk: {type: file, path: disk.img, size: 32MiB, partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {}}]
portals:
  - {listen: "127.0.0.1:0"}
  - {transport: iwarp, listen: "127.0.0.1:0", serve: partitions, clients: {db1: "the secret of db1"}}
management: {socket: m}
`

// program opens a partition through the second portal.
func (r *running) program(who, partition string) (*endpoint.Endpoint, error) {
	r.t.Helper()
	if who != "" {
		who += "@"
	}
	e, err := endpoint.Open(r.t.Context(), "oneshot+iwarp://"+who+r.Addrs()[1].String()+"/"+partition, endpoint.Options{Retry: -1})
	if err == nil {
		r.t.Cleanup(func() { _ = e.Close() })
	}
	return e, err
}

// A portal serves partitions to those who may use them, and to nobody else; initiators do not hear of it.
func TestPartitionPortal(t *testing.T) {
	r := serve(t, portalText)
	m := r.manager()
	table := m.divide(mgmt.PartitionAccess{Who: "name:db1", Rights: "rwf"}, mgmt.PartitionAccess{Who: "any", Rights: "r"})
	e, err := r.program("db1%the secret of db1", "disk/a")
	if err != nil {
		t.Fatal(err)
	}
	if i := e.Info(); i.Size != 4*mib || i.Rights != rdma.RightRead|rdma.RightWrite|rdma.RightFlush || i.Durability != rdma.DurabilityMedium || i.UUID != table.Partitions[0].UUID {
		t.Errorf("%+v", i)
	}
	buf, err := e.Alloc(64 << 10)
	m.must(err)
	copy(buf, "from a program")
	m.must(e.WriteAt(t.Context(), buf, 64<<10))
	m.must(e.Flush(t.Context()))
	if got := r.image(table.Partitions[0].Offset+64<<10, 14); string(got) != "from a program" {
		t.Errorf("the store has %q", got)
	}
	reader, err := r.program("", "uuid:"+table.Partitions[0].UUID)
	m.must(err)
	buf, err = reader.Alloc(4096)
	m.must(err)
	m.must(reader.ReadAt(t.Context(), buf, 64<<10))
	if string(buf[:14]) != "from a program" || reader.Info().Rights != rdma.RightRead {
		t.Errorf("%q, %v", buf[:14], reader.Info().Rights)
	}
	if _, err := r.program("db1%another secret", "disk/a"); err == nil {
		t.Error("another secret is as good")
	}
	if _, err := r.program("db2%the secret of db1", "disk/a"); err == nil {
		t.Error("a client that is not configured is let in")
	}
	if _, err := r.program("", "disk/c"); !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Errorf("a partition that is not there: %v", err)
	}
	if list := r.Server.Endpoints(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	r.mu.Lock()
	groups := portGroups(r.cfg.Portals, config.ServeLUNs, nil)
	r.mu.Unlock()
	if len(groups) != 1 || groups[0] != 1 {
		t.Errorf("initiators are told of the groups %v", groups)
	}

	// A partition that goes ends its users.
	m.must(m.delete("a", true))
	if err := reader.ReadAt(t.Context(), buf, 0); err == nil {
		t.Error("a partition that is gone can be read")
	}
	// A portal that goes ends its connections.
	b, err := r.program("", "disk/b")
	m.must(err)
	addr := r.Addrs()[1].String()
	r.apply(dividedWith(""))
	buf, err = b.Alloc(4096)
	m.must(err)
	for deadline := time.Now().Add(time.Minute); b.ReadAt(t.Context(), buf, 0) == nil; time.Sleep(time.Millisecond) { // connections end by themselves
		if time.Now().After(deadline) {
			t.Fatal("a portal that is gone still serves")
		}
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		t.Error("a portal that is gone still listens")
		_ = c.Close()
	}
}

// A reload changes the limits of a portal for partitions that stays, with its connections.
func TestPartitionPortalLimits(t *testing.T) {
	text := func(connections string) string { return portalText + "limits: {connections: " + connections + "}\n" }
	r := serve(t, text("8")) // of which a host without a name has a fourth
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "r"})
	for range 2 {
		_, err := r.program("", "disk/a")
		m.must(err)
	}
	if _, err := r.program("", "disk/a"); err == nil {
		t.Error("a third connection of two of eight")
	}
	r.apply(text("16"))
	if _, err := r.program("", "disk/a"); err != nil {
		t.Error(err)
	}
	r.apply(text("12"))
	if _, err := r.program("", "disk/a"); err == nil {
		t.Error("a fourth connection of three of twelve")
	}
}

// CRCs are used as the configuration of the portal says.
func TestPartitionPortalCRC(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for crc, text := range map[bool]string{true: "iwarp, ", false: "iwarp, crc: false, "} {
		r := serve(t, strings.Replace(portalText, "iwarp, ", text, 1))
		c, err := net.Dial("tcp", r.Addrs()[1].String())
		check(err)
		ask := ddp.StartFrame{Revision: 1, PrivateData: []byte("OSP1")} // without CRCs
		_, err = c.Write(ask.AppendTo(nil))
		check(err)
		reply := make([]byte, 20) // RFC 5044 §7.1.1: the flags follow the key
		_, err = io.ReadFull(c, reply)
		check(err)
		if got := reply[16]&0x40 != 0; got != crc {
			t.Errorf("CRCs: %v, want %v (%x)", got, crc, reply)
		}
		_ = c.Close()
	}
}

// A portal over devices of the kernel that is closed leaves nothing, whether it was ever served or not: a configuration may be changed many times.
func TestKernelPortalsAreForgotten(t *testing.T) {
	f := &partitionFront{serviceFront: serviceFront{surroundings: surroundings{log: slog.New(slog.DiscardHandler)}}}
	c := &config.Portal{Device: "none0", Serve: config.ServePartitions, Listen: netip.MustParseAddrPort("127.0.0.1:1")}
	for _, served := range []bool{false, true} {
		p, err := f.openKernel(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.kernel) != 1 {
			t.Fatalf("there are %d portals, want 1", len(f.kernel))
		}
		if served {
			p.(*verbsPortal).begin()
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if served {
			if err := p.(*verbsPortal).serve(); err != nil {
				t.Error(err)
			}
		}
		f.closing.Wait()
		if len(f.kernel) != 0 {
			t.Errorf("served %v: %d portals are left", served, len(f.kernel))
		}
	}
}
