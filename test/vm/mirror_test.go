package vm

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/mgmt"
)

// mirrorPaths are interfaces of the shared machine, one for each node of a mirror: QEMU's id of the network, the machine's name and
// address, and that of the host's loopback interface.
var mirrorPaths = []struct{ id, link, address, host string }{
	{"patha", "eth2", "10.0.3.15/24", "10.0.3.2"},
	{"pathb", "eth3", "10.0.4.15/24", "10.0.4.2"},
}

// mirrorNetwork returns qemu's arguments for them.
func mirrorNetwork() (args []string) {
	for i, p := range mirrorPaths {
		args = append(args, "-netdev", "user,id="+p.id+",net=10.0."+strconv.Itoa(3+i)+".0/24", "-device", "virtio-net-pci,netdev="+p.id)
	}
	return args
}

// plugged takes the cable of a path out, or puts it back.
func plugged(t *testing.T, path int, in bool) {
	t.Helper()
	if err := qmp(filepath.Join(guestDir, "qmp"), "set_link", map[string]any{"name": mirrorPaths[path].id, "up": in}); err != nil {
		t.Fatal(err)
	}
}

// mirrorConf is what docs/ha.md says, but for how often multipathd looks.
const mirrorConf = `
defaults {
	find_multipaths no
	polling_interval 1
	max_polling_interval 1
}
devices {
	device {
		vendor "ONESHOT"
		product ".*"
		path_grouping_policy group_by_prio
		path_selector "service-time 0"
		prio alua
		failback immediate
		no_path_retry queue
	}
}
`

// mirrorHost is the shared machine as the host of a mirror, through both of its nodes.
type mirrorHost struct {
	t    *testing.T
	c    *cluster
	disk string            // of dm-multipath
	sums map[string]string // of directories with files

	what      string         // happens
	loadEnded <-chan verdict // of the fio that runs
}

const (
	mirrorSize = "128MiB"
	// The first part of the disk is ext4's, fio has one behind it.
	filesSize, loadAt, loadSize = "80m", "96m", "8m"
)

// startMirrorHost logs in to both nodes, which it reaches at portals, and makes a file system.
func startMirrorHost(t *testing.T, c *cluster, portals []string) *mirrorHost {
	t.Helper()
	h := &mirrorHost{t: t, c: c, sums: make(map[string]string)}
	startMultipathd(t, mirrorConf)
	for i, portal := range portals {
		path := &iscsi{t: t, portal: portal, iface: "default"}
		if i == 0 {
			path = inGuest(t, portal, "default")
		}
		path.record(map[string]string{"node.conn[0].timeo.noop_out_interval": "2", "node.conn[0].timeo.noop_out_timeout": "3"})
		path.adm(path.node("--login")...)
	}
	h.until("map of two paths", func() bool {
		var ok bool
		h.disk, _, ok = multipathMap(t, 2)
		return ok
	})
	guest.run(t, "mkfs.ext4", "-q", "-F", h.disk, filesSize)
	guest.run(t, "@mount", "ext4", h.disk, "/mnt/d")
	t.Cleanup(func() { guest.start(t, "@umount", "/mnt/d").wait(t, guest) })
	return h
}

func (h *mirrorHost) until(what string, happens func() bool) {
	h.t.Helper()
	if !await(happens) {
		h.t.Fatalf("there is no %s\n%s%s", what, guest.run(h.t, "multipathd", "show", "topology"), guest.Log())
	}
}

// load starts fio, which writes each block of its part of the disk in random order, and then reads and verifies all.
func (h *mirrorHost) load() {
	h.t.Helper()
	load := guest.start(h.t, "fio", "--name=load", "--filename="+h.disk, "--allow_mounted_write=1", "--offset="+loadAt, "--size="+loadSize, "--direct=1",
		"--ioengine=libaio", "--iodepth=16", "--rw=randwrite", "--bs=4k", "--randrepeat=0", "--verify=crc32c", "--verify_fatal=1", "--output-format=terse")
	ended := make(chan verdict, 1)
	h.loadEnded = ended
	go func() {
		out, err := load.Wait(runTime)
		ended <- verdict{out, load.Exit, err}
	}()
}

// verdict is what is left of fio when it has ended.
type verdict struct {
	out  string
	exit int
	err  error
}

// written is how many writes the disk has done.
func (h *mirrorHost) written() int { return h.count(4) }

// count is a number of the disk's stat: 0 is how many reads it has done.
func (h *mirrorHost) count(field int) int {
	h.t.Helper()
	n, err := strconv.Atoi(strings.Fields(sys(h.t, filepath.Base(h.disk), "stat"))[field])
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// goesOn waits for more writes.
func (h *mirrorHost) goesOn(n int) {
	h.t.Helper()
	before := h.written()
	h.until("write", func() bool {
		h.loadAgain()
		return h.written() >= before+n
	})
}

// loadAgain has fio begin again if it has come to its end.
func (h *mirrorHost) loadAgain() {
	h.t.Helper()
	select {
	case v := <-h.loadEnded:
		h.verified(v)
		h.load()
	default:
	}
}

// verified sees that fio has found every block as it was written, and saw no error.
func (h *mirrorHost) verified(v verdict) {
	h.t.Helper()
	fields := strings.Split(v.out[max(0, strings.Index(v.out, "3;fio")):], ";")
	if v.err != nil || v.exit != 0 || len(fields) < 5 || fields[4] != "0" {
		h.t.Fatalf("%s: fio ends with %d: %v\n%s\n%s\n%s", h.what, v.exit, v.err, v.out, guest.run(h.t, "dmesg"), guest.asleep())
	}
}

// during lets something happen while fio and a file system write.
func (h *mirrorHost) during(what string, happens func()) {
	h.t.Helper()
	h.what = what
	h.load()
	h.goesOn(200)
	dir := "/mnt/d/" + strconv.Itoa(len(h.sums))
	files := guest.start(h.t, "@fill", dir, "20", "1000000", strconv.Itoa(len(h.sums)))
	happens()
	h.verified(<-h.loadEnded)
	if out, exit := files.wait(h.t, guest); exit != 0 {
		h.t.Fatalf("%s: files are not written: %s", what, out)
	}
	h.sums[dir] = guest.run(h.t, "@sum", dir)
}

// end reads all files, not from the page cache, sees that nobody was told of an error of the disk, and logs out.
func (h *mirrorHost) end() {
	h.t.Helper()
	guest.run(h.t, "@drop")
	for dir, want := range h.sums {
		expect(h.t, "checksum of "+dir, guest.run(h.t, "@sum", dir), want)
	}
	guest.run(h.t, "@umount", "/mnt/d")
	guest.run(h.t, "e2fsck", "-fn", h.disk)
	for line := range strings.Lines(guest.run(h.t, "dmesg")) {
		if strings.Contains(line, "rror") && strings.Contains(line, filepath.Base(h.disk)) {
			h.t.Errorf("the host's kernel says %s", line)
		}
	}
	guest.run(h.t, "iscsiadm", "-m", "node", "--logout")
}

// isLong is said by ONESHOT_MIRROR_HOST.
func isLong() bool { return os.Getenv("ONESHOT_MIRROR_HOST") == "long" }

// stopped is for how long a primary that is stopped is so at least, beside what it takes until hosts go on.
func stopped() time.Duration {
	if isLong() {
		return 30 * time.Second
	}
	return 0
}

// TestMirrorHost: Linux as the host of a mirror, by open-iscsi and dm-multipath, on whose nodes and cables things happen while fio and ext4
// write. No program sees an error, and all bytes are right. With ONESHOT_MIRROR_HOST=long the primary is stopped for 30 s, and the
// mirror is switched 50 times.
func TestMirrorHost(t *testing.T) {
	c, nodes := startLocal(t, mirrorSize)
	var portals []string
	for i, p := range mirrorPaths {
		guest.run(t, "ip", "addr", "replace", p.address, "dev", p.link)
		guest.run(t, "ip", "link", "set", "dev", p.link, "up")
		_, port, err := net.SplitHostPort(c.portals[i])
		if err != nil {
			t.Fatal(err)
		}
		portals = append(portals, net.JoinHostPort(p.host, port))
	}
	h := startMirrorHost(t, c, portals)
	switches := 4
	if isLong() {
		switches = 50
	}

	h.during("the primary is killed", func() {
		lost := c.loses(c.level, func(name string) { nodes[name].kill() }, c.start)
		h.goesOn(200)
		c.start(lost)
		c.level()
	})

	for n := 0; n < switches; {
		h.during("the mirror is switched", func() {
			for range 4 {
				if c.switches() {
					n++
				}
				h.goesOn(100)
			}
		})
	}

	h.during("the primary is stopped", func() {
		over := time.After(stopped())
		proceed := func(name string) { nodes[name].signal(syscall.SIGCONT) }
		lost := c.loses(c.level, func(name string) { nodes[name].signal(syscall.SIGSTOP) }, proceed)
		h.goesOn(200)
		<-over // the duration is part of the test
		proceed(lost)
		c.until(lost, "it follows", func(m *mgmt.Mirror) bool { return m.Primary == partner(lost) && m.Role != mgmt.RolePrimary })
	})

	h.during("the host's cable to the primary is cut", func() {
		primary := c.level()
		path := strings.Index("ab", primary)
		plugged(t, path, false)
		defer plugged(t, path, true)
		c.serves(partner(primary))
		h.goesOn(200)
	})
	h.end()
	endLocal(t, c, nodes)
}
