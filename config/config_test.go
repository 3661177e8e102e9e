package config

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// compareValues leaves out what a test of values does not care for.
var compareValues = cmp.Options{
	cmpopts.IgnoreTypes(Position{}),
	cmp.Comparer(func(a, b Secret) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func TestDefault(t *testing.T) {
	want := &Config{
		File:       "configs/default.yaml",
		Log:        Log{Level: slog.LevelInfo, Format: LogText},
		Stores:     []Store{{Name: "scratch", Type: StoreMemory, Size: 256 << 20}, {Name: "flash", Type: StoreMemory, Size: 256 << 20}},
		Targets:    []Target{{Name: "iqn.2026-11.example.oneshot:demo", LUNs: []LUN{{Number: 0, Store: "scratch", BlockSize: 512, ALUA: ALUAImplicit}}}},
		Subsystems: []Subsystem{{NQN: "nqn.2026-11.example.oneshot:demo", Namespaces: []Namespace{{NSID: 1, Store: "flash", BlockSize: 512}}}},
		Portals: []Portal{
			{Transport: TransportTCP, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("127.0.0.1:3260")},
			{
				Transport: TransportIWARP, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("127.0.0.1:3261"),
				OneShot: &OneShot{Flags: true, Opcodes: true, Window: 256},
			},
			{Transport: TransportNVMeTCP, Group: 1, Serve: ServeNamespaces, Listen: netip.MustParseAddrPort("127.0.0.1:4420")},
		},
		Limits: DefaultLimits(),
	}
	if diff := cmp.Diff(want, Default(), compareValues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// shape is the configuration that the project promises never to rename.
const shape = `
log: {level: info, format: text}        # logrus; text or json
stores:
  scratch: {type: memory, size: 256MiB}
  disk1:   {type: file, path: disk1.img, size: 10GiB, sparse: true, cache: writeback}   # or writethrough, direct: true
targets:
  - iqn: iqn.2026-11.example.oneshot:demo
    luns: {0: scratch, 1: {store: disk1, readonly: false, block_size: 4096}}
    auth: {chap: {user: u, secret: twelve-chars-or-more}, mutual: {user: t, secret: another-secret}}
    initiators: ["iqn.2026-11.example.clients:*"]   # none named = all
portals:
  - {transport: tcp, listen: 127.0.0.1:3260}
`

func TestParse(t *testing.T) {
	got, err := Parse("/etc/oneshot/target.yaml", []byte(shape))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		File: "/etc/oneshot/target.yaml",
		Log:  Log{Level: slog.LevelInfo, Format: LogText},
		Stores: []Store{
			{Name: "scratch", Type: StoreMemory, Size: 256 << 20},
			{Name: "disk1", Type: StoreFile, Size: 10 << 30, File: &FileStore{Path: "/etc/oneshot/disk1.img", Sparse: true, Create: true, Cache: CacheWriteback, IO: IOAuto}},
		},
		Targets: []Target{{
			Name: "iqn.2026-11.example.oneshot:demo",
			LUNs: []LUN{{Number: 0, Store: "scratch", BlockSize: 512, ALUA: ALUAImplicit}, {Number: 1, Store: "disk1", BlockSize: 4096, ALUA: ALUAImplicit}},
			Auth: Auth{
				CHAP:   &Credentials{User: "u", Secret: NewSecret("twelve-chars-or-more")},
				Mutual: &Credentials{User: "t", Secret: NewSecret("another-secret")},
			},
			Initiators: []Initiator{{Name: "iqn.2026-11.example.clients:*"}},
		}},
		Portals: []Portal{{Transport: TransportTCP, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("127.0.0.1:3260")}},
		Limits:  DefaultLimits(),
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.Store("disk1") != &got.Stores[1] || got.Store("nothing") != nil {
		t.Error("Store does not find stores by name")
	}
	if at := got.Targets[0].LUNs[1].Pos.String(); at != "/etc/oneshot/target.yaml:8:24" {
		t.Errorf("LUN 1 is at %s", at)
	}
}

func TestParseEveryOtherValue(t *testing.T) {
	t.Setenv("ONESHOT_TEST_SECRET", "from-the-environment")
	got, err := Parse("x.yaml", []byte(`
log: {level: error, format: json}
stores:
  a: {type: file, path: /srv//a.img, sparse: false, cache: writethrough, direct: true, io: threads, readonly: true}
  b: {type: device, path: /dev/sdb, aging: 200ms}
  c: {type: device, path: sdc, size: 1GiB, direct: false, cache: writethrough, io: uring}
  d: {type: null, size: 1TiB}
  e: {type: gotgt, plugin: file, path: e.img}
  f: {type: gotgt, plugin: ceph, path: pool/image, size: 1MiB}
targets:
  - iqn: EUI.02004567A425678D
    alias: größte Platte
    luns: {5: {store: a, block_size: 2KiB, physical_block_size: 8KiB, vendor: V, product: P, serial: S}, 1: {store: a, readonly: true}, 10: b, 11: c, 12: d, 13: e, 14: f}
    auth: {chap: {user: 007, secret: {env: ONESHOT_TEST_SECRET}}}
portals:
  - {listen: "*"}
  - {transport: iwarp, listen: "[::1]:4000", one_shot: {encodings: [opcodes], header: validated, window: 7}}
  - {transport: iwarp, listen: "[::1]:4001", one_shot: {encodings: []}, crc: false}
  - {transport: verbs, listen: "[::1]:4001", device: rxe0}
  - {transport: verbs, listen: "[::1]:4002"}
  - {transport: verbs, listen: "[::1]:4003", polling: true}
  - {transport: iwarp, listen: "[::1]:4004", serve: partitions, clients: {db1: "the secret of db1"}, crc: false}
discovery: {auth: {chap: {user: d, secret: 123456789012}}}
limits: {connections: 1, sessions: 2, commands: 3, connections_per_session: 9, memory: 68MiB, memory_per_connection: 2MB, login_timeout: 6s, nop_interval: 0s, nop_timeout: 8m, read_timeout: 9s}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		File: "x.yaml",
		Log:  Log{Level: slog.LevelError, Format: LogJSON},
		Stores: []Store{
			{Name: "a", Type: StoreFile, ReadOnly: true, File: &FileStore{Path: "/srv/a.img", Direct: true, Cache: CacheWritethrough, IO: IOThreads}},
			{Name: "b", Type: StoreDevice, Aging: 200 * time.Millisecond, Device: &DeviceStore{Path: "/dev/sdb", Direct: true, Cache: CacheWriteback, IO: IOAuto}},
			{Name: "c", Type: StoreDevice, Size: 1 << 30, Device: &DeviceStore{Path: "sdc", Cache: CacheWritethrough, IO: IOUring}},
			{Name: "d", Type: StoreNull, Size: 1 << 40},
			{Name: "e", Type: StoreGOTGT, GOTGT: &GOTGTStore{Plugin: "file", Path: "e.img"}},
			{Name: "f", Type: StoreGOTGT, Size: 1 << 20, GOTGT: &GOTGTStore{Plugin: "ceph", Path: "pool/image"}},
		},
		Targets: []Target{{
			Name:  "eui.02004567a425678d",
			Alias: "größte Platte",
			LUNs: []LUN{
				{Number: 1, Store: "a", ReadOnly: true, BlockSize: 512, ALUA: ALUAImplicit},
				{Number: 5, Store: "a", ReadOnly: true, BlockSize: 2048, PhysicalBlockSize: 8192, ALUA: ALUAImplicit, Vendor: "V", Product: "P", Serial: "S"},
				{Number: 10, Store: "b", BlockSize: 512, ALUA: ALUAImplicit},
				{Number: 11, Store: "c", BlockSize: 512, ALUA: ALUAImplicit},
				{Number: 12, Store: "d", BlockSize: 512, ALUA: ALUAImplicit},
				{Number: 13, Store: "e", BlockSize: 512, ALUA: ALUAImplicit},
				{Number: 14, Store: "f", BlockSize: 512, ALUA: ALUAImplicit},
			},
			Auth: Auth{CHAP: &Credentials{User: "007", Secret: NewSecret("from-the-environment")}},
		}},
		Portals: []Portal{
			{Transport: TransportTCP, Serve: ServeLUNs, Group: 1, Listen: netip.AddrPortFrom(netip.Addr{}, 3260)},
			{
				Transport: TransportIWARP, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4000"),
				OneShot: &OneShot{Opcodes: true, Validated: true, Window: 7},
			},
			{Transport: TransportIWARP, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4001"), OneShot: &OneShot{Window: 256}, NoCRC: true},
			{Transport: TransportVerbs, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4001"), Device: "rxe0"},
			{Transport: TransportVerbs, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4002"), Device: AnyDevice},
			{Transport: TransportVerbs, Serve: ServeLUNs, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4003"), Device: AnyDevice},
			{
				Transport: TransportIWARP, Serve: ServePartitions, Listen: netip.MustParseAddrPort("[::1]:4004"), NoCRC: true,
				Clients: []Client{{Name: "db1", Secret: NewSecret("the secret of db1")}},
			},
		},
		Discovery: Discovery{Auth: Auth{CHAP: &Credentials{User: "d", Secret: NewSecret("123456789012")}}},
		Limits: Limits{
			Connections: 1, Sessions: 2, Commands: 3, ConnectionsPerSession: 9, Memory: 68 << 20, MemoryPerConnection: 2e6,
			LoginTimeout: 6 * time.Second, NopInterval: 0, NopTimeout: 8 * time.Minute, ReadTimeout: 9 * time.Second,
		},
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestConfigs loads every example, so that none of them goes stale.
func TestConfigs(t *testing.T) {
	paths, err := filepath.Glob("../configs/*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("found %v: %v", paths, err)
	}
	for _, path := range paths {
		c, err := Load(path)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		for _, w := range c.Warnings {
			if !strings.Contains(w.Message, "chmod") { // git keeps no modes
				t.Errorf("warning in an example: %s", w)
			}
		}
	}
}

// The limits in the teaching example are the defaults. (internal/doctest compares its keys with the reference.)
func TestFullShowsDefaultLimits(t *testing.T) {
	const path = "../configs/full.yaml"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(path, data)
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits != DefaultLimits() {
		t.Errorf("limits are %+v, not the defaults", c.Limits)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		return path
	}

	t.Run("secret in a private file", func(t *testing.T) {
		c, err := Load(write("private.yaml", shape, 0o640))
		if err != nil || len(c.Warnings) != 0 {
			t.Fatalf("error %v, warnings %v", err, c.Warnings)
		}
		if want := filepath.Join(dir, "disk1.img"); c.Stores[1].File.Path != want {
			t.Errorf("path is %s, want %s", c.Stores[1].File.Path, want)
		}
	})
	t.Run("secret in a file for all", func(t *testing.T) {
		c, err := Load(write("open.yaml", shape, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Message, "every user of this machine can read this secret") {
			t.Errorf("warnings are %v", c.Warnings)
		}
	})
	t.Run("secret from a file", func(t *testing.T) {
		write("chap.secret", "secret-from-a-file\n", 0o600)
		c, err := Load(write("a.yaml", strings.Replace(shape, "twelve-chars-or-more", "{file: chap.secret}", 1), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.Targets[0].Auth.CHAP.Secret.Bytes()); got != "secret-from-a-file" {
			t.Errorf("secret is %q", got)
		}
	})
	t.Run("secret in too large a file", func(t *testing.T) {
		write("large.secret", strings.Repeat("x", 4096), 0o600)
		_, err := Load(write("b.yaml", strings.Replace(shape, "twelve-chars-or-more", "{file: large.secret}", 1), 0o600))
		if err == nil || !strings.Contains(err.Error(), "larger than 257 bytes") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		_, err := Load(filepath.Join(dir, "missing.yaml"))
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("directory", func(t *testing.T) {
		_, err := Load(dir)
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		_, err := Load(write("large.yaml", strings.Repeat("#\n", maxFileBytes), 0o600))
		if err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("all problems in an Error", func(t *testing.T) {
		_, err := Load(write("bad.yaml", "log: {level: x}\nlimits: {sessions: x}\n", 0o600))
		bad, ok := errors.AsType[*Error](err)
		if !ok || len(bad.Problems) != 3 || bad.Problems[2].Pos.Line != 2 {
			t.Errorf("error is %v", err)
		}
	})
}

func TestByteOrderMarkAndCRLF(t *testing.T) {
	text := "\uFEFF" + strings.ReplaceAll(shape, "\n", "\r\n")
	if _, err := Parse("windows.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
	_, err := Parse("windows.yaml", []byte("log: {level: info}\r\nlogs: {}\r\ntargets: []\r\n"))
	if err == nil || !strings.HasPrefix(err.Error(), "windows.yaml:2:1: unknown key \"logs\"") || strings.Contains(err.Error(), "\r") {
		t.Errorf("error is %q", err)
	}
}

func TestRules(t *testing.T) {
	got, err := Parse("x.yaml", []byte(`
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 1MiB}}
targets:
  - iqn: iqn.2026-11.example:t
    luns: {3: a, 7: b}
    portal_groups: [2, 65535]
    initiators:
      - name: iqn.2026-11.example:one
        auth: {chap: {user: one, secret: secret-of-one-}}
        luns: {0: 7, 1: 3}
      - {name: "iqn.2026-11.example:*", luns: {}}
      - iqn.2026-11.example.other:x
  - {iqn: iqn.2026-11.example:gone, redirect: 192.0.2.1}
  - {iqn: iqn.2026-11.example:away, redirect: {address: "node2:99", permanent: true}}
portals: [{listen: 127.0.0.1:1, group: 2}, {listen: 127.0.0.1:2, group: 65535}]
isns: {server: "[2001:db8::1]", entity: me}
`))
	if err != nil {
		t.Fatal(err)
	}
	one := Initiator{
		Name: "iqn.2026-11.example:one", Auth: &Auth{CHAP: &Credentials{User: "one", Secret: NewSecret("secret-of-one-")}},
		LUNs: []ShownLUN{{0, 7}, {1, 3}},
	}
	target := &got.Targets[0]
	for name, want := range map[string]*Initiator{
		"iqn.2026-11.example:one":     &one,
		"iqn.2026-11.example:two":     {Name: "iqn.2026-11.example:*", LUNs: []ShownLUN{}},
		"iqn.2026-11.example.other:x": {Name: "iqn.2026-11.example.other:x"},
		"iqn.2026-11.example.other:y": nil,
	} {
		if d := cmp.Diff(want, target.Rule(name), compareValues); d != "" || target.Admits(name) != (want != nil) {
			t.Errorf("%s: %s", name, d)
		}
	}
	if d := cmp.Diff([]uint16{2, 65535}, target.Groups); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]*Redirect{nil, {Address: "192.0.2.1:3260"}, {Address: "node2:99", Permanent: true}},
		[]*Redirect{target.Redirect, got.Targets[1].Redirect, got.Targets[2].Redirect}); d != "" {
		t.Error(d)
	}
	if got.ISNS.Server != "[2001:db8::1]:3205" || got.ISNS.Entity != "me" {
		t.Errorf("iSNS %+v", got.ISNS)
	}
	if got.Portals[0].Group != 2 || got.Portals[1].Group != 65535 {
		t.Errorf("groups %d, %d", got.Portals[0].Group, got.Portals[1].Group)
	}
}

// limits.sessions is at most the number of TSIHs.
func TestSessionsHaveNumbers(t *testing.T) {
	const served = "stores: {d: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example:t, luns: {0: d}}]\nportals: [{listen: 127.0.0.1}]\n"
	for n, want := range map[string]bool{"65535": true, "65536": false} {
		_, err := Parse("x.yaml", []byte(served+"limits: {sessions: "+n+"}\n"))
		if (err == nil) != want || !want && !strings.Contains(err.Error(), "65535") {
			t.Errorf("%s sessions: %v", n, err)
		}
	}
}

// Aliases can make a small file stand for a large configuration. Reading it is bounded.
func TestAliasesEnd(t *testing.T) {
	text := "stores: {a: {type: memory, size: 1MiB}}\ntargets:\n  - iqn: iqn.2026-11.example:t\n    luns: {0: a}\n    initiators: [&i {name: \"iqn.x:*\", luns: {0: 0}}" +
		strings.Repeat(",*i", 200_000) + "]\n"
	_, err := Parse("x.yaml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), "aliases make this configuration endless") {
		t.Errorf("%.200v", err)
	}
}

// Load warns of a file with a secret that others may read. A file that cannot be read is an error.
func TestLoadWarnsOfSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "open.yaml")
	if err := os.WriteFile(path, []byte(shape), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Message, "every user of this machine can read this secret: chmod o-r the file") || c.Warnings[0].Pos.Line != 9 {
		t.Errorf("warnings %v", c.Warnings)
	}
	if _, err := Load(path + ".missing"); err == nil || !strings.HasPrefix(err.Error(), "cannot read the configuration: stat ") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Portals of NVMe over RDMA have the port of NVMe, and the keys of those of iSER over the kernel's devices.
func TestNVMeRDMAPortals(t *testing.T) {
	const head = `
stores: {d: {type: memory, size: 1MiB}}
subsystems: [{nqn: "nqn.2026-11.example.oneshot:d", namespaces: {1: d}}]
limits: {memory: 10MiB}
portals:
`
	c, err := Parse("x.yaml", []byte(head+`
  - {transport: nvme-tcp, listen: "[::1]"}
  - {transport: nvme-rdma, listen: "[::1]", group: 2}
  - {transport: nvme-rdma, listen: "[::1]:4421", polling: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Portal{
		{Transport: TransportNVMeTCP, Serve: ServeNamespaces, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4420")},
		{Transport: TransportNVMeRDMA, Serve: ServeNamespaces, Group: 2, Listen: netip.MustParseAddrPort("[::1]:4420"), Device: AnyDevice},
		{Transport: TransportNVMeRDMA, Serve: ServeNamespaces, Group: 1, Listen: netip.MustParseAddrPort("[::1]:4421"), Device: AnyDevice},
	}
	if diff := cmp.Diff(want, c.Portals, compareValues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for text, want := range map[string]string{
		`[{transport: nvme-rdma, listen: "[::1]:1"}, {transport: verbs, listen: "[::1]:1"}]`:                                 "already listens",
		`[{transport: nvme-rdma, listen: "[::1]:1", polling: false}, {transport: verbs, listen: "[::1]:2"}]`:                 "another value of polling",
		`[{transport: nvme-rdma, listen: "[::1]:1", serve: partitions}]`:                                                     "partitions are served over RDMA",
		`[{transport: nvme-rdma, listen: "[::1]:1", device: rxe0}, {transport: nvme-rdma, listen: "[::1]:2", device: rxe1}]`: "10MiB for messages",
	} {
		if _, err := Parse("x.yaml", []byte(strings.TrimSuffix(head, "\n")+" "+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// A portal for programs of this machine is a socket, relative to the file as other paths are.
func TestLocalPortal(t *testing.T) {
	c, err := Parse("/etc/x.yaml", []byte(`
stores: {a: {type: memory, size: 2MiB, partitioned: true, partitions: {log: {size: 1MiB}}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {}}]
portals:
  - {transport: local}
  - {transport: local, listen: rdma.sock, serve: partitions}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Portal{
		{Transport: TransportLocal, Serve: ServePartitions, Socket: DefaultPartitionSocket},
		{Transport: TransportLocal, Serve: ServePartitions, Socket: "/etc/rdma.sock"},
	}
	if diff := cmp.Diff(want, c.Portals, compareValues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p := c.Portals[1]; p.Shown() != "/etc/rdma.sock" || p.Address() != "/etc/rdma.sock" || p.Overlaps(c.Portals[0]) || !p.Overlaps(p) {
		t.Errorf("%s, %s", p.Shown(), p.Address())
	}
}
