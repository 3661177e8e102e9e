package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	client "oneshot/initiator"
	"oneshot/mgmt"
)

// Where the nodes and the host are, on the network of the tests.
const (
	mirrorA, mirrorB, mirrorW = "10.9.3.2", "10.9.3.1", "10.9.3.3"
	mirrorHostAddress         = "10.9.3.4/24"
)

// machineNode is node a: a machine with a disk for what the node remembers, and one for its copy, below device-mapper. It is a clusterNode.
type machineNode struct {
	t      *testing.T
	dir    string        // of its sockets and disks
	guest  *guestMachine // nil: it is off
	daemon *command
}

const (
	machineCopy    = "/dev/dm-0"
	machineSectors = 128 << 20 / 512 // of the copy
)

// newMachineNode makes the disks.
func newMachineNode(t *testing.T) *machineNode {
	t.Helper()
	n := &machineNode{t: t, dir: t.TempDir()}
	if _, err := run(".", "mkfs.ext4", "-q", filepath.Join(n.dir, "state"), "64M"); err != nil {
		t.Fatal(err)
	}
	if _, err := run(".", "truncate", "-s", strconv.Itoa(machineSectors*512), filepath.Join(n.dir, "copy")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.cut)
	t.Cleanup(func() {
		if t.Failed() && n.daemon != nil {
			t.Logf("a: %s", n.says())
		}
	})
	return n
}

// says returns what the daemon has said that nobody has read.
func (n *machineNode) says() string {
	var s strings.Builder
	for {
		select {
		case line, more := <-n.daemon.Lines:
			if !more {
				return s.String()
			}
			s.WriteString(line + "\n")
		default:
			return s.String()
		}
	}
}

// boot turns the machine on.
func (n *machineNode) boot() {
	n.t.Helper()
	var err error
	if n.guest, err = bootOnLAN(n.dir, mirrorOnNetwork, append(n.disk("state"), n.disk("copy")...)...); err != nil {
		n.t.Fatal(err)
	}
	for _, c := range []string{
		"ip addr add " + mirrorA + "/24 dev eth1", "ip link set dev eth1 up", "@mount ext4 /dev/vda /node",
	} {
		n.guest.run(n.t, strings.Fields(c)...)
	}
	// A device of device-mapper is known by its UUID, whatever it maps to.
	n.guest.run(n.t, "dmsetup", "create", "copy", "--uuid", "copy-of-a", "--noudevsync", "--table", copyTable("linear /dev/vdb 0"))
}

// copyTable maps all of the copy.
func copyTable(to string) string { return fmt.Sprintf("0 %d %s", machineSectors, to) }

func (n *machineNode) disk(name string) []string {
	return []string{"-drive", "file=" + filepath.Join(n.dir, name) + ",format=raw,if=virtio"}
}

// maps has the copy be on something else.
func (n *machineNode) maps(to string) {
	n.t.Helper()
	n.guest.run(n.t, "dmsetup", "load", "copy", "--table", copyTable(to))
	n.guest.run(n.t, "dmsetup", "resume", "--noudevsync", "copy") // and suspends it before
}

// cut turns the machine off, as a power cut does.
func (n *machineNode) cut() {
	if n.guest != nil {
		n.guest.Stop()
		n.guest = nil
	}
}

func (n *machineNode) qmp(command string) {
	n.t.Helper()
	if err := qmp(filepath.Join(n.dir, "qmp"), command, map[string]any{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *machineNode) signal(s syscall.Signal) {
	n.t.Helper()
	if err := syscall.Kill(n.guest.PID(), s); err != nil {
		n.t.Fatal(err)
	}
}

func (n *machineNode) path(file string) string { return "/node/" + file }

func (n *machineNode) write(file, text string) {
	n.t.Helper()
	n.guest.run(n.t, "@write", n.path(file), text)
	n.guest.run(n.t, "@sync") // it outlives a power cut
}

func (n *machineNode) run(args ...string) (string, error) {
	n.t.Helper()
	out, exit := n.guest.start(n.t, append([]string{"target"}, args...)...).wait(n.t, n.guest)
	if exit != 0 {
		return out, fmt.Errorf("exit %d", exit)
	}
	return out, nil
}

func (n *machineNode) serve(args ...string) {
	n.t.Helper()
	n.daemon = n.guest.start(n.t, append([]string{"target"}, args...)...)
	awaitServing(n.t, n.daemon)
}

// ended waits until the daemon has ended, and returns its exit status.
func (n *machineNode) ended() int {
	n.t.Helper()
	_, exit := n.daemon.wait(n.t, n.guest)
	n.daemon = nil
	return exit
}

// machineMirror is a mirror whose node a is a machine. b and the witness are processes of the test's host, and the shared machine is the
// host of the mirror.
type machineMirror struct {
	t     *testing.T
	a     *machineNode
	local map[string]*local
	c     *cluster
	h     *mirrorHost
}

func startMachineMirror(t *testing.T) *machineMirror {
	t.Helper()
	m := &machineMirror{t: t, a: newMachineNode(t), local: make(map[string]*local)}
	m.a.boot()
	nodes := map[string]clusterNode{"a": m.a}
	for _, name := range []string{"b", "w"} {
		n := newLocal(t, name, lan.Within)
		m.local[name], nodes[name] = n, n
	}
	at := []string{mirrorA + ":7260", mirrorB + ":7260", mirrorW + ":7260", mirrorA + ":3260", mirrorB + ":3260"}
	m.c = startCluster(t, mirrorSize, "{type: device, path: "+machineCopy+"}", at, nodes)
	guest.run(t, "ip", "addr", "add", mirrorHostAddress, "dev", "eth1")
	guest.run(t, "ip", "link", "set", "dev", "eth1", "up")
	t.Cleanup(func() {
		guest.run(t, "ip", "link", "set", "dev", "eth1", "down")
		guest.run(t, "ip", "addr", "flush", "dev", "eth1")
	})
	m.h = startMirrorHost(t, m.c, m.c.portals)
	return m
}

// row is a row of the failure matrix: something happens to the machine while the host writes. The copies are in sync afterwards.
func (m *machineMirror) row(name string, happens func()) {
	m.t.Helper()
	whole := m.t
	is := func(t *testing.T) {
		m.t, m.a.t, m.c.t, m.h.t = t, t, t, t
		for _, n := range m.local {
			n.t = t
		}
	}
	if !whole.Run(name, func(t *testing.T) {
		is(t)
		defer is(whole)
		m.h.during(name, happens)
		m.c.level()
	}) {
		whole.FailNow()
	}
}

// serves has the machine serve.
func (m *machineMirror) serves() string { return m.c.serves("a") }

// loses takes the machine away while it serves, until b has taken over and the host writes there.
func (m *machineMirror) loses(lose, back func()) {
	m.t.Helper()
	m.c.loses(m.serves, func(string) { lose() }, func(string) { back() })
	m.h.goesOn(200)
}

// on turns the machine on again, after a power cut.
func (m *machineMirror) on() {
	m.t.Helper()
	m.a.cut()
	m.a.boot()
	m.c.start("a")
}

// end sees that the host has all its bytes, ends all nodes in good order, and compares the copies.
func (m *machineMirror) end() {
	m.t.Helper()
	m.h.end()
	m.c.settled()
	m.c.serves("b")
	m.c.settled()
	m.a.guest.run(m.t, "@signal", "target", strconv.Itoa(int(syscall.SIGTERM)))
	if exit := m.a.ended(); exit != 0 {
		m.t.Errorf("the daemon of a ends with %d", exit)
	}
	for _, name := range []string{"b", "w"} {
		m.local[name].stop()
	}
	m.a.guest.run(m.t, "@umount", "/node")
	a, err := os.ReadFile(filepath.Join(m.a.dir, "copy"))
	if err != nil {
		m.t.Fatal(err)
	}
	b, err := os.ReadFile(m.local["b"].path("disk.img"))
	if err != nil {
		m.t.Fatal(err)
	}
	if len(a) != len(b) {
		m.t.Fatalf("the copies have %d and %d bytes", len(a), len(b))
	}
	for at := 0; at < len(a); at += 4096 {
		if !bytes.Equal(a[at:at+4096], b[at:at+4096]) {
			m.t.Fatalf("the copies differ at %d", at)
		}
	}
}

// Blocks behind those of the host, which nobody but a zombie's asker uses.
const (
	askedBlock   = 120 << 20
	orderedBlock = 121 << 20
)

// asker is an initiator that is logged in to a node.
type asker struct {
	t       *testing.T
	session *client.Session
	lu      *client.LU
}

// asks logs in to a node.
func (m *machineMirror) asks(node string) *asker {
	m.t.Helper()
	u := client.URL{Address: m.c.portals[strings.Index("ab", node)], Target: iqn}
	a := &asker{t: m.t}
	var err error
	lan.Within(func() { a.session, err = client.Dial(m.t.Context(), u, client.Options{}) })
	if err == nil {
		m.t.Cleanup(func() { _ = a.session.Close() })
		a.lu, err = a.session.LU(m.t.Context(), 0)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return a
}

// begin sends a command, and returns what waits for its end.
func (a *asker) begin(c *client.Command, at int64) (end func() error) {
	a.t.Helper()
	if err := a.lu.Prepare(c, at); err != nil {
		a.t.Fatal(err)
	}
	ended := make(chan struct{})
	c.Done = func(*client.Command) { close(ended) }
	a.session.Start(c)
	return func() error {
		a.t.Helper()
		select {
		case <-ended:
			return c.Failure()
		case <-time.After(runTime):
			a.t.Fatal("a command does not end")
			return nil
		}
	}
}

// writes writes blocks full of a letter to where a zombie is asked. It fails if the node does not serve.
func (a *asker) writes(letter string) error {
	a.t.Helper()
	var err error
	for _, at := range []int64{askedBlock, orderedBlock} {
		err = errors.Join(err, a.begin(&client.Command{Out: block(letter)}, at)())
	}
	return err
}

// holds sees that whoever serves has blocks full of a letter there.
func (m *machineMirror) holds(letter string) {
	m.t.Helper()
	for _, at := range []int64{askedBlock, orderedBlock} {
		b := make([]byte, len(block(letter)))
		if !await(func() bool { return m.asks(m.c.level()).begin(&client.Command{In: b}, at)() == nil }) {
			m.t.Fatal("nobody reads")
		}
		if !bytes.Equal(b, block(letter)) {
			m.t.Errorf("the block at %d is %.8q, want %q", at, b, letter)
		}
	}
}

func block(letter string) []byte { return bytes.Repeat([]byte(letter), 4096) }

// zombie stops the machine, which serves, until b serves; then it goes on. What it was asked for while it was stopped it does not answer
// with what it has, for that is of the past; what it was told to write meanwhile it does not write; and it follows b.
func (m *machineMirror) zombie(stop, proceed func()) {
	m.t.Helper()
	var asked, ordered []func() error
	var reads [][]byte
	var over <-chan time.Time
	m.loses(func() {
		a := m.asks("a")
		for a.writes("o") != nil { // on a busy machine b has taken over
			m.serves()
		}
		stop()
		over = time.After(stopped())
		asked, ordered, reads = nil, nil, nil
		for range 8 {
			b := make([]byte, 4096)
			reads = append(reads, b)
			asked = append(asked, a.begin(&client.Command{In: b}, askedBlock))
			ordered = append(ordered, a.begin(&client.Command{Out: block("z")}, orderedBlock))
		}
	}, proceed)
	b := m.asks("b")
	if !await(func() bool { return b.writes("n") == nil }) {
		m.t.Fatal("b does not write")
	}
	<-over // the duration is part of the test
	proceed()
	for i := range asked {
		if err := asked[i](); err == nil && !bytes.Equal(reads[i], block("n")) {
			m.t.Errorf("who was stopped answers a read with %.8q, which is of the past", reads[i])
		}
		if err := ordered[i](); err == nil {
			m.t.Error("who was stopped says that it has written")
		} else if i == 0 {
			m.t.Logf("who was stopped answers: %v", err)
		}
	}
	m.c.until("a", "it follows", func(now *mgmt.Mirror) bool { return now.Primary == "b" && now.Role != mgmt.RolePrimary })
	m.holds("n")
}

// undisturbed has something happen to the machine while it serves, and sees that it goes on to serve. On a busy machine b takes over
// at times, though nothing has happened: so it may happen again.
func (m *machineMirror) undisturbed(happens func()) {
	m.t.Helper()
	for range 10 {
		m.serves()
		before := m.c.mirror("a")
		happens()
		m.h.goesOn(200)
		if now := m.c.mirror("a"); now.Role == mgmt.RolePrimary && now.Term == before.Term {
			return
		}
	}
	m.t.Error("the machine is taken over from each time")
}

// restarts has the daemon of the machine be killed while it serves, and start again.
func (m *machineMirror) restarts() {
	m.t.Helper()
	start := func() { m.c.start("a") }
	m.loses(func() {
		m.a.guest.run(m.t, "@signal", "target", strconv.Itoa(int(syscall.SIGKILL)))
		m.a.ended()
	}, start)
	start()
	m.c.level()
}

// drops has something happen to the disk of the machine while b serves, which goes on without it.
func (m *machineMirror) drops(happens func()) {
	m.t.Helper()
	m.c.serves("b")
	happens()
	m.c.until("b", "it goes on without the copy of a", func(now *mgmt.Mirror) bool {
		m.h.loadAgain() // which writes before it reads
		return now.Role == mgmt.RolePrimary && inSync(now, "b") && !inSync(now, "a")
	})
	m.h.goesOn(200)
}

// TestMirrorMachine: what only a machine can suffer happens to one with a copy of a mirror, while Linux writes to the mirror through
// dm-multipath. No program sees an error, all bytes are right, and in the end both copies are the same.
func TestMirrorMachine(t *testing.T) {
	m := startMachineMirror(t)
	a := m.a
	m.row("power cut", func() {
		m.loses(a.cut, m.on)
		m.on()
	})
	m.row("kernel hangs", func() {
		m.loses(func() { // as a panic leaves a kernel that was not told to boot again
			a.guest.run(m.t, "@write", "/proc/sys/kernel/panic", "0")
			a.guest.start(m.t, "@write", "/proc/sysrq-trigger", "c")
		}, m.on)
		m.on()
	})
	m.row("stopped with its clocks", func() { m.zombie(func() { a.qmp("stop") }, func() { a.qmp("cont") }) })
	m.row("stopped but for its clocks", func() { m.zombie(func() { a.signal(syscall.SIGSTOP) }, func() { a.signal(syscall.SIGCONT) }) })
	m.row("wall clock", func() {
		const hours = 3600
		for _, ahead := range []int{10 * hours, -20 * hours} {
			m.undisturbed(func() { a.guest.run(m.t, "@clock", strconv.Itoa(ahead)) })
			m.restarts()
		}
		a.guest.run(m.t, "@clock", strconv.Itoa(10*hours))
	})
	m.row("clock rates", func() {
		for _, percent := range []string{"10", "-10"} {
			m.undisturbed(func() { a.guest.run(m.t, "@rate", percent) })
		}
		m.restarts()
		a.guest.run(m.t, "@rate", "0")
	})
	m.row("no memory", func() {
		m.loses(func() {
			a.guest.run(m.t, "@write", "/proc/sysrq-trigger", "f")
			a.ended()
		}, func() { m.c.start("a") })
		if said := a.guest.run(m.t, "dmesg"); !strings.Contains(said, "(target)") || !strings.Contains(said, "Killed process") {
			m.t.Errorf("the kernel has not ended the daemon:\n%s", said)
		}
		m.c.start("a")
	})
	m.row("slow disk", func() {
		m.undisturbed(func() { a.maps("delay /dev/vdb 0 30") })
		m.drops(func() { a.maps("delay /dev/vdb 0 0 /dev/vdb 0 8000") }) // its writes only
		a.maps("linear /dev/vdb 0")
	})
	m.row("disk hangs", func() {
		hang := func() { a.guest.run(m.t, "dmsetup", "suspend", "--nolockfs", "copy") }
		resume := func() { a.guest.run(m.t, "dmsetup", "resume", "--noudevsync", "copy") }
		m.loses(func() {
			read := m.h.count(0)
			m.h.until("read", func() bool { // the load verifies: the disk has reads of the host under way
				m.h.loadAgain()
				return m.h.count(0) > read+100
			})
			hang()
		}, resume)
		resume()
		m.drops(hang)
		resume()
	})
	m.end()
}
