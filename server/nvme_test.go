package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"oneshot/mgmt"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

const nqn = "nqn.2026-11.example.oneshot:"

// namespaces lists the active namespaces of a controller.
func namespaces(h *nvmetest.Host) string {
	_, b := h.Must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSActiveNamespaces)}}, nil, nvme.IdentifyLen)
	var list []uint32
	for ; binary.LittleEndian.Uint32(b) != 0; b = b[4:] {
		list = append(list, binary.LittleEndian.Uint32(b))
	}
	return fmt.Sprint(list)
}

// blocks is the size of a namespace.
func blocks(h *nvmetest.Host, nsid uint32) uint64 {
	_, b := h.Must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid}, nil, nvme.IdentifyLen)
	return binary.LittleEndian.Uint64(b)
}

// Namespaces and subsystems come, go and grow while a host is connected, which is told, and whose I/O goes on. What it may not have any
// more it loses.
func TestSubsystems(t *testing.T) {
	const config = `
stores: {a: {type: file, path: a.img, size: 1MiB}, b: {type: memory, size: 1MiB}}
targets: [{iqn: "` + iqn + `t", luns: {0: {store: a, readonly: true}}}]
subsystems:
  - {nqn: "` + nqn + `one", namespaces: {1: a}}
portals: [{transport: tcp, listen: "127.0.0.1:0"}, {transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	r := serve(t, config)
	addr := r.Addrs()[1].String()
	admin := nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	io := admin.Queue(1, 0)
	want := strings.Repeat("NVMe", 128)
	io.Must(nvmetest.RW(nvme.Write, 3, 1), []byte(want), 0)
	admin.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESNamespace}}, nil, 0)

	// told waits for the event that namespaces have changed, and returns the log of them.
	told := func(change string) string {
		t.Helper()
		cid := admin.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
		done := r.apply(change)
		if e, _ := admin.Finish(cid, nil, 0); e.DW0 != nvme.EventNamespaces {
			t.Errorf("event %#x", e.DW0)
		}
		_, b := admin.Must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogChanged) | 3<<16}}, nil, 16)
		return fmt.Sprintln(done.Done, binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]))
	}
	two := strings.Replace(config, "{1: a}", "{1: a, 5: {store: b, block_size: 4096}}", 1)
	if got, want := told(two), "[namespace 5 of "+nqn+"one added] 5 0\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := namespaces(admin); got != "[1 5]" || blocks(admin, 5) != 256 {
		t.Errorf("namespaces %s, %d blocks", got, blocks(admin, 5))
	}
	larger := strings.Replace(two, "a.img, size: 1MiB}", "a.img, size: 2MiB}", 1)
	if got := told(larger); !strings.HasSuffix(got, "] 1 0\n") || blocks(admin, 1) != 4096 {
		t.Errorf("%s, %d blocks", got, blocks(admin, 1))
	}
	c := nvmetest.RW(nvme.Read, 0, 1)
	c.NSID = 5
	io.Must(c, nil, 4096)
	if got := told(strings.Replace(larger, ", 5: {store: b, block_size: 4096}", "", 1)); !strings.HasSuffix(got, "removed] 5 0\n") {
		t.Error(got)
	}
	if e, _ := io.Do(c, nil, 4096); e.Status != nvme.InvalidNamespace|nvme.DNR {
		t.Errorf("a namespace that is gone: %v", e.Status)
	}
	if _, got := io.Must(nvmetest.RW(nvme.Read, 3, 1), nil, 512); string(got) != want {
		t.Error("other bytes are there after the changes")
	}

	// A host that is not admitted any more, or whose subsystem is gone, is cut off; nobody else is.
	now := strings.Replace(config, "a.img, size: 1MiB}", "a.img, size: 2MiB}", 1)
	r.apply(strings.Replace(now, "{1: a}}", "{1: a}, hosts: [\"nqn.2026-11.example:other\"]}", 1))
	io.Ended()
	admin.Ended()
	r.apply(strings.Replace(now, "{1: a}}", "{1: a}, hosts: [\"nqn.2026-11.com.*\"]}", 1))
	admin = nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	r.apply(strings.Replace(now, ":one", ":two", 1))
	admin.Ended()
	nvmetest.Admin(t, addr, pdu.IC{}, nqn+"two")
}

// The names of a namespace stay what they are over versions, for hosts know their disks by them.
func TestNamespaceNames(t *testing.T) {
	c := (&running{t: t, dir: t.TempDir()}).parse(`
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
`)
	s := &c.Subsystems[0]
	uuid, nguid := namesOf(s.NQN, &s.Namespaces[0])
	if got, want := fmt.Sprintf("%x %x %s", uuid, nguid, serialOf(s)), "4eea1c4ba6ac8afaa45a9690226ad41e 46cd0437ac73d667b2267c9b66036018 7b024fd7e9622bbfc800"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The names of a namespace are those that it will have after a restart, also when a reload gives its store another name, and the name to
// another store: two disks never have one name.
func TestNamesOfRenamed(t *testing.T) {
	const config = `
stores: {a: {type: file, path: a.img, size: 1MiB}, b: {type: file, path: b.img, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a, 2: b}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	r := serve(t, config)
	admin := nvmetest.Admin(t, r.Addrs()[0].String(), pdu.IC{}, nqn+"one")
	for _, stores := range []string{
		"{a: {type: file, path: a.img, size: 1MiB}, b: {type: file, path: b.img, size: 1MiB}}",
		"{c: {type: file, path: a.img, size: 1MiB}, b: {type: file, path: b.img, size: 1MiB}}",
		"{c: {type: file, path: a.img, size: 1MiB}, a: {type: file, path: new.img, size: 1MiB}}",
		"{a: {type: file, path: a.img, size: 1MiB}, c: {type: file, path: new.img, size: 1MiB}}",
	} {
		text := strings.Replace(config, "{a: {type: file, path: a.img, size: 1MiB}, b: {type: file, path: b.img, size: 1MiB}}", stores, 1)
		names := [2]string{stores[1:2], stores[strings.Index(stores, "}, ")+3:][:1]}
		text = strings.Replace(text, "1: a, 2: b", "1: "+names[0]+", 2: "+names[1], 1)
		r.apply(text)
		for i, n := range r.parse(text).Subsystems[0].Namespaces {
			_, b := admin.Must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: uint32(i + 1), DWords: [6]uint32{uint32(nvme.CNSDescriptors)}}, nil, nvme.IdentifyLen)
			uuid, nguid := namesOf(nqn+"one", &n)
			if got := nvme.ParseDescriptors(b); got.UUID != uuid || got.NGUID != nguid {
				t.Errorf("%s: namespace %d is %x, and will be %x", stores, i+1, got.UUID, uuid)
			}
		}
	}
}

// The status, the list of sessions and the metrics know subsystems, hosts and what these do, and the administrator ends a controller.
func TestNVMeStatus(t *testing.T) {
	r := serve(t, `
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "`+nqn+`one", serial: "S7", namespaces: {3: {store: a, block_size: 4096}}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
metrics: {listen: "127.0.0.1:0"}
management: {socket: s}
`)
	addr := r.Addrs()[0].String()
	admin := nvmetest.Admin(t, addr, pdu.IC{HeaderDigest: true}, nqn+"one")
	queue := admin.Queue(1, 0)
	c := nvmetest.RW(nvme.Write, 0, 2)
	c.NSID = 3
	queue.Must(c, make([]byte, 8192), 0)
	nvmetest.Admin(t, addr, pdu.IC{}, nvme.DiscoveryNQN)
	client := mgmt.NewClient(filepath.Join(r.dir, "s"))
	defer client.Close()
	status, err := client.Status(t.Context())
	for err == nil && status.NVMe.Subsystems[0].Namespaces[0].IO.InFlight != 0 { // the answer has left, and is counted next
		status, err = client.Status(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	sub := status.NVMe.Subsystems[0]
	n := sub.Namespaces[0]
	if sub.NQN != nqn+"one" || sub.Serial != "S7" || sub.Controllers != 1 || status.NVMe.Connected != 2 || status.NVMe.Counters.Connects != 2 {
		t.Errorf("%+v", status.NVMe)
	}
	if n.NSID != 3 || n.Store != "a" || n.StoreType != "memory" || n.Bytes != 1<<20 || n.BlockSize != 4096 || len(n.UUID) != 36 || n.IO.Write.Bytes != 8192 || n.IO.Write.Commands() != 1 {
		t.Errorf("%+v", n)
	}
	list, err := client.Sessions(t.Context())
	if err != nil || len(list.Controllers) != 2 || len(list.Sessions) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	x := list.Controllers[0]
	if x.Host != nvmetest.HostNQN || !strings.HasPrefix(x.HostID, "01020300-0000-") || x.Subsystem != nqn+"one" || x.CNTLID != admin.ID || x.IO.Write.Bytes != 8192 || list.Controllers[1].Subsystem != "" {
		t.Errorf("%+v", list.Controllers)
	}
	if q := x.Queues; len(q) != 2 || q[1].QID != 1 || q[1].Entries != 128 || !q[1].HeaderDigest || q[1].DataDigest || q[1].Local != addr || q[1].Transport != "nvme-tcp" || q[1].Peer != queue.C.LocalAddr().String() {
		t.Errorf("%+v", q)
	}
	resp, err := http.Get("http://" + r.metrics.l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if want := `oneshot_namespace_bytes_total{nsid="3",op="write",subsystem="` + nqn + `one"} 8192`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the metrics do not have %s: %v", want, err)
	}
	if err := client.DropController(t.Context(), x.ID); err != nil {
		t.Error(err)
	}
	queue.Ended()
	admin.Ended()
	if err := client.DropController(t.Context(), 77); err == nil {
		t.Error("a controller that is not there was ended")
	}
}

// A reload changes what hosts have to prove: those that are there stay.
func TestAuthReload(t *testing.T) {
	const key = `"DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"`
	open := `
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	r := serve(t, open)
	addr := r.Addrs()[0].String()
	connect := func() uint32 {
		h := nvmetest.Dial(t, addr, pdu.IC{})
		cqe, _ := h.Must(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(nqn+"one", nvme.DynamicController), 0)
		return cqe.DW0 >> 16
	}
	admin := nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	for _, x := range []struct {
		add  string
		want uint32
	}{
		{"", 0},
		{", auth: {dhchap_secret: " + key + "}", nvme.ConnectATR >> 16},
		{`, hosts: [{nqn: "nqn.*", auth: {dhchap_secret: ` + key + `}}]`, nvme.ConnectATR >> 16},
		{`, hosts: [{nqn: "nqn.2026-11.other:*", auth: {dhchap_secret: ` + key + `}}, "nqn.*"]`, 0},
	} {
		if x.add != "" {
			r.apply(strings.Replace(open, "{1: a}}", "{1: a}"+x.add+"}", 1))
		}
		if got := connect(); got != x.want {
			t.Errorf("%s: Connect says %#x", x.add, got)
		}
	}
	admin.Must(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil, 0)
}

// discovered reads the discovery log.
func discovered(h *nvmetest.Host) (generation uint64, list []nvme.Discovered) {
	const pages = 5
	c := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogDiscovery) | (pages*nvme.DiscoveryEntryLen/4-1)<<16}}
	_, b := h.Must(c, nil, pages*nvme.DiscoveryEntryLen)
	generation, n := nvme.ParseDiscoveryHeader(b)
	for i := range n {
		list = append(list, nvme.ParseDiscovered(b[(i+1)*nvme.DiscoveryEntryLen:][:nvme.DiscoveryEntryLen]))
	}
	return generation, list
}

// A portal is told of by the address that it advertises.
func TestAdvertisedToHosts(t *testing.T) {
	r := serve(t, `
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "`+nqn+`one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0", advertise: "192.0.2.9:4421"}]
`)
	_, list := discovered(nvmetest.Admin(t, r.Addrs()[0].String(), pdu.IC{}, nvme.DiscoveryNQN))
	want := []nvme.Discovered{
		{Type: nvme.EntryCurrent, Transport: nvme.TransportTCP, Address: "192.0.2.9", Service: "4421", SubNQN: nvme.DiscoveryNQN},
		{Type: nvme.EntryNVM, Transport: nvme.TransportTCP, Address: "192.0.2.9", Service: "4421", SubNQN: nqn + "one"},
	}
	if !slices.Equal(list, want) {
		t.Errorf("%+v", list)
	}
}

// Hosts are told of discovery services elsewhere, and that there are others after a reload.
func TestReferrals(t *testing.T) {
	with := func(list string) string {
		return `
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
discovery: {referrals: [` + list + `]}
`
	}
	r := serve(t, with(`192.0.2.7, "[2001:db8::7]:4420"`))
	h := nvmetest.Admin(t, r.Addrs()[0].String(), pdu.IC{}, nvme.DiscoveryNQN)
	generation, list := discovered(h)
	want := []nvme.Discovered{
		{Type: nvme.EntryReferral, Transport: nvme.TransportTCP, Address: "192.0.2.7", Service: "8009", SubNQN: nvme.DiscoveryNQN},
		{Type: nvme.EntryReferral, Transport: nvme.TransportTCP, Address: "2001:db8::7", Service: "4420", SubNQN: nvme.DiscoveryNQN},
	}
	if len(list) != 4 || !slices.Equal(list[2:], want) {
		t.Errorf("%+v", list)
	}
	h.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), 1 << 31}}, nil, 0)
	aer := h.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
	r.apply(with("192.0.2.7"))
	if e, _ := h.Finish(aer, nil, 0); e.DW0 != nvme.EventDiscovery {
		t.Errorf("the event: %#x", e.DW0)
	}
	if again, list := discovered(h); again == generation || len(list) != 3 || list[2] != want[0] {
		t.Errorf("after the reload: %+v", list)
	}
}

// atMessage calls do once, for the first record with that message, while its logger waits.
type atMessage struct {
	slog.Handler
	message string
	do      func()
	once    *sync.Once
}

func (h atMessage) Enabled(context.Context, slog.Level) bool { return true }
func (h atMessage) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h atMessage) WithGroup(string) slog.Handler            { return h }
func (h atMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.once.Do(h.do)
	}
	return nil
}

// A reload that makes a subsystem anew has one of its name at any moment: a host that connects meanwhile is not told to stay away for good.
func TestConnectWhileSubsystemIsMadeAnew(t *testing.T) {
	const config = `
stores: {a: {type: memory, size: 1MiB}}
subsystems: [{nqn: "` + nqn + `one", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	var addr string
	got := make(chan nvme.Status, 1)
	connect := func() {
		h := nvmetest.Dial(t, addr, pdu.IC{})
		f := nvme.ConnectFields{HostID: [16]byte{9}, CNTLID: nvme.DynamicController, SubNQN: nqn + "one", HostNQN: nvmetest.HostNQN}
		e, _ := h.Do(nvmetest.ConnectCommand(0, 31, 0, 0), f.AppendTo(nil), 0)
		got <- e.Status
	}
	r := serveWith(t, config, slog.New(atMessage{message: "controller ends", do: connect, once: new(sync.Once)}))
	addr = r.Addrs()[0].String()
	admin := nvmetest.Admin(t, addr, pdu.IC{}, nqn+"one")
	r.apply(strings.Replace(config, "namespaces:", "cntlids: 100-199, namespaces:", 1))
	if s := <-got; s != nvme.Success {
		t.Errorf("a host that connects during the reload: %v", s)
	}
	admin.Ended()
}
