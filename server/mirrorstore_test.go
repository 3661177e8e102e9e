package server

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/backend/memory"
	"oneshot/config"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/mgmt"
	"oneshot/state"
	"oneshot/volume/access"
)

// TestBeginsWithASmallCopy: a mirror does not begin with a size that its first copy does not have. Nodes agree on no size then, for it would stay, and
// the mirror begins when the configuration is right.
func TestBeginsWithASmallCopy(t *testing.T) {
	text, on := clusterOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := s.member
	path := filepath.Join(m.state, mirrorsDir, "e")
	dir, err := quorum.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	disk, err := memory.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	c := &config.Store{Name: "e", Mirror: &config.MirrorStore{Copies: []config.Copy{{Node: "a"}, {Node: "b"}}}}
	for _, size := range []int64{32 << 20, 1<<20 + 1} {
		c.Size = size
		_, err := m.recordOf(c, dir, disk, inherited{})
		if err == nil || !strings.Contains(err.Error(), "write a size that it has") {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := os.Stat(filepath.Join(path, recordFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%d bytes: the node has noted the mirror: %v", size, err)
		}
	}
	c.Size = 16 << 20
	if r, err := m.recordOf(c, dir, disk, inherited{}); err != nil || r.Size != c.Size {
		t.Errorf("%+v, %v", r, err)
	}
}

// ordinaryIn has node a alone serve an ordinary store in the place of the mirror of mirrorOn.
func ordinaryIn(text, store string) string {
	return strings.NewReplacer("{type: mirror, size: 16MiB, copies: {a: {type: file, path: a.img}, b: {type: file, path: b.img}}}", store, "{iqn:", "{node: a, iqn:").Replace(text)
}

// TestCopyIsNoOrdinaryStore: the disk of a copy is not written to past its mirror, which would not notice when it is in the configuration again.
func TestCopyIsNoOrdinaryStore(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	primary(t, s)
	as := func(store string) *config.Config { return on(ordinaryIn(text, store)) }
	written := as("{type: file, path: a.img, node: a}")
	if _, err := s.Apply(as("{type: memory, size: 16MiB, node: a}")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(written); err == nil || !strings.Contains(err.Error(), "it is the copy of the mirror d") {
		t.Errorf("a reload: %v", err)
	}
	path := filepath.Join(s.member.state, mirrorsDir, "d")
	shutdown(t, s)
	if s, err := New(written, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "it is the copy of the mirror d") {
		t.Errorf("a start: %v", err)
		shutdown(t, s)
	}
	shutdown(t, newServer(t, as("{type: file, path: a.img, node: a, readonly: true}")))
	shutdown(t, newServer(t, as("{type: file, path: other.img, size: 16MiB, node: a}")))
	shutdown(t, newServer(t, on(text)))
	if err := os.RemoveAll(path); err != nil { // the mirror is given up
		t.Fatal(err)
	}
	shutdown(t, newServer(t, written))
}

// TestStatusOfAnotherDisk: a node that has found another disk in the place of its copy says so, and what to do, though the copy is in sync by
// what the nodes have agreed on. With the former disk the node serves.
func TestStatusOfAnotherDisk(t *testing.T) {
	text, on := mirrorOn(t)
	cfg := on(text)
	s := newServer(t, cfg)
	primary(t, s)
	shutdown(t, s)
	disk := cfg.Store("d").Mirror.Copy("a").File.Path
	if err := os.Rename(disk, disk+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s = newServer(t, cfg)
	m := s.mirrors()[0]
	if err := m.Await(t.Context(), func(st replica.State) bool { return st.View.InSync.Has(m.self) }); err != nil {
		t.Fatal(err)
	}
	own := s.clusterStatus().Mirrors[0].Copies[0]
	if own.State != mgmt.CopyDoubted || !strings.Contains(own.Reason, "start it with the disk that it had") {
		t.Errorf("another disk: %+v", own)
	}
	shutdown(t, s)
	if err := os.Rename(disk+".old", disk); err != nil {
		t.Fatal(err)
	}
	s = newServer(t, cfg)
	defer shutdown(t, s)
	primary(t, s)
	if own := s.clusterStatus().Mirrors[0].Copies[0]; own.State != mgmt.CopyInSync || own.Reason != "" {
		t.Errorf("the former disk: %+v", own)
	}
}

// onOlderKernel is a file that has only the identity which an older kernel gives it: where the tests run with such a one it is the only one.
type onOlderKernel struct{ *file.Store }

func (s onOlderKernel) Identities() []backend.Identity {
	ids := s.Store.Identities()
	return ids[len(ids)-1:]
}

// TestCopyOfOlderKernel: what a node has kept of its copy with an older kernel, which names files otherwise, is found with a newer one, and kept by the
// newer name from then on.
func TestCopyOfOlderKernel(t *testing.T) {
	open := fileStore.open
	defer func() { fileStore.open = open }()
	for _, forced := range []bool{false, true} {
		fileStore.open = func(c *config.Store, o opening) (backend.Store, error) {
			s, err := open(c, o)
			if err != nil {
				return nil, err
			}
			return onOlderKernel{s.(*file.Store)}, nil
		}
		text, on := mirrorOn(t)
		cfg := on(text)
		s := newServer(t, cfg)
		m := primary(t, s)
		older, now := backend.IdentityOf(m.copied), backend.IdentityOf(m.copied.(onOlderKernel).Store)
		if err := doNow(m, backend.Op{Kind: backend.Write, Flags: backend.FUA, Len: 4096, Segs: [][]byte{bytes.Repeat([]byte{0xa5}, 4096)}}); err != nil {
			t.Fatal(err)
		}
		shutdown(t, s)
		keeps := func(want backend.Identity) {
			t.Helper()
			dir, err := quorum.OpenDir(filepath.Join(s.member.state, mirrorsDir, "d"))
			if err != nil {
				t.Fatal(err)
			}
			_, noted, err := readRecord(dir)
			kept, keptErr := mirror.Inspect(dir)
			if err := errors.Join(err, keptErr, dir.Close()); err != nil || noted != want || kept.Disk != string(want) {
				t.Errorf("the record is of %q, the metadata are of %q, %v; want %q", noted, kept.Disk, err, want)
			}
		}
		keeps(older)

		fileStore.open = open
		ordinary := ordinaryIn(text, "{type: file, path: a.img, node: a}")
		renamed := strings.NewReplacer("{d: ", "{e: ", "0: d", "0: e").Replace(text)
		for text, why := range map[string]string{ordinary: "it is the copy of the mirror d", renamed: "the copy belongs to the mirror d"} {
			if s, err := New(on(text), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%v; want that %s", err, why)
				if err == nil {
					shutdown(t, s)
				}
			}
		}
		if forced {
			dir, err := quorum.OpenDir(cfg.Cluster.State)
			if err != nil {
				t.Fatal(err)
			}
			f, err := PlanForce(t.Context(), cfg, dir, "d")
			if err != nil {
				t.Fatal(err)
			}
			if p := &f.Mirrors[0]; p.Unknown || !p.WasInSync {
				t.Errorf("target ha force says %+v", p)
			}
			_, err = f.Do(t.Context())
			if err := errors.Join(err, f.dir.Close()); err != nil {
				t.Fatal(err)
			}
		}
		s = newServer(t, cfg)
		primary(t, s)
		if c := s.clusterStatus().Mirrors[0].Copies[0]; c.State != mgmt.CopyInSync || c.Reason != "" {
			t.Errorf("the copy: %+v", c)
		}
		shutdown(t, s)
		keeps(now)
	}
}

// TestStatusOfAMirrorGivenUp: a mirror that no configuration has any more is served by nobody, though the nodes had agreed who is its primary.
func TestStatusOfAMirrorGivenUp(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	primary(t, s)
	if m := s.clusterStatus().Mirrors[0]; m.Role != mgmt.RolePrimary || m.Primary != "a" {
		t.Errorf("%+v", m)
	}
	if _, err := s.Apply(on(withoutMirror(text))); err != nil {
		t.Fatal(err)
	}
	if m := s.clusterStatus().Mirrors[0]; m.Name != "d" || m.Role != mgmt.RoleGivenUp || m.Primary != "" {
		t.Errorf("a mirror that is in no configuration: %+v", m)
	}
	if _, err := s.Apply(on(text)); err != nil {
		t.Fatal(err)
	}
	primary(t, s)
	if m := s.clusterStatus().Mirrors[0]; m.Role != mgmt.RolePrimary {
		t.Errorf("it is there again: %+v", m)
	}
}

// withoutMirror is the text of mirrorOn with another store in the place of the mirror.
func withoutMirror(text string) string {
	return strings.NewReplacer("d: {type: mirror, size: 16MiB, copies: {a: {type: file, path: a.img}, b: {type: file, path: b.img}}}", "other: {type: memory, size: 1MiB, node: a}", "{iqn:", "{node: a, iqn:", "0: d", "0: other").Replace(text)
}

// TestStatusOfDiskThatFails: what the disk of a node's copy fails with is the reason of that copy, whatever its state is.
func TestStatusOfDiskThatFails(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	st, _ := m.Status()
	st.Failed = errors.New("no space left on device")
	if c := m.copyStatus(&st, m.self, "a"); c.State != mgmt.CopyInSync || !strings.Contains(c.Reason, "does not take what is written (no space left on device)") {
		t.Errorf("the copy of this node: %+v", c)
	}
	if c := m.copyStatus(&st, m.idOf("b"), "b"); c.Reason != "" {
		t.Errorf("the copy of another one: %+v", c)
	}
	st.Failed, st.Unsaved = nil, errors.New("the disk has not answered for 6s")
	if c := m.copyStatus(&st, m.self, "a"); !strings.Contains(c.Reason, "its metadata cannot be saved (the disk has not answered for 6s)") {
		t.Errorf("the copy of this node: %+v", c)
	}
	if c := m.copyStatus(&st, m.idOf("b"), "b"); c.Reason != "" {
		t.Errorf("the copy of another one: %+v", c)
	}
}

// TestInherits: the disk of an ordinary store becomes the first copy of a mirror, after a power cut in an atomic write. The mirror has all of that write, and
// the reservations that outlive a loss of power. When the mirror is given up nothing of the past comes back.
func TestInherits(t *testing.T) {
	text, on := mirrorOn(t)
	text += "state: kept\n"
	ordinary := on(ordinaryIn(text, "{type: file, path: a.img, size: 16MiB, node: a}"))
	name := ""
	kept := func(s *Server) access.State {
		for _, open := range s.units.stores {
			ids := backend.IdentitiesOf(open.volume.Store())
			name = volumeName("", ids[len(ids)-1]) // as with an older kernel, if the file has another one there
			return open.volume.Access().State()
		}
		return access.State{}
	}
	s := newServer(t, ordinary)
	kept(s)
	shutdown(t, s)

	dir, err := state.Open(ordinary.State.Dir)
	if err != nil {
		t.Fatal(err)
	}
	const off, document = 1 << 20, `{"Format":2,"Access":{"Persist":true,"Kind":5,"Holder":0,"Registrations":[{"Initiator":{"Protocol":5,"Name":"iqn.x","Port":"000000000001"},"Port":{"Target":"iqn.2026-11.example.oneshot:t","Group":1},"Key":7}]}}`
	data := bytes.Repeat([]byte{0xa5}, 64<<10)
	if err := errors.Join(dir.File(name).Save([]byte(document)), dir.Journal(name).Begin(off, data), dir.Close()); err != nil {
		t.Fatal(err)
	}
	has := func(s backend.Store) []byte {
		b := make([]byte, len(data))
		if err := doNow(s, backend.Op{Kind: backend.Read, Off: off, Len: int64(len(b)), Segs: [][]byte{b}}); err != nil {
			t.Fatal(err)
		}
		return b
	}

	mirrored := on(text)
	for range 2 { // it stays so
		s = newServer(t, mirrored)
		m := primary(t, s)
		if !bytes.Equal(has(m), data) {
			t.Error("an atomic write is not complete")
		}
		if now, err := m.held.Look(); err != nil || len(now.Registrations) != 1 || now.Registrations[0].Key != 7 || now.Kind != 5 {
			t.Errorf("reservations: %+v, %v", now, err)
		}
		clear(data)
		if err := doNow(m, backend.Op{Kind: backend.Write, Off: off, Len: int64(len(data)), Segs: [][]byte{data}}); err != nil {
			t.Fatal(err)
		}
		shutdown(t, s)
	}
	if err := os.RemoveAll(filepath.Join(s.member.state, mirrorsDir, "d")); err != nil { // the mirror is given up
		t.Fatal(err)
	}
	s = newServer(t, ordinary)
	defer shutdown(t, s)
	if a := kept(s); len(a.Registrations) != 0 {
		t.Errorf("reservations of a former time: %+v", a)
	}
	for _, open := range s.units.stores {
		if !bytes.Equal(has(open.volume.Store()), data) {
			t.Error("bytes of a former time have come over newer ones")
		}
	}
}

// TestCopyHasLostItsEnd: the file of a copy was made shorter while its node did not run, and gets its length back when it is opened. What it had there reads as zeroes, so it
// is no source: nothing is served from it.
func TestCopyHasLostItsEnd(t *testing.T) {
	text, on := mirrorOn(t)
	cfg := on(text)
	s := newServer(t, cfg)
	m := primary(t, s)
	for _, off := range []int64{12 << 20, 0} { // a granule is remembered of each region, that which was written last
		op := backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: off, Len: 4096, Segs: [][]byte{bytes.Repeat([]byte{0xa5}, 4096)}}
		if err := doNow(m, op); err != nil {
			t.Fatal(err)
		}
	}
	shutdown(t, s)
	cut := func() *Force {
		if err := os.Truncate(cfg.Store("d").Mirror.Copy("a").File.Path, 8<<20); err != nil {
			t.Fatal(err)
		}
		dir, err := quorum.OpenDir(cfg.Cluster.State)
		if err != nil {
			t.Fatal(err)
		}
		f, err := PlanForce(t.Context(), cfg, dir, "d")
		if err != nil {
			t.Fatal(err)
		}
		if p := &f.Mirrors[0]; !p.Unknown || p.WasInSync {
			t.Errorf("target ha force says %+v", p)
		}
		return f
	}
	if err := cut().dir.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays so
		s = newServer(t, cfg)
		m := s.mirrors()[0]
		if err := m.Await(t.Context(), func(st replica.State) bool { return st.View.InSync.Has(m.self) }); err != nil {
			t.Fatal(err)
		}
		if own := s.clusterStatus().Mirrors[0].Copies[0]; own.State != mgmt.CopyDoubted {
			t.Errorf("%+v", own)
		}
		shutdown(t, s)
	}

	f := cut() // once more, and the administrator has it go on nevertheless
	_, err := f.Do(t.Context())
	if err := errors.Join(err, f.dir.Close()); err != nil {
		t.Fatal(err)
	}
	s = newServer(t, cfg)
	defer shutdown(t, s)
	primary(t, s)
}
