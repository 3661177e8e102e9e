package server

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oneshot/config"
	"oneshot/initiator"
	"oneshot/mem"
	"oneshot/mgmt"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

const mib = 1 << 20

// dividedText serves a divided file store; LUNS is replaced.
const dividedText = `
stores: {disk: {type: file, path: disk.img, size: 32MiB, partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {LUNS}}]
portals: [{listen: "127.0.0.1:0"}]
management: {socket: m}
`

func dividedWith(luns string, replace ...string) string {
	return strings.NewReplacer(append(replace, "LUNS", luns)...).Replace(dividedText)
}

// manager is a client of the management API, with what answers should be.
type manager struct {
	*mgmt.Client
	t *testing.T
}

func (r *running) manager() *manager {
	c := mgmt.NewClient(filepath.Join(r.dir, "m"))
	r.t.Cleanup(c.Close)
	return &manager{c, r.t}
}

// divide makes a table with the partitions a and b, of 4 MiB each.
func (m *manager) divide(access ...mgmt.PartitionAccess) *mgmt.Partitions {
	m.t.Helper()
	p, err := m.InitPartitions(m.t.Context(), "disk", "none", false)
	if err != nil {
		m.t.Fatal(err)
	}
	p, err = m.CreatePartitions(m.t.Context(), "disk", p.Tag, mgmt.NewPartition{Name: "a", Size: 4 * mib, Access: access}, mgmt.NewPartition{Name: "b", Size: 4 * mib, Access: access})
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *manager) table() *mgmt.Partitions {
	m.t.Helper()
	p, err := m.Partitions(m.t.Context(), "disk")
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *manager) alter(name string, c mgmt.PartitionChange, force bool) error {
	_, err := m.AlterPartition(m.t.Context(), "disk", name, m.table().Tag, c, force)
	return err
}

func (m *manager) delete(name string, force bool) error {
	_, err := m.DeletePartition(m.t.Context(), "disk", name, m.table().Tag, false, force)
	return err
}

func (m *manager) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// serial is what the LUN says its serial number is.
func serial(t *testing.T, s *initiator.Session, lun int) string {
	t.Helper()
	b, err := s.Inquiry(t.Context(), lun, 0x80)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[4:])
}

// image is n bytes of the store's file from off on.
func (r *running) image(off, n int64) []byte {
	r.t.Helper()
	b := make([]byte, n)
	f, err := os.Open(filepath.Join(r.dir, "disk.img"))
	if err == nil {
		_, err = f.ReadAt(b, off)
		f.Close()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// A LUN shows a partition and nothing else of the store; it grows with it, and is the same disk by whatever name.
func TestPartitionLUN(t *testing.T) {
	r := serve(t, dividedWith(""))
	m := r.manager()
	table := m.divide()
	a, b := table.Partitions[0], table.Partitions[1]
	other, err := r.OpenLocal(partition.Identity{})(t.Context(), "disk/b", 0, func(error) {})
	if !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Fatalf("a partition without access lines is opened: %+v, %v", other, err)
	}
	r.apply(dividedWith("0: disk/a, 1: disk/b"))
	s := r.login("a")
	neighbour := bytes.Repeat([]byte("mine"), int(b.Size)/4)
	if _, err := unit(t, s, 1).WriteAt(neighbour, 0); err != nil {
		t.Fatal(err)
	}
	lu := unit(t, s, 0)
	if lu.Size() != a.Size {
		t.Errorf("the LUN has %d bytes, and the partition %d", lu.Size(), a.Size)
	}
	mark := bytes.Repeat([]byte("0123456789abcdef"), int(a.Size)/16)
	if _, err := lu.WriteAt(mark, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := lu.WriteAt(make([]byte, 512), a.Size); err == nil {
		t.Error("a write beyond the end of the partition")
	}
	head := r.image(0, a.Offset)
	if !bytes.Equal(r.image(a.Offset, a.Size), mark) || !bytes.Equal(r.image(b.Offset, b.Size), neighbour) || !bytes.HasPrefix(head, []byte("oneshot partitions 1 ")) {
		t.Error("octets are not where they belong")
	}
	was := serial(t, s, 0)
	if was == serial(t, s, 1) {
		t.Error("two partitions have one serial number")
	}
	attentions(t, s, 0)

	size := int64(5 * mib)
	if err := m.alter("a", mgmt.PartitionChange{Size: &size}, false); err == nil || !strings.Contains(err.Error(), "not free") {
		t.Errorf("a partition grows over its neighbour: %v", err)
	}
	if err := m.alter("b", mgmt.PartitionChange{Size: &size}, false); err != nil {
		t.Fatal(err)
	}
	if got := attentions(t, s, 1); !strings.Contains(got, "62a09") || unit(t, s, 1).Size() != size {
		t.Errorf("a partition that has grown: attentions %s, %d bytes", got, unit(t, s, 1).Size())
	}
	if p := m.table().Partitions[0]; len(p.LUNs) != 1 || p.LUNs[0] != (mgmt.PartitionLUN{Target: iqn + "a", LUN: 0}) {
		t.Errorf("LUNs %+v", p.LUNs)
	}

	log := "log"
	for name, err := range map[string]error{
		"rename": m.alter("a", mgmt.PartitionChange{Name: &log}, true), "delete": m.delete("a", true),
		"shrink": m.alter("a", mgmt.PartitionChange{Size: new(int64(mib))}, true),
	} {
		if _, ok := errors.AsType[*mgmt.ConflictError](err); !ok {
			t.Errorf("%s under a LUN: %v", name, err)
		}
	}
	r.apply(dividedWith("1: disk/b"))
	until(t, "the LUN lets go of the partition", func() bool { return m.alter("a", mgmt.PartitionChange{Name: &log}, false) == nil })
	_, err = r.Apply(r.parse(dividedWith("0: disk/a, 1: disk/b")))
	if err == nil || !strings.Contains(err.Error(), `test.yaml:3:57: LUN 0 of iqn.2026-11.example.oneshot:a: store "disk": there is no partition "a": there are b, log`) {
		t.Errorf("a LUN of a partition that has another name now: %v", err)
	}
	r.apply(dividedWith("5: disk/log, 1: disk/b"))
	if got := attentions(t, s, 1); got != "63f0e" {
		t.Errorf("the other LUN was told %s", got)
	}
	if serial(t, s, 5) != was {
		t.Error("the partition has another serial number since it is called otherwise")
	}
	got := make([]byte, len(mark))
	if _, err := unit(t, s, 5).ReadAt(got, 0); err != nil || !bytes.Equal(got, mark) {
		t.Errorf("what was written under the other name: %v", err)
	}
}

// until waits until f is true; the test fails if that never comes.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for !f() {
		if t.Context().Err() != nil {
			t.Fatal(what)
		}
	}
}

// What is there outlives a restart, and the serial number with it.
func TestPartitionsAfterRestart(t *testing.T) {
	dir := t.TempDir()
	text := dividedWith("0: disk/a", "disk.img", filepath.Join(dir, "disk.img"), "socket: m", "socket: "+filepath.Join(dir, "m"))
	first := serve(t, strings.Replace(text, "0: disk/a", "", 1))
	first.dir = dir
	was := first.manager().divide()
	first.apply(text)
	s := first.login("a")
	works(t, s, 0)
	id := serial(t, s, 0)
	if err := errors.Join(s.Close(), first.Shutdown(t.Context())); err != nil {
		t.Fatal(err)
	}
	again := serve(t, text)
	again.dir = dir
	if now := again.manager().table(); now.UUID != was.UUID || now.Tag != was.Tag || now.Partitions[0].UUID != was.Partitions[0].UUID {
		t.Errorf("the table was %+v and is %+v", was, now)
	}
	if serial(t, again.login("a"), 0) != id {
		t.Error("the LUN has another serial number after a restart")
	}
}

// Two who change one table do not overwrite each other.
func TestTwoManagers(t *testing.T) {
	r := serve(t, dividedWith(""))
	one, two := r.manager(), r.manager()
	seen := one.divide()
	all := []mgmt.PartitionAccess{{Who: "any", Rights: "r"}}
	theirs, err := two.AlterPartition(t.Context(), "disk", "a", seen.Tag, mgmt.PartitionChange{Access: &all}, false)
	one.must(err)
	var stale *mgmt.StaleError
	for what, do := range map[string]func() error{
		"POST": func() error {
			_, err := one.CreatePartitions(t.Context(), "disk", seen.Tag, mgmt.NewPartition{Name: "c", Size: mib})
			return err
		},
		"PATCH": func() error {
			_, err := one.AlterPartition(t.Context(), "disk", "a", seen.Tag, mgmt.PartitionChange{Access: &[]mgmt.PartitionAccess{}}, false)
			return err
		},
		"DELETE": func() error {
			_, err := one.DeletePartition(t.Context(), "disk", "a", seen.Tag, false, true)
			return err
		},
		"init": func() error { _, err := one.InitPartitions(t.Context(), "disk", seen.Tag, true); return err },
	} {
		if err := do(); !errors.As(err, &stale) {
			t.Errorf("%s of somebody who has not seen the last change: %v", what, err)
		}
	}
	if now := one.table(); now.Tag != theirs.Tag || len(now.Partitions[0].Access) != 1 {
		t.Errorf("the table is now %+v", now)
	}
}

// Changes that make no sense are refused with what to do about it, and change nothing.
func TestPartitionChangesRefused(t *testing.T) {
	r := serve(t, dividedWith("", "stores: {", "stores: {whole: {type: memory, size: 1MiB}, "))
	m := r.manager()
	if _, err := m.CreatePartitions(t.Context(), "disk", "none", mgmt.NewPartition{Name: "a", Size: mib}); err == nil || !strings.Contains(err.Error(), "partition init") {
		t.Errorf("a partition without a table: %v", err)
	}
	if p := m.table(); p.Tag != "none" || !strings.Contains(p.Problem, "no partition table") {
		t.Errorf("%+v", p)
	}
	was := m.divide()
	create := func(news ...mgmt.NewPartition) error {
		_, err := m.CreatePartitions(t.Context(), "disk", m.table().Tag, news...)
		return err
	}
	line := func(who, rights string) []mgmt.PartitionAccess {
		return []mgmt.PartitionAccess{{Who: who, Rights: rights}}
	}
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"one of two":      {create(mgmt.NewPartition{Name: "c", Size: mib}, mgmt.NewPartition{Name: "a", Size: mib}), "a partition \"a\" already"},
		"too large":       {create(mgmt.NewPartition{Name: "c", Size: 1 << 40}), "no free range"},
		"overlap":         {create(mgmt.NewPartition{Name: "c", Size: mib, Offset: mib}), "overlap"},
		"odd size":        {create(mgmt.NewPartition{Name: "c", Size: 1000}), "multiple of 4096"},
		"who":             {create(mgmt.NewPartition{Name: "c", Size: mib, Access: line("bob", "r")}), "names nobody"},
		"rights":          {create(mgmt.NewPartition{Name: "c", Size: mib, Access: line("any", "x")}), "letters"},
		"two lines":       {create(mgmt.NewPartition{Name: "c", Size: mib, Access: append(line("any", "r"), line("any", "w")...)}), "two access lines"},
		"unknown":         {m.delete("c", false), `there is no partition "c"`},
		"unknown, change": {m.alter("c", mgmt.PartitionChange{Cache: &mgmt.PartitionCache{}}, false), `there is no partition "c"`},
		"init again": {func() error {
			_, err := m.InitPartitions(t.Context(), "disk", m.table().Tag, false)
			return err
		}(), "with force"},
		"no such store":  {func() error { _, err := m.Partitions(t.Context(), "disc"); return err }(), `no store "disc"`},
		"a whole store":  {func() error { _, err := m.Partitions(t.Context(), "whole"); return err }(), "partitioned: true"},
		"dropped nobody": {m.DropEndpoint(t.Context(), 1), "no endpoint 1"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, c.err, c.want)
		}
	}
	if now := m.table(); now.Tag != was.Tag || len(now.Partitions) != 2 {
		t.Errorf("the table is now %+v", now)
	}
	stores, err := m.Stores(t.Context())
	m.must(err)
	if len(stores.Stores) != 2 || stores.Stores[0].Open || stores.Stores[1].Tag != was.Tag || stores.Stores[1].Free[0].Size != (32-9)*mib || stores.Stores[1].Durability != "medium" {
		t.Errorf("%+v", stores.Stores)
	}
}

// An endpoint and a LUN are views of one volume; endpoints end when a change takes something from them.
func TestEndpoints(t *testing.T) {
	r := serve(t, dividedWith(""))
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rwf"})
	r.apply(dividedWith("0: disk/a"))
	d := local.Open(local.Config{Open: r.OpenLocal(partition.Identity{Name: "app"})})
	a, b := connect(t, d, "disk/a"), connect(t, d, "disk/b")
	a.write(t, 8192, "from an endpoint")
	got := make([]byte, 512)
	s := r.login("a")
	if _, err := unit(t, s, 0).ReadAt(got, 8192); err != nil || string(got[:16]) != "from an endpoint" {
		t.Errorf("a LUN reads %q: %v", got[:16], err)
	}
	list, err := m.Endpoints(t.Context())
	m.must(err)
	if len(list.Endpoints) != 2 || list.Endpoints[0].Identity != "name:app" || list.Endpoints[0].Rights != "rwf" ||
		list.Endpoints[0].IO.Write.Commands() != 1 || list.Endpoints[0].IO.Write.Bytes != 4096 || list.Endpoints[1].Partition != "b" {
		t.Errorf("%+v", list.Endpoints)
	}
	if p := m.table().Partitions[0]; p.Endpoints != 1 || p.Writes != 1 || p.Lag != 1 || p.IO.Write.Bytes != 4096 {
		t.Errorf("%+v", p)
	}
	// A reload that is about other things disturbs nobody.
	r.apply(dividedWith("0: store/a, 3: store/b", "32MiB", "48MiB", "disk:", "store:"))
	a.write(t, 0, "still there")
	stores, err := m.Stores(t.Context())
	m.must(err)
	if list, err = m.Endpoints(t.Context()); err != nil || list.Endpoints[0].Store != "store" {
		t.Errorf("endpoints of a store that is called otherwise now: %+v, %v", list, err)
	}
	if f := stores.Stores[0].Free; stores.Stores[0].Name != "store" || f[len(f)-1].Size != (48-9)*mib {
		t.Errorf("after a reload: %+v", stores.Stores)
	}
	r.apply(dividedWith("0: disk/a", "32MiB", "48MiB"))
	size := int64(mib)
	var conflict *mgmt.ConflictError
	until(t, "the LUN lets go", func() bool {
		err := m.alter("b", mgmt.PartitionChange{Size: &size}, false)
		return errors.As(err, &conflict) && strings.Contains(err.Error(), "open endpoint")
	})
	m.must(m.alter("b", mgmt.PartitionChange{Size: &size}, true))
	b.ended(t)
	m.must(m.alter("a", mgmt.PartitionChange{Access: &[]mgmt.PartitionAccess{{Who: "name:app", Rights: "r"}}}, false))
	a.ended(t)
	a = connect(t, d, "disk/a")
	if e := a.qp.Endpoint(); e.Rights != rdma.RightRead {
		t.Errorf("after the change it has the rights %v", e.Rights)
	}
	if list, err = m.Endpoints(t.Context()); err != nil || len(list.Endpoints) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	m.must(m.DropEndpoint(t.Context(), list.Endpoints[0].ID))
	a.ended(t)
	// A store that goes takes its endpoints along.
	a = connect(t, d, "disk/a")
	r.apply(one)
	a.ended(t)
}

// peer is a queue pair to an endpoint.
type peer struct {
	qp  rdma.QueuePair
	cq  rdma.CompletionQueue
	mem rdma.Region
	buf []byte
	end chan struct{}
}

func connect(t *testing.T, d *local.Device, name string) *peer {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &peer{end: make(chan struct{})}
	dom, err := d.NewDomain()
	must(err)
	p.cq, err = d.NewCompletionQueue(8, nil)
	must(err)
	p.qp, err = d.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: p.cq, RecvCQ: p.cq, MaxWork: 8, Disconnected: func(error) { close(p.end) }})
	must(err)
	must(d.Connect(t.Context(), p.qp, name, rdma.ConnParams{}))
	lease := mem.NewPool(mib).Lease(64 << 10)
	p.buf = lease.Bytes()
	p.mem, err = dom.Register(p.buf, rdma.AccessLocalWrite)
	must(err)
	t.Cleanup(func() {
		must(p.qp.Close())
		must(p.cq.Close())
		must(p.mem.Deregister())
		must(dom.Close())
		lease.Release()
	})
	return p
}

// post writes 4096 octets that begin with text.
func (p *peer) post(off uint64, text string) rdma.Status {
	copy(p.buf, text)
	w := rdma.Work{
		Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteSTag: p.qp.Endpoint().STag, RemoteOffset: off,
		SGL: []rdma.SGE{{Bytes: p.buf[:4096], Region: p.mem}},
	}
	if _, err := p.qp.Post([]rdma.Work{w}); err != nil {
		return rdma.StatusFlushed
	}
	var c [1]rdma.Completion
	for p.cq.Poll(c[:]) == 0 {
	}
	return c[0].Status
}

func (p *peer) write(t *testing.T, off uint64, text string) {
	t.Helper()
	if s := p.post(off, text); s != rdma.StatusOK {
		t.Errorf("write: %v", s)
	}
}

// ended expects that the next work is refused, and the queue pair with it.
func (p *peer) ended(t *testing.T) {
	t.Helper()
	if s := p.post(0, "too late"); s != rdma.StatusRemoteAccess && s != rdma.StatusFlushed {
		t.Errorf("a work of an endpoint that has ended: %v", s)
	}
	<-p.end
}

// The log says which partitions no longer fit a store that has become smaller, when it is opened.
func TestPartitionsThatDoNotFit(t *testing.T) {
	const text = `
stores: {disk: {type: file, path: FILE, create: true, SIZE partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a"}]
portals: [{listen: "127.0.0.1:0"}]
management: {socket: m}
`
	file := filepath.Join(t.TempDir(), "disk.img")
	r := serve(t, strings.NewReplacer("FILE", file, "SIZE", "size: 16MiB,").Replace(text))
	m := r.manager()
	p, err := m.InitPartitions(t.Context(), "disk", "none", false)
	m.must(err)
	_, err = m.CreatePartitions(t.Context(), "disk", p.Tag, mgmt.NewPartition{Name: "first", Size: mib}, mgmt.NewPartition{Name: "last", Size: 8 * mib})
	m.must(err)
	m.must(r.Shutdown(t.Context()))
	m.must(os.Truncate(file, 8*mib))
	var log bytes.Buffer
	s, err := New(parse(t, strings.NewReplacer("FILE", file, "SIZE", "").Replace(text)), slog.New(slog.NewTextHandler(&log, nil)))
	m.must(err)
	m.must(s.Shutdown(t.Context()))
	if !strings.Contains(log.String(), `partition \"last\" ends at byte`) || strings.Contains(log.String(), "first") {
		t.Errorf("the log has\n%s", &log)
	}
}

// The table of a store in memory is made of the configuration.
func TestPartitionsOfMemory(t *testing.T) {
	const text = `
stores:
  ram: {type: memory, size: 16MiB, partitioned: true, partitions: {log: {size: 4MiB, access: {any: rw}}, db: {size: 1MiB, offset: 8MiB}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: ram/log}}]
portals: [{listen: "127.0.0.1:0"}]
management: {socket: m}
`
	r := serve(t, text)
	m := r.manager()
	p, err := m.Partitions(t.Context(), "ram")
	m.must(err)
	if len(p.Partitions) != 2 || p.Partitions[0].Name != "log" || p.Partitions[1].Offset != 8*mib || p.Partitions[0].Access[0] != (mgmt.PartitionAccess{Who: "any", Rights: "rw"}) || p.Durability != "none" {
		t.Errorf("%+v", p)
	}
	s := r.login("a")
	works(t, s, 0)
	id := serial(t, s, 0)
	_, err = m.CreatePartitions(t.Context(), "ram", p.Tag, mgmt.NewPartition{Name: "more", Size: mib})
	m.must(err)
	done := r.apply(strings.Replace(text, "db: {size: 1MiB", "db: {size: 2MiB", 1))
	if len(done.Pending) != 1 {
		t.Errorf("the partitions in the file are others: %+v", done)
	}
	if p, err = m.Partitions(t.Context(), "ram"); err != nil || len(p.Partitions) != 3 {
		t.Errorf("a reload has made another table: %+v, %v", p, err)
	}
	if again := serve(t, text); serial(t, again.login("a"), 0) != id {
		t.Error("after a restart the LUN is another disk, though stores in memory keep their names")
	}
}

// A table that cannot be read keeps the LUNs of its store from being served, and harms no other store.
func TestBrokenTable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	text := dividedWith("0: disk/a", "disk.img", path)
	for name, c := range map[string]struct{ content, want string }{
		"another thing": {"a file system, say", "no valid partition table"},
		"damaged":       {"oneshot partitions 1 7 256 5eb717a1\n{}", "damaged"},
		"nothing":       {"", "partition init"},
	} {
		if err := errors.Join(os.WriteFile(path, []byte(c.content), 0o600), os.Truncate(path, 32*mib)); err != nil {
			t.Fatal(err)
		}
		parsed, err := config.Parse(filepath.Join(dir, "test.yaml"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(parsed, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "test.yaml:3:") || !strings.Contains(err.Error(), "take them out of the configuration") {
			t.Errorf("%s: %v", name, err)
		}
		r := serve(t, strings.Replace(text, "0: disk/a", "", 1))
		m := r.manager()
		if p := m.table(); p.Tag != "none" || !strings.Contains(p.Problem, c.want) {
			t.Errorf("%s: %+v", name, p)
		}
		_, err = m.InitPartitions(t.Context(), "disk", "none", false)
		if _, conflict := errors.AsType[*mgmt.ConflictError](err); conflict != (c.content != "") {
			t.Errorf("%s: init without force: %v", name, err)
		}
		if c.content != "" {
			p, err := m.InitPartitions(t.Context(), "disk", "none", true)
			if err != nil || p.Problem != "" {
				t.Errorf("%s: init by force: %+v, %v", name, p, err)
			}
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What is kept of a partition, such as reservations, goes with it.
func TestDeletedPartitionsLeaveNoState(t *testing.T) {
	const state = "state: state\n"
	r := serve(t, dividedWith("")+state)
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	kept := func() (names []string) {
		files, err := os.ReadDir(filepath.Join(r.dir, "state"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasPrefix(f.Name(), "volume-") {
				names = append(names, f.Name())
			}
		}
		return names
	}
	for _, name := range []string{"disk/a", "disk/b"} {
		o, err := r.OpenLocal(partition.Identity{})(t.Context(), name, 0, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
	}
	was := kept()
	m.must(m.delete("a", false))
	if now := kept(); len(was) != 2 || len(now) != 1 {
		t.Errorf("kept were %s, and are %s", was, now)
	}
}

// One of the two places of the table may be damaged: that harms nobody, is said, and is mended by the next change.
func TestHalfOfATable(t *testing.T) {
	r := serve(t, dividedWith(""))
	was := r.manager().divide() // generation 1 in place A, 2 in B
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(r.dir, "disk.img"), os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("scratched"), 0)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	again := serve(t, dividedWith("", "disk.img", filepath.Join(r.dir, "disk.img")))
	m := again.manager()
	if p := m.table(); p.Tag != was.Tag || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "slot A has no valid table") {
		t.Errorf("%+v", p)
	}
	m.must(m.delete("b", false))
	if p := m.table(); len(p.Warnings) != 0 || len(p.Partitions) != 1 {
		t.Errorf("after a change: %+v", p)
	}
}

// Of a store and its copy one is served: their partitions could not be told apart.
func TestCopyOfATable(t *testing.T) {
	r := serve(t, dividedWith(""))
	r.manager().divide()
	head := r.image(0, 2*mib)
	copied := filepath.Join(r.dir, "copy.img")
	if err := errors.Join(os.WriteFile(copied, head, 0o600), os.Truncate(copied, 32*mib)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Apply(r.parse(dividedWith("", "stores: {", "stores: {copy: {type: file, path: copy.img, partitioned: true}, ")))
	if err == nil || !strings.Contains(err.Error(), "test.yaml:2:10:") || !strings.Contains(err.Error(), "have one partition table") {
		t.Errorf("a copy: %v", err)
	}
	if p := r.manager().table(); len(p.Partitions) != 2 {
		t.Errorf("the store itself: %+v", p)
	}
}

// A store does not become a divided one, or the other way round, while it is open.
func TestDividedWhileOpen(t *testing.T) {
	r := serve(t, dividedWith("0: disk", ", partitioned: true", ""))
	_, err := r.Apply(r.parse(dividedWith("")))
	if err == nil || !strings.Contains(err.Error(), "test.yaml:2:10: ") || !strings.Contains(err.Error(), "restart") {
		t.Errorf("a store that is shown is divided: %v", err)
	}
	r.apply(dividedWith("", "partitioned: true", "sparse: true"))
	until(t, "the store is closed", func() bool { return r.retirements.going() == nil })
	r.apply(dividedWith(""))
	if _, err = r.Apply(r.parse(dividedWith("0: disk", ", partitioned: true", ""))); err == nil {
		t.Error("a divided store is shown as a whole")
	}
}

// A failed change leaves no divided store behind.
func TestFailedChangeClosesDivided(t *testing.T) {
	r := serve(t, one)
	bad := dividedWith("0: disk/a", "management: {socket: m}", "")
	if _, err := r.Apply(r.parse(bad)); err == nil {
		t.Fatal("a LUN of nothing is served")
	}
	if _, err := os.Stat(filepath.Join(r.dir, "disk.img")); !os.IsNotExist(err) {
		t.Errorf("the file is left behind: %v", err)
	}
	r.apply(dividedWith("")) // its lock is free
	if list := r.partitions.List(partition.Identity{}); len(list) != 0 {
		t.Error(fmt.Sprint(list))
	}
}

// What the table says of writes that nobody flushes is done, from the next write on, and told.
func TestPartitionCache(t *testing.T) {
	r := serve(t, portalText)
	m := r.manager()
	m.divide(mgmt.PartitionAccess{Who: "any", Rights: "rw"})
	part := func() *mgmt.Partition {
		t.Helper()
		p, err := r.Partitions("disk")
		m.must(err)
		return &p.Partitions[0]
	}
	set := func(c mgmt.PartitionCache) {
		t.Helper()
		m.must(m.alter("a", mgmt.PartitionChange{Cache: &c}, false))
	}
	e, err := r.program("", "disk/a")
	m.must(err)
	buf, err := e.Alloc(4096)
	m.must(err)
	m.must(e.WriteAt(t.Context(), buf, 0))
	if p := part(); p.Aging != nil || p.Cache != nil || p.Lag != 1 {
		t.Errorf("%+v", p)
	}
	set(mgmt.PartitionCache{WriteMS: 20}) // and the endpoint stays
	for deadline := time.Now().Add(time.Minute); part().Lag != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is flushed: %+v", part())
		}
	}
	m.must(e.WriteAt(t.Context(), buf, 0))
	for deadline := time.Now().Add(time.Minute); part().Lag != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is flushed: %+v", part())
		}
	}
	if p := part(); p.Aging == nil || p.Aging.WindowNS != int64(20*time.Millisecond) || p.Aging.Flushes < 2 || p.Aging.Lost || p.Cache.WriteMS != 20 {
		t.Errorf("%+v, %+v", p, p.Aging)
	}
	if other, err := r.program("", "disk/a"); err != nil || other.Info().Aging != 20*time.Millisecond {
		t.Errorf("%v, %v", other, err)
	}
	set(mgmt.PartitionCache{Write: "none"})
	if p := part(); p.Aging != nil || p.Cache.Write != "none" || p.Cache.WriteMS != 0 {
		t.Errorf("%+v, %+v", p, p.Cache)
	}
	writes := part().Writes
	m.must(e.WriteAt(t.Context(), buf, 0))
	m.must(e.WriteAt(t.Context(), buf, 4096))
	if p := part(); p.Writes != writes+2 || p.Lag != 0 {
		t.Errorf("writes that are durable by themselves: %+v", p)
	}
	set(mgmt.PartitionCache{})
	m.must(e.WriteAt(t.Context(), buf, 0))
	if p := part(); p.Aging != nil || p.Lag != 1 {
		t.Errorf("%+v, %+v", p, p.Aging)
	}
	for _, bad := range []mgmt.PartitionCache{{Write: "some"}, {Write: "none", WriteMS: 5}} {
		if m.alter("a", mgmt.PartitionChange{Cache: &bad}, false) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
