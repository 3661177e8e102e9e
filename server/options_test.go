package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ddp"
	"oneshot/scsi"
)

// openedStore is what can be seen of a store that a daemon has opened.
type openedStore struct {
	backend.Info
	flags int // of its descriptor
	rings int // of io_uring that the process has
}

// openDescriptors are what the process has open: their numbers, by what they lead to.
func openDescriptors(t *testing.T) map[string][]string {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	to := make(map[string][]string)
	for _, e := range all {
		if at, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			to[at] = append(to[at], e.Name())
		}
	}
	return to
}

// lookAt opens a store at path as the configuration text says, and tells what it has become.
func lookAt(t *testing.T, path, text string) (o openedStore, err error) {
	t.Helper()
	const ring = "anon_inode:[io_uring]"
	before := openDescriptors(t)
	s, err := New(parse(t, `
stores: {d: `+text+`}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{listen: "127.0.0.1:0"}]
`), slog.New(slog.DiscardHandler))
	if err != nil {
		return o, err
	}
	defer func() {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, store := range s.units.stores {
		o.Info = store.volume.Store().Info()
	}
	now := openDescriptors(t)
	o.rings = len(now[ring]) - len(before[ring])
	found := slices.DeleteFunc(now[path], func(fd string) bool { return slices.Contains(before[path], fd) })
	if len(found) != 1 {
		t.Fatalf("%d new descriptors of %s", len(found), path)
	}
	info, err := os.ReadFile("/proc/self/fdinfo/" + found[0])
	if err != nil {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(string(info), "flags:\t")
	flags, _, _ = strings.Cut(flags, "\n")
	n, err := strconv.ParseInt(flags, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.flags = int(n)
	return o, nil
}

// TestStoreOptions: the options of files and devices in the configuration are those that they are opened with.
func TestStoreOptions(t *testing.T) {
	dir := t.TempDir()
	loop := backendtest.NewLoop(t, 8<<20, 512)
	for _, c := range []struct {
		kind, options                          string
		volatile, thin, direct, ring, readOnly bool
	}{
		{"file", "", true, true, false, false, false},
		{"file", "cache: writethrough", false, true, false, false, false},
		{"file", "sparse: false", true, false, false, false, false},
		{"file", "direct: true, io: uring", true, true, true, true, false},
		{"file", "direct: true, io: threads", true, true, true, false, false},
		{"file", "readonly: true", true, true, false, false, true},
		{"device", "io: threads", true, true, true, false, false},
		{"device", "io: uring", true, true, true, true, false},
		{"device", "cache: writethrough, io: threads", false, true, true, false, false},
		{"device", "direct: false", true, true, false, false, false},
		{"device", "readonly: true, io: threads", true, true, true, false, true},
	} {
		path, options := loop.Path, c.options
		if c.kind == "file" {
			path = filepath.Join(dir, fmt.Sprintf("%x.img", c.options))
			if c.readOnly {
				if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			options = "size: 1MiB, " + options
		}
		o, err := lookAt(t, path, "{type: "+c.kind+", path: "+strconv.Quote(path)+", "+options+"}")
		if err != nil {
			t.Errorf("%s, %s: %v", c.kind, c.options, err)
			continue
		}
		if !c.readOnly && (o.VolatileCache != c.volatile || o.DiscardGranularity > 0 != c.thin) {
			t.Errorf("%s, %s: volatile cache %v, discards in %d bytes", c.kind, c.options, o.VolatileCache, o.DiscardGranularity)
		}
		if o.flags&unix.O_DIRECT != 0 != c.direct || o.flags&unix.O_ACCMODE == unix.O_RDONLY != c.readOnly || o.rings > 0 != c.ring {
			t.Errorf("%s, %s: opened with %#o, %d rings", c.kind, c.options, o.flags, o.rings)
		}
	}
	missing := filepath.Join(dir, "missing.img")
	if _, err := lookAt(t, missing, "{type: file, path: "+strconv.Quote(missing)+", size: 1MiB, create: false}"); err == nil || !strings.Contains(err.Error(), "create is false") {
		t.Errorf("a file that is not there, create: false: %v", err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("it was created")
	}
}

// TestLUNDescription: what the configuration says of a LUN is what initiators are told.
func TestLUNDescription(t *testing.T) {
	text := strings.Replace(one, "0: d,", "0: {store: d, vendor: MAKER, product: THING, serial: S123, block_size: 1024, physical_block_size: 8192},", 1)
	s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := newInitiatorPort(t, s)
	if status, in := p.do([]byte{0x12, 0, 0, 0, 36, 0}, nil); status != scsi.Good || string(in[8:32]) != "MAKER   THING           " {
		t.Errorf("INQUIRY: %v, %q", status, in)
	}
	if status, in := p.do([]byte{0x12, 1, 0x80, 0, 64, 0}, nil); status != scsi.Good || strings.TrimSpace(string(in[4:])) != "S123" {
		t.Errorf("Unit Serial Number: %v, %q", status, in)
	}
	for range 4 { // behind unit attentions
		if status, _ := p.do(make([]byte, 6), nil); status == scsi.Good {
			break
		}
	}
	if status, in := p.do([]byte{0: 0x9e, 1: 0x10, 13: 32, 15: 0}, nil); status != scsi.Good || binary.BigEndian.Uint32(in[8:]) != 1024 || in[13]&15 != 3 {
		t.Errorf("READ CAPACITY: %v, % x", status, in)
	}
	p.nexus.Close(func() {})
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestIWARPOptions: a portal agrees to the encodings and the window of one-shot RDMA that the configuration says, and frames
// have CRCs unless it says otherwise and the initiator asks for none.
func TestIWARPOptions(t *testing.T) {
	const both = ddp.OfferFlags | ddp.OfferOpcodes
	for _, c := range []struct {
		options string
		offer   ddp.OneShotFlags // of encodings, by the initiator
		flags   ddp.OneShotFlags // those that are agreed on
		window  uint32
		crc     bool // in reply to who wants none, nor one-shot RDMA
	}{
		{"", both, ddp.OfferFlags, 256, true},
		{"one_shot: {encodings: [opcodes], window: 7}", both, ddp.OfferOpcodes, 7, true},
		{"one_shot: {encodings: [flags]}", ddp.OfferOpcodes, 0, 0, true},
		{"one_shot: {encodings: []}", both, 0, 0, true},
		{"crc: false", both, ddp.OfferFlags, 256, false},
	} {
		r := serve(t, `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{transport: iwarp, listen: "127.0.0.1:0", `+c.options+`}]
`)
		ask := func(offer ddp.OneShotFlags) ddp.StartFrame {
			nc, err := net.Dial("tcp", r.Addrs()[0].String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = nc.Close() }()
			private := []byte{0x80, 0, 0, 0} // iSER: no ZBVA
			if offer != 0 {
				private = ddp.OneShot{Flags: offer, Window: 1000}.AppendTo(private)
			}
			req := ddp.StartFrame{Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{IRD: 1, ORD: 1}, PrivateData: private}
			if _, err := nc.Write(req.AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, ddp.StartFrameHeader)
			if _, err := io.ReadFull(nc, b); err != nil {
				t.Fatal(err)
			}
			n, err := ddp.StartFrameLen(b, true)
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, make([]byte, n-len(b))...)
			if _, err := io.ReadFull(nc, b[ddp.StartFrameHeader:]); err != nil {
				t.Fatal(err)
			}
			reply, err := ddp.ParseStartFrame(b, true)
			if err != nil {
				t.Fatal(err)
			}
			return reply
		}
		got, _ := ddp.FindOneShot(ask(c.offer | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose).PrivateData)
		if got.Flags&both != c.flags || got.Window != c.window {
			t.Errorf("%q: encodings %#x, window %d", c.options, got.Flags&both, got.Window)
		}
		if crc := ask(0).CRC; crc != c.crc {
			t.Errorf("%q: CRCs: %v", c.options, crc)
		}
	}
}
