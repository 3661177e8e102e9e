package vm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"oneshot/mgmt"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/test/targettest"
	"oneshot/transport/nvmetcp/nvmetest"
)

const (
	nqn     = "nqn.2026-11.example.oneshot:vm"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2"
	hostID  = "8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2"
)

// nvmeHost is Linux's host of NVMe over Fabrics, as far as one subsystem is concerned.
type nvmeHost struct {
	t    *testing.T
	addr []string // what names the portal and the host
	ctrl string   // nvme0
}

func newNVMeHost(t *testing.T, portal string) *nvmeHost {
	t.Helper()
	return nvmeHostOver(t, "tcp", guestAddr(t, portal))
}

// nvmeHostOver is newNVMeHost for a transport and an address as nvme-cli has them.
func nvmeHostOver(t *testing.T, transport, address string) *nvmeHost {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.start(t, "nvme", "disconnect-all").wait(t, guest) })
	return &nvmeHost{t: t, addr: []string{"-t", transport, "-a", host, "-s", port, "--hostnqn=" + hostNQN, "--hostid=" + hostID}}
}

// run is nvme-cli with a command. siw forgets the first message of a connection now and then (see docs/rdma.md): there the host does
// as hosts do, and comes again when it has waited for a minute.
func (h *nvmeHost) run(command string, args ...string) string {
	h.t.Helper()
	nvme := append([]string{"nvme", command}, args...)
	if slices.Contains(h.addr, rdmaDevices[1].host) {
		before := strings.Count(guest.run(h.t, "dmesg"), connectTimedOut)
		out, exit := guest.start(h.t, nvme...).wait(h.t, guest)
		if exit == 0 {
			return out
		}
		if strings.Count(guest.run(h.t, "dmesg"), connectTimedOut) == before {
			h.t.Fatalf("nvme %s: exit %d\n%s\n%s", command, exit, out, guest.Log())
		}
		h.t.Log("siw forgot the first message of a connection")
	}
	return guest.run(h.t, nvme...)
}

// connectTimedOut is what Linux says when the command Connect was not answered for a minute.
const connectTimedOut = "Connect command failed, error wo/DNR bit: 881"

// attach connects to the subsystem.
func (h *nvmeHost) attach(args ...string) {
	h.t.Helper()
	var made struct{ Device string }
	out := h.run("connect", append(append([]string{"-n", nqn, "-o", "json"}, h.addr...), args...)...)
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Device == "" {
		h.t.Fatalf("nvme connect says %q (%v)", out, err)
	}
	h.ctrl = made.Device
}

// connect connects to the subsystem, and returns its first namespace: nvme0n1.
func (h *nvmeHost) connect(args ...string) string {
	h.t.Helper()
	h.attach(args...)
	disk := h.ctrl + "n1"
	if !await(func() bool {
		_, exit := guest.start(h.t, "@cat", "/sys/block/"+disk+"/size").wait(h.t, guest)
		return exit == 0
	}) {
		h.t.Fatalf("there is no %s\n%s", disk, guest.run(h.t, "dmesg"))
	}
	return disk
}

func (h *nvmeHost) disconnect() {
	h.t.Helper()
	if out := h.run("disconnect", "-n", nqn); !strings.Contains(out, "disconnected 1 controller") {
		h.t.Errorf("nvme disconnect says %q", out)
	}
}

// TestNVMe does over NVMe/TCP what users of disks do, with Linux's host and nvme-cli: they find the subsystem, connect, and use a file
// system; every byte that fio writes is there.
func TestNVMe(t *testing.T) {
	for _, c := range []struct {
		name, store, blockSize string
		args                   []string
	}{
		{"digests", "{type: file, path: $DIR/disk.img, size: 1GiB}", "512", []string{"-g", "-G", "-i", "2"}},
		{"plain", "{type: memory, size: 256MiB}", "4096", []string{"-i", "1", "-Q", "128"}},
		{"without flow control", "{type: memory, size: 256MiB}", "512", []string{"-d", "-i", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := targettest.Start(t, `
stores: {d: `+c.store+`, small: {type: memory, size: 16MiB}}
subsystems:
  - {nqn: "`+nqn+`", namespaces: {1: {store: d, block_size: `+c.blockSize+`}}, hosts: ["`+hostNQN+`"]}
  - {nqn: "`+nqn+`-others", namespaces: {1: small}, hosts: ["nqn.2026-11.example.others:*"]}
portals: [{transport: nvme-tcp, listen: $PORTAL}, {transport: nvme-tcp, listen: $PORTAL2}]
`)
			h := newNVMeHost(t, tg.Portals[0])
			found := newNVMeHost(t, tg.Portals[1]) // a portal for discovery is like any other
			out := h.run("discover", found.addr...)
			if strings.Count(out, "subnqn:  "+nqn+"\n") != 2 || strings.Contains(out, "-others") || !strings.Contains(out, "Records 4") {
				t.Errorf("discovery says %s", out)
			}
			disk := h.connect(c.args...)
			dev := "/dev/" + disk
			expect(t, "block size", sys(t, disk, "queue/logical_block_size"), c.blockSize)
			expect(t, "cache", sys(t, disk, "queue/write_cache"), "write back")
			expect(t, "read-only", sys(t, disk, "ro"), "0")
			expect(t, "state", strings.TrimSpace(guest.run(t, "@cat", "/sys/class/nvme/"+h.ctrl+"/state")), "live")

			var space func() int64
			if strings.Contains(c.store, "disk.img") {
				space = func() int64 { return allocated(t, tg.Dir+"/disk.img") }
			}
			fileSystem(t, "ext4", dev, 100, 8<<20, space)
			verifyWithFio(t, dev, c.blockSize)
			if space != nil {
				h.copies(dev, tg.Dir+"/disk.img")
				h.sanitizes(tg.Dir + "/disk.img")
			}
			h.disconnect()
		})
	}
}

// copies has nvme-cli copy two ranges of 512-byte blocks, and looks for them in the file behind the disk.
func (h *nvmeHost) copies(dev, file string) {
	h.t.Helper()
	const to, block = 300_000, 512
	h.run("copy", dev, "-s", "8,2000", "-b", "63,0", "-d", strconv.Itoa(to)) // 64 blocks and 1
	want := append(h.fileAt(file, 8*block, 64*block), h.fileAt(file, 2000*block, block)...)
	if got := h.fileAt(file, to*block, len(want)); !bytes.Equal(got, want) || bytes.Equal(got, make([]byte, len(got))) {
		h.t.Error("nvme copy has copied other bytes")
	}
}

func (h *nvmeHost) fileAt(file string, off int64, n int) []byte {
	h.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		h.t.Fatal(err)
	}
	return b
}

// sanitizes has nvme-cli destroy what the subsystem holds, and looks at the file behind its disk.
func (h *nvmeHost) sanitizes(file string) {
	h.t.Helper()
	h.run("sanitize", "/dev/"+h.ctrl, "-a", "2")
	done := regexp.MustCompile(`\(SSTAT\) *: *0x1\b`)
	if !await(func() bool { return done.MatchString(h.run("sanitize-log", "/dev/"+h.ctrl)) }) {
		h.t.Errorf("nvme sanitize-log says %s", h.run("sanitize-log", "/dev/"+h.ctrl))
	}
	if b := h.fileAt(file, 0, 40<<20); !bytes.Equal(b, make([]byte, len(b))) {
		h.t.Error("bytes are left after nvme sanitize")
	}
}

// verifyWithFio has fio write up to 1 MiB at a time, with 128 commands outstanding, and compare what it reads.
func verifyWithFio(t *testing.T, dev, blockSize string) {
	t.Helper()
	out := guest.run(t, "fio", "--output-format=json", "--filename="+dev, "--direct=1", "--ioengine=libaio",
		"--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--iodepth=128", "--stonewall",
		"--name=sizes", "--bsrange="+blockSize+"-1M", "--size=16M",
		"--name=pages", "--bs=4k", "--size=2M")
	var r struct {
		Jobs []struct {
			Name        string `json:"jobname"`
			Error       int
			Read, Write struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for i, want := range []int64{16 << 20, 2 << 20} {
		if len(r.Jobs) != 2 {
			t.Fatalf("fio did %d jobs", len(r.Jobs))
		}
		if j := r.Jobs[i]; j.Error != 0 || j.Write.Bytes < want || j.Read.Bytes != j.Write.Bytes {
			t.Errorf("%s: error %d, %d bytes written and %d compared", j.Name, j.Error, j.Write.Bytes, j.Read.Bytes)
		}
	}
}

// TestNVMeUnderLoad: while fio writes and verifies, the host resets its controller, and the daemon is killed and started
// again. fio sees no error.
func TestNVMeUnderLoad(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
subsystems: [{nqn: "`+nqn+`", namespaces: {1: d}}]
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
	newNVMeHost(t, tg.Portals[0]).underLoad(func() { kill(tg) })
}

// underLoad does what TestNVMeUnderLoad says.
func (h *nvmeHost) underLoad(kill func()) {
	h.t.Helper()
	disk := h.connect("-i", "2", "-c", "1")
	end := verify(h.t, "/dev/"+disk, "--iodepth=32", "--bsrange=4k-128k", "--thinktime=0")
	path := fmt.Sprintf("/sys/block/%sc%sn1/stat", h.ctrl, strings.TrimPrefix(h.ctrl, "nvme")) // of all paths the kernel counts nothing
	done := func() (n int) {
		fields := strings.Fields(guest.run(h.t, "@cat", path))
		for _, i := range []int{0, 4} { // reads and writes
			k, err := strconv.Atoi(fields[i])
			if err != nil {
				h.t.Fatal(err)
			}
			n += k
		}
		return n
	}
	goesOn := func(after string) {
		h.t.Helper()
		before := done()
		if !await(func() bool { return done() >= before+200 }) {
			h.t.Fatalf("no I/O after %s\n%s", after, guest.run(h.t, "dmesg"))
		}
	}
	goesOn("the start")
	h.run("reset", "/dev/"+h.ctrl)
	goesOn("a reset")
	kill()
	goesOn("the daemon was killed")
	end()
	h.disconnect()
}

// twoPaths is a subsystem with a portal in each of two groups, and Linux's native multipath over both.
type twoPaths struct {
	t      *testing.T
	tg     *targettest.Target
	c      *mgmt.Client
	states [3]string // files with the state of the path through each group, 1 and 2
	disk   string
}

func startTwoPaths(t *testing.T) *twoPaths {
	p := &twoPaths{t: t, tg: targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
state: $DIR/state
subsystems: [{nqn: "`+nqn+`", namespaces: {1: d}}]
portals: [{transport: nvme-tcp, listen: $PORTAL}, {transport: nvme-tcp, listen: $PORTAL2, group: 2}]
management: {socket: $DIR/socket}
`)}
	p.c = mgmt.NewClient(p.tg.Dir + "/socket")
	t.Cleanup(p.c.Close)
	first, second := newNVMeHost(t, p.tg.Portals[0]), newNVMeHost(t, p.tg.Portals[1])
	p.disk = first.connect("-i", "1")
	second.attach("-i", "1")
	for group, h := range map[int]*nvmeHost{1: first, 2: second} {
		p.states[group] = fmt.Sprintf("/sys/block/%sc%sn1/ana_state", first.ctrl, strings.TrimPrefix(h.ctrl, "nvme"))
		p.has(group, "optimized")
	}
	return p
}

// has waits until the host knows the state of the path through a group.
func (p *twoPaths) has(group int, state string) {
	p.t.Helper()
	var got string
	if !await(func() bool {
		got, _ = guest.start(p.t, "@cat", p.states[group]).wait(p.t, guest)
		return strings.TrimSpace(got) == state
	}) {
		p.t.Fatalf("%s says %q, want %s\n%s", p.states[group], got, state, guest.run(p.t, "dmesg"))
	}
}

// set has the administrator set the access state of a group, and waits until the host knows.
func (p *twoPaths) set(group int, state, ana string) {
	p.t.Helper()
	cmd := exec.Command(targettest.Binary(p.t), "access", "set", nqn, strconv.Itoa(group), state, "--nsid", "1", "--socket", p.tg.Dir+"/socket")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	p.has(group, ana)
}

// transfers counts Reads and Writes that came through each group, 1 and 2.
func (p *twoPaths) transfers() (n [3]uint64) {
	p.t.Helper()
	list, err := p.c.Sessions(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range list.Controllers {
		group := 1
		if c.Queues[0].Local == p.tg.Portals[1] {
			group = 2
		}
		n[group] += c.IO.Read.Commands() + c.IO.Write.Commands()
	}
	return n
}

// moves waits until transfers come through one group, and wants none through the other.
func (p *twoPaths) moves(to int) {
	p.t.Helper()
	var before, now [3]uint64
	if !await(func() bool {
		before = p.transfers()
		return await(func() bool { now = p.transfers(); return now[to] >= before[to]+100 }) && now[3-to] == before[3-to]
	}) {
		p.t.Fatalf("transfers through group %d alone do not come: %v, then %v\n%s", to, before, now, guest.run(p.t, "dmesg"))
	}
}

// TestNVMePaths: Linux's native multipath over two portals, each of a group. While fio writes and verifies, groups become inaccessible, for a
// while both: transfers go where they should, and fio sees no error. Then the guest reserves the disk with nvme-cli, and another
// host fences it.
func TestNVMePaths(t *testing.T) {
	p := startTwoPaths(t)
	dev := "/dev/" + p.disk
	end := verify(t, dev)
	p.set(1, "unavailable", "inaccessible")
	p.moves(2)
	p.set(1, "optimized", "optimized")
	p.set(2, "standby", "inaccessible")
	p.moves(1)
	p.set(1, "unavailable", "inaccessible")
	p.set(2, "non-optimized", "non-optimized")
	p.moves(2)
	p.set(1, "optimized", "optimized")
	p.moves(1)
	end()

	// report describes what the guest's nvme-cli says of the reservation.
	report := func() string {
		t.Helper()
		var r struct{ Gen, RType, RegCtl, PTPLS int }
		out := guest.run(t, "nvme", "resv-report", dev, "--eds", "-o", "json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return fmt.Sprintf("generation %d, type %d, %d registrants, persistent %d", r.Gen, r.RType, r.RegCtl, r.PTPLS)
	}
	expect(t, "report", report(), "generation 0, type 0, 0 registrants, persistent 0")
	guest.run(t, "nvme", "resv-register", dev, "--nrkey=17", "--rrega=0", "--cptpl=3")
	guest.run(t, "nvme", "resv-acquire", dev, "--crkey=17", "--rtype=1", "--racqa=0")
	expect(t, "report", report(), "generation 1, type 1, 1 registrants, persistent 1")
	guest.run(t, "nvme", "resv-release", dev, "--crkey=17", "--rtype=1", "--rrela=0")
	expect(t, "report", report(), "generation 1, type 0, 1 registrants, persistent 1")
	guest.run(t, "nvme", "resv-acquire", dev, "--crkey=17", "--rtype=1", "--racqa=0")

	other := nvmetest.Admin(t, p.tg.Portals[0], pdu.IC{}, nqn).Queue(1, 0)
	if e, _ := other.Do(nvmetest.RW(nvme.Write, 0, 1), make([]byte, 512), 0); e.Status.Code() != nvme.ReservationConflict {
		t.Errorf("another host writes: %v", e.Status)
	}
	guest.run(t, "fio", "--name=holder", "--filename="+dev, "--direct=1", "--rw=write", "--bs=4k", "--size=64k")
	other.Must(nvme.Command{Opcode: nvme.ReservationRegister, NSID: 1}, nvme.AppendKeys(nil, 0, 34), 0)
	other.Must(nvme.Command{Opcode: nvme.ReservationAcquire, NSID: 1, DWords: [6]uint32{1<<8 | nvme.PreemptAndAbort}}, nvme.AppendKeys(nil, 34, 17), 0)
	guest.fails(t, "fio", "--name=fenced", "--filename="+dev, "--direct=1", "--rw=write", "--bs=4k", "--size=64k")
	expect(t, "report", report(), "generation 3, type 1, 1 registrants, persistent 1")
	// nvme-cli 2.3 has a wrong name for the type, Registration Preempted.
	if out := guest.run(t, "nvme", "resv-notif-log", "/dev/"+strings.TrimSuffix(p.disk, "n1")); !regexp.MustCompile(`Count\s*: 1\n.*Type\s*: 1 \(.*\n.*: 0\n.*: 1\n`).MatchString(out) {
		t.Errorf("nvme resv-notif-log says %s", out)
	}

	// Another store comes in the place of the namespace's: the host takes the disk away, and has that of the other store, by both paths.
	p.tg.Edit("stores: {", "stores: {other: {type: memory, size: 16MiB}, ")
	p.tg.Edit("{1: d}", "{1: other}")
	if _, err := p.c.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	var disks []string
	if !await(func() bool {
		disks = strings.Fields(guest.run(t, "bash", "-c", "for d in /sys/block/nvme*; do read size <$d/size; [ $size != 32768 ] || echo ${d##*/}; done"))
		return len(disks) == 3 // the disk, and its two paths, which have a c in their names
	}) {
		t.Fatalf("disks of the other store: %q\n%s", disks, guest.run(t, "dmesg"))
	}
	disks = slices.DeleteFunc(disks, func(name string) bool { return strings.Contains(name, "c") })
	guest.run(t, "fio", "--name=other", "--filename=/dev/"+disks[0], "--direct=1", "--rw=write", "--bs=4k", "--size=64k")
}
