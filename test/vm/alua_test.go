package vm

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// multipathConf is what multipath-tools have by themselves for disks that report ALUA, except how often
// they look.
const multipathConf = `
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
		failback immediate
		no_path_retry queue
	}
}
`

// twoGroups is a target with a portal in each of two groups, managed with target access.
type twoGroups struct {
	t  *testing.T
	tg *targettest.Target
	c  *mgmt.Client
}

func startTwoGroups(t *testing.T, more string) *twoGroups {
	g := &twoGroups{t: t, tg: targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{listen: $PORTAL}, {listen: $PORTAL2, group: 2}]
management: {socket: $DIR/socket}
`+more)}
	g.c = mgmt.NewClient(g.socket())
	t.Cleanup(g.c.Close)
	return g
}

func (g *twoGroups) socket() string { return g.tg.Dir + "/socket" }

// set has the administrator set the access state of a group.
func (g *twoGroups) set(group int, state string) {
	g.t.Helper()
	cmd := exec.Command(targettest.Binary(g.t), "access", "set", iqn, strconv.Itoa(group), state, "--socket", g.socket())
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Fatalf("%v: %s", err, out)
	}
}

// transfers counts READs and WRITEs that came through each group, 1 and 2.
func (g *twoGroups) transfers() (n [3]uint64) {
	g.t.Helper()
	list, err := g.c.Sessions(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	for _, s := range list.Sessions {
		n[g.group(s.Local)] += s.IO.Read.Commands() + s.IO.Write.Commands()
	}
	return n
}

func (g *twoGroups) group(portal string) int {
	if portal == g.tg.Portals[0] {
		return 1
	}
	return 2
}

// until waits for something.
func (g *twoGroups) until(what string, happens func() bool) {
	g.t.Helper()
	if !await(happens) {
		g.t.Fatalf("there are no %s: %v\n%s%s", what, g.transfers(), guest.run(g.t, "multipathd", "show", "topology"), guest.Log())
	}
}

// moves waits until transfers come through one group and not through the other.
func (g *twoGroups) moves(to int) {
	g.t.Helper()
	g.until(fmt.Sprintf("transfers through group %d alone", to), func() bool {
		before := g.transfers()
		g.until(fmt.Sprintf("transfers through group %d", to), func() bool { return g.transfers()[to] >= before[to]+100 })
		return g.transfers()[3-to] == before[3-to]
	})
}

// startMultipathd runs it, until the end of the test.
func startMultipathd(t *testing.T, conf string) {
	t.Helper()
	guest.run(t, "@write", "/etc/multipath.conf", conf)
	guest.run(t, "systemd-udevd", "--daemon")
	t.Cleanup(func() { guest.run(t, "udevadm", "control", "--exit") })
	guest.run(t, "multipathd")
	t.Cleanup(func() {
		guest.run(t, "@signal", "multipathd", strconv.Itoa(int(syscall.SIGTERM)))
		if !await(func() bool {
			_, exit := guest.start(t, "multipathd", "show", "daemon").wait(t, guest)
			return exit != 0
		}) {
			t.Fatalf("multipathd does not end\n%s", guest.Log())
		}
		guest.run(t, "multipath", "-F")
	})
}

// multipathMap returns the disk that multipathd has made of that many paths, and its name, if it has.
func multipathMap(t *testing.T, paths int) (disk, name string, ok bool) {
	t.Helper()
	fields := strings.Fields(guest.run(t, "multipathd", "show", "maps", "raw", "format", "%d %n %N"))
	for len(fields) > 3 && fields[2] != strconv.Itoa(paths) { // of a disk that another test has left
		fields = fields[3:]
	}
	if len(fields) < 3 || fields[2] != strconv.Itoa(paths) {
		return "", "", false
	}
	return "/dev/" + fields[0], fields[1], true
}

// startMultipath logs in through both portals with multipathd running, and returns the disk that it makes
// of them and its name.
func (g *twoGroups) startMultipath() (disk, name string) {
	t := g.t
	t.Helper()
	startMultipathd(t, multipathConf)
	for _, portal := range g.tg.Portals {
		i := prepare(t, g.tg) // whose cleanup comes first
		i.portal = guestAddr(t, portal)
		i.record(map[string]string{"node.session.timeo.replacement_timeout": "1"})
		i.adm(i.node("--login")...)
	}
	g.until("maps of two paths", func() bool {
		var ok bool
		disk, name, ok = multipathMap(t, len(g.tg.Portals))
		return ok
	})
	return disk, name
}

// cut closes the portal of the first group, and ends its session.
func (g *twoGroups) cut() {
	g.t.Helper()
	g.tg.Edit("{listen: "+g.tg.Portals[0]+"}, ", "")
	g.reload()
	list, err := g.c.Sessions(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	for _, s := range list.Sessions {
		if g.group(s.Local) == 1 {
			if err := g.c.DropSession(g.t.Context(), s.ID); err != nil {
				g.t.Fatal(err)
			}
		}
	}
}

func (g *twoGroups) reload() {
	g.t.Helper()
	if _, err := g.c.Reload(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

// TestALUA: multipathd over two portals, each a target port group. While fio writes and verifies, the
// administrator changes access states, a path is killed and comes back, all paths are unavailable for a
// while, and the disk grows: transfers go where they should, and fio sees no error.
func TestALUA(t *testing.T) {
	g := startTwoGroups(t, "")
	disk, name := g.startMultipath()
	end := verify(t, disk)
	g.until("transfers through both groups, which are optimized", func() bool {
		n := g.transfers()
		return n[1] >= 100 && n[2] >= 100
	})
	g.set(2, "non-optimized")
	g.moves(1)
	g.set(2, "optimized")
	g.set(1, "standby")
	g.moves(2)
	g.set(1, "optimized")
	g.set(2, "unavailable")
	g.moves(1)

	g.set(1, "unavailable") // as is 2
	g.until("two failed paths", func() bool {
		return strings.Count(guest.run(t, "multipathd", "show", "paths", "raw", "format", "%t"), "failed") == 2
	})
	g.set(2, "non-optimized")
	g.moves(2)
	g.set(1, "optimized")
	g.moves(1)

	g.cut()
	g.moves(2)
	g.tg.Edit("portals: [", "portals: [{listen: "+g.tg.Portals[0]+"}, ")
	g.reload()
	g.moves(1)

	g.tg.Edit("size: 64MiB", "size: 96MiB")
	g.reload()
	guest.run(t, "iscsiadm", "-m", "session", "--rescan")
	guest.run(t, "multipathd", "resize", "map", name)
	expect(t, "size of the map in blocks", sys(t, strings.TrimPrefix(disk, "/dev/"), "size"), strconv.Itoa(96<<20/512))
	g.moves(1)

	end()
}
