package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"oneshot/endpoint"
	"oneshot/mgmt"
	"oneshot/transport/rdma"
)

// localText serves the partitions of a file store to programs of this machine.
var localText = strings.Replace(portalText, `{transport: iwarp, listen: "127.0.0.1:0", serve: partitions, clients: {db1: "the secret of db1"}}`, "{transport: local, listen: rdma.sock, serve: partitions}", 1)

// withoutLocal is localText without the portal for programs.
var withoutLocal = strings.Replace(localText, "  - {transport: local, listen: rdma.sock, serve: partitions}\n", "", 1)

// local opens a partition through the socket.
func (r *running) local(partition string, o endpoint.Options) (*endpoint.Endpoint, error) {
	r.t.Helper()
	e, err := endpoint.Open(r.t.Context(), "rdma+local:///"+partition+"?socket="+filepath.Join(r.dir, "rdma.sock"), o)
	if err == nil {
		r.t.Cleanup(func() {
			if err := e.Close(); err != nil {
				r.t.Error(err)
			}
		})
	}
	return e, err
}

// A program of this machine has the rights of the user that it runs as, which the kernel says. A reload that closes the portal
// ends its connections; when there is a portal again, it goes on.
func TestLocalPortal(t *testing.T) {
	r := serve(t, localText)
	m := r.manager()
	us := fmt.Sprintf("uid:%d", os.Geteuid())
	table := m.divide(mgmt.PartitionAccess{Who: us, Rights: "rwf"}, mgmt.PartitionAccess{Who: "any", Rights: "r"})
	e, err := r.local("disk/a", endpoint.Options{User: "who has no say", Secret: []byte("here")})
	m.must(err)
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
	if list := r.Endpoints(); len(list) != 1 || list[0].Identity != us {
		t.Errorf("%+v", list)
	}
	list, err := endpoint.List(t.Context(), "rdma+local://?socket="+filepath.Join(r.dir, "rdma.sock"), endpoint.Options{})
	m.must(err)
	if len(list) != 2 || list[0].Name != "disk/a" || list[0].Rights != e.Info().Rights {
		t.Errorf("%+v", list)
	}
	if info, err := os.Stat(filepath.Join(r.dir, "rdma.sock")); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}

	// Somebody else's rights are not ours.
	m.must(m.alter("b", mgmt.PartitionChange{Access: &[]mgmt.PartitionAccess{{Who: fmt.Sprintf("uid:%d", os.Geteuid()+1), Rights: "rwf"}}}, false))
	if _, err := r.local("disk/b", endpoint.Options{}); !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Errorf("a partition of another user: %v", err)
	}

	r.apply(withoutLocal)
	if _, err := os.Stat(filepath.Join(r.dir, "rdma.sock")); err == nil {
		t.Error("a portal that is gone leaves its socket behind")
	}
	if _, err := r.local("disk/a", endpoint.Options{}); err == nil {
		t.Error("a portal that is gone still serves")
	}
	read := make(chan error, 1)
	go func() { read <- e.ReadAt(t.Context(), buf[:4096], 64<<10) }()
	r.apply(localText)
	m.must(<-read)
	clear(buf)
	m.must(e.ReadAt(t.Context(), buf, 64<<10))
	if string(buf[:14]) != "from a program" {
		t.Errorf("read %q", buf[:14])
	}
	late, err := e.Alloc(4096) // of the daemon of now
	m.must(err)
	m.must(e.WriteAt(t.Context(), late, 0))
	m.must(e.Free(late))
}

// A portal that a reload puts in the place of another one at the same path takes its socket over: nobody finds it gone.
func TestLocalPortalReplaced(t *testing.T) {
	r := serve(t, localText)
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	e, err := r.local("disk/a", endpoint.Options{})
	m.must(err)
	buf, err := e.Alloc(4096)
	m.must(err)
	old := r.portals[1]
	next, err := r.listen(&old.config, []portal{old.portal})
	m.must(err)
	m.must(next.Close()) // the change is abandoned
	m.must(e.WriteAt(t.Context(), buf, 0))
	if _, err := r.local("disk/a", endpoint.Options{}); err != nil {
		t.Error(err)
	}
	next, err = r.listen(&old.config, []portal{old.portal})
	m.must(err)
	m.must(old.Close())
	r.mu.Lock()
	r.portals[1] = next
	r.start(next)
	r.mu.Unlock()
	m.must(e.WriteAt(t.Context(), buf, 0))
	if _, err := r.local("disk/a", endpoint.Options{}); err != nil {
		t.Error(err)
	}
}

// The programs of a user share no more memory with the daemon than half of limits.memory, and each a part of it.
func TestLocalPortalMemory(t *testing.T) {
	r := serve(t, localText+"limits: {memory: 32MiB}\n")
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	var es []*endpoint.Endpoint
	for range 4 {
		e, err := r.local("disk/a", endpoint.Options{})
		m.must(err)
		es = append(es, e)
	}
	if _, err := es[0].Alloc(8 * mib); err == nil {
		t.Error("one program shares a fourth of what all may")
	}
	shared := 0
	for _, e := range es {
		if _, err := e.Alloc(5 * mib); err == nil {
			shared++
		}
	}
	if shared == 0 || shared > 3 {
		t.Errorf("%d programs share 5 MiB each, of 32 MiB", shared)
	}
}

// Who connects and never says hello is turned out when the time for logins is over, as a reload may change it.
func TestLocalPortalSilent(t *testing.T) {
	r := serve(t, localText)
	r.apply(localText + "limits: {login_timeout: 1ms}\n")
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(r.dir, "rdma.sock"), Net: "unixpacket"})
	r.manager().must(err)
	defer func() { _ = u.Close() }()
	if n, err := u.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d octets from the daemon, %v", n, err)
	}
	if p := r.Status().Programs; len(p) != 1 || p[0].Silent != 1 {
		t.Errorf("%+v", p)
	}
}

// A user does not have all connections of a portal, whatever right he has to one partition.
func TestLocalPortalShare(t *testing.T) {
	r := serve(t, localText+"limits: {connections: 4}\n")
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	for range 2 {
		_, err := r.local("disk/a", endpoint.Options{})
		m.must(err)
	}
	if _, err := r.local("disk/b", endpoint.Options{}); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a third connection of four: %v", err)
	}
}

// The status tells who has programs at a local portal, what they have of the daemon, what they have done, and who was refused.
func TestLocalPortalStatus(t *testing.T) {
	r := serve(t, localText+"limits: {connections: 8, memory: 64MiB}\n")
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	status := func() mgmt.Programs {
		t.Helper()
		all := r.Status().Programs
		if len(all) != 1 || all[0].Portal != filepath.Join(r.dir, "rdma.sock") {
			t.Fatalf("%+v", all)
		}
		return all[0]
	}
	if p := status(); p.Connected != 0 || len(p.Users) != 0 {
		t.Errorf("before anybody has come: %+v", p)
	}
	open := func() *endpoint.Endpoint {
		t.Helper()
		e, err := endpoint.Open(t.Context(), "rdma+local:///disk/a?socket="+filepath.Join(r.dir, "rdma.sock"), endpoint.Options{})
		m.must(err)
		return e
	}
	first, second := open(), open()
	for _, e := range []*endpoint.Endpoint{first, second} {
		buf, err := e.Alloc(mib)
		m.must(err)
		m.must(e.WriteAt(t.Context(), buf[:8192], 0))
		m.must(e.ReadAt(t.Context(), buf[:4096], 0))
	}
	if _, err := first.Alloc(20 * mib); err == nil {
		t.Error("a program shares more than a fourth of the memory")
	}
	done := func(p mgmt.Programs) {
		t.Helper()
		if len(p.Users) != 1 {
			t.Fatalf("%+v", p)
		}
		u := p.Users[0]
		if u.UID != uint32(os.Geteuid()) || u.IO.Write.Bytes != 16384 || u.IO.Write.Commands() != 2 || u.IO.Read.Bytes != 8192 || u.IO.InFlight != 0 {
			t.Errorf("%+v", u)
		}
	}
	p := status()
	done(p)
	if u := p.Users[0]; p.Connected != 2 || p.Connections != 2 || u.Programs != 2 || u.QueuePairs != 2 || u.Shared < 2*mib || u.Shared > 32*mib {
		t.Errorf("%+v", p)
	}
	if p.Refused != 0 || p.Silent != 0 || p.ConnectionsRefused != 0 || p.MemoryRefused == 0 {
		t.Errorf("%+v", p)
	}
	third, fourth := open(), open()
	if _, err := r.local("disk/b", endpoint.Options{}); err == nil {
		t.Error("a fifth connection of eight")
	}
	for _, e := range []*endpoint.Endpoint{first, third, fourth} {
		m.must(e.Close())
	}
	wait := func(programs int) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); status().Connected != programs || status().Connections != programs; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("there are still %+v", status())
			}
		}
	}
	wait(1)
	if p = status(); p.ConnectionsRefused != 1 {
		t.Errorf("%+v", p)
	}
	done(p) // what programs have done that are gone is counted on
	m.must(second.Close())
	wait(0)
	if p = status(); len(p.Users) != 0 || p.ConnectionsRefused != 1 {
		t.Errorf("%+v", p)
	}
}
