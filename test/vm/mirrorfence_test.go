package vm

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fencedHost is an initiator with a name of its own, and its disks: one for each node of a mirror.
type fencedHost struct {
	t     *testing.T
	disks map[string]string
}

// newFencedHost logs in to both nodes. known are the disks of others.
func newFencedHost(t *testing.T, c *cluster, name string, known []string) *fencedHost {
	t.Helper()
	h := &fencedHost{t: t, disks: make(map[string]string)}
	guest.run(t, "iscsiadm", "-m", "iface", "-I", name, "-o", "new")
	t.Cleanup(func() { guest.run(t, "iscsiadm", "-m", "iface", "-I", name, "-o", "delete") })
	t.Cleanup(func() {
		guest.start(t, "iscsiadm", "-m", "node", "-I", name, "--logout").wait(t, guest)
		guest.start(t, "iscsiadm", "-m", "node", "-I", name, "-o", "delete").wait(t, guest)
	})
	guest.run(t, "iscsiadm", "-m", "iface", "-I", name, "-o", "update", "-n", "iface.initiatorname", "-v", "iqn.2026-11.example.clients:"+name)
	for i, node := range []string{"a", "b"} {
		p := &iscsi{t: t, portal: guestAddr(t, c.portals[i]), iface: name}
		p.record(nil)
		p.adm(p.node("--login")...)
		if !await(func() bool {
			for _, m := range diskLine.FindAllStringSubmatch(p.adm("session", "-P", "3"), -1) {
				if disk := "/dev/" + m[2]; !slices.Contains(known, disk) {
					h.disks[node], known = disk, append(known, disk)
					return true
				}
			}
			return false
		}) {
			t.Fatalf("%s has no disk of %s", name, p.portal)
		}
	}
	return h
}

// writes sends a WRITE through a node, and again after each unit attention and until the node serves. It returns the program's status.
// unready is called in between; nil: nobody needs to do anything about it.
func (h *fencedHost) writes(node string, unready func()) (status int) {
	h.t.Helper()
	if !await(func() bool {
		if status == sgNotReady && unready != nil {
			unready()
		}
		_, status = guest.start(h.t, strings.Fields("sg_raw -s 512 -i /tmp/block "+h.disks[node]+" 2a 00 00 00 00 08 00 00 01 00")...).wait(h.t, guest)
		return status != sgAttention && status != sgNotReady
	}) {
		h.t.Fatalf("node %s does not answer", node)
	}
	return status
}

func (h *fencedHost) persist(node string, args ...string) string {
	h.t.Helper()
	return guest.run(h.t, append([]string{"sg_persist", "-n", "-d", h.disks[node]}, args...)...)
}

// keys are those that are registered, as a node says.
func (h *fencedHost) keys(node string) string {
	h.t.Helper()
	_, list, _ := strings.Cut(h.persist(node, "-i", "-k"), "\n") // below the generation
	keys := strings.Fields(list)
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// TestMirrorFence is what fence_scsi does, over a failover of a mirror: two hosts register through both nodes, one reserves the disk for
// those who are registered (type 5), the primary is killed, and the other host is preempted through the node that is left. It is fenced
// there, and at the node that was away, when that one serves again.
func TestMirrorFence(t *testing.T) {
	c, nodes := startLocal(t, "16MiB")
	startInitiator.Do(t)
	inGuest(t, guestAddr(t, c.portals[0]), "default") // forgets what others have left
	guest.run(t, "@write", "/tmp/block", strings.Repeat("x", 512))
	good := newFencedHost(t, c, "good", nil)
	bad := newFencedHost(t, c, "bad", []string{good.disks["a"], good.disks["b"]})
	for _, node := range []string{"a", "b"} {
		good.persist(node, "-o", "-G", "-Z", "-S", "600d")
		bad.persist(node, "-o", "-G", "-Z", "-S", "bad")
	}
	good.persist("b", "-o", "-R", "-T", "5", "-K", "600d")
	primary := c.level()
	expect(t, "status of a write before", strconv.Itoa(bad.writes(primary, nil)), "0")
	for _, node := range []string{"a", "b"} {
		expect(t, "keys that "+node+" has", bad.keys(node), "0x600d 0x600d 0xbad 0xbad")
	}

	lost := c.loses(c.level, func(name string) { nodes[name].kill() }, c.start)
	left := partner(lost)
	good.persist(left, "-o", "-A", "-T", "5", "-K", "600d", "-S", "bad")
	expect(t, "status of the fenced host's write", strconv.Itoa(bad.writes(left, nil)), strconv.Itoa(sgReservation))
	expect(t, "status of the other host's write", strconv.Itoa(good.writes(left, nil)), "0")

	c.start(lost)
	serve := func() { c.serves(lost) }
	serve()
	expect(t, "status of the fenced host's write at the node that was away", strconv.Itoa(bad.writes(lost, serve)), strconv.Itoa(sgReservation))
	expect(t, "status of the other host's write there", strconv.Itoa(good.writes(lost, serve)), "0")
	expect(t, "keys in the end", good.keys(lost), "0x600d 0x600d")
	guest.run(t, "iscsiadm", "-m", "node", "--logout")
	endLocal(t, c, nodes)
}
