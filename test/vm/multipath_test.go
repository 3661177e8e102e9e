package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// TestMultipath: one disk over two paths, iSER on soft-RoCE and TCP, put together by dm-multipath. The
// path that is in use is killed under load, in either order: the load does not notice, and
// what it has synced is there.
func TestMultipath(t *testing.T) {
	d := rdmaDevices[0]
	d.start(t)
	const portals = `portals:
  - {transport: verbs, listen: "%[1]s:3265", device: rxe0}
  - {transport: tcp, listen: "%[1]s:3266"}
`
	config := fmt.Sprintf(`
stores: {d: {type: memory, size: 128MiB}}
targets: [{iqn: %q, luns: {0: d}}]
management: {socket: /tmp/oneshot.sock}
`, iqn)
	for name, first := range map[string]int{"iSER": 0, "TCP": 1} {
		t.Run(name+" is killed", func(t *testing.T) {
			startInGuest(t, config+fmt.Sprintf(portals, d.host), 2)
			quick := map[string]string{"node.session.timeo.replacement_timeout": "1"}
			var paths []string // as dm-multipath wants them: MAJOR:MINOR
			both := []*iscsi{
				inGuest(t, net.JoinHostPort(d.host, "3265"), "iser"),
				{t: t, portal: net.JoinHostPort(d.host, "3266"), iface: "default"},
			}
			if first == 1 {
				both[0], both[1] = both[1], both[0]
			}
			for i, p := range both {
				p.record(quick)
				p.adm(p.node("--login")...)
				paths = append(paths, disk(t, i+1, paths))
			}
			// The first path until it fails, then the second; without both, wait.
			guest.run(t, "dmsetup", "create", "mp", "--noudevsync", "--table", "0 262144 multipath 1 queue_if_no_path 0 2 1"+
				" round-robin 0 1 1 "+paths[0]+" 1 round-robin 0 1 1 "+paths[1]+" 1")
			count := writeRecordsAround(t, "/dev/dm-0", 200, func() { cutPath(t, config, portals, d.host, first) })
			if status := guest.run(t, "dmsetup", "status", "mp"); !strings.Contains(status, paths[0]+" F") || !strings.Contains(status, paths[1]+" A") {
				t.Errorf("the first path has not failed, or the second has: %s", status)
			}
			guest.run(t, "@drop")
			guest.run(t, "@check", "/dev/dm-0", strconv.Itoa(count))
			guest.run(t, "dmsetup", "remove", "--noudevsync", "mp")
		})
	}
}

// disk returns the number of the one disk of n that is not among known.
func disk(t *testing.T, n int, known []string) string {
	t.Helper()
	i := &iscsi{t: t}
	var found string
	if !await(func() bool {
		names := diskLine.FindAllStringSubmatch(i.adm("session", "-P", "3"), -1)
		if len(names) != n {
			return false // the kernel is still looking
		}
		for _, m := range names {
			if dev := sys(t, m[2], "dev"); !strings.Contains(strings.Join(known, " "), dev) {
				found = dev
			}
		}
		return found != ""
	}) {
		t.Fatalf("there are no %d disks\n%s", n, guest.Log())
	}
	return found
}

// cutPath closes the portal of a path, and ends its session.
func cutPath(t *testing.T, config, portals, host string, path int) {
	t.Helper()
	lines := strings.SplitAfter(fmt.Sprintf(portals, host), "\n")
	lines[1+path] = ""
	guest.run(t, "@write", "/tmp/target.yaml", config+strings.Join(lines, ""))
	guest.run(t, "target", "reload", "--socket", "/tmp/oneshot.sock")
	out := guest.run(t, "target", "sessions", "--socket", "/tmp/oneshot.sock", "-o", "json")
	var list struct {
		Sessions []struct {
			ID    int
			Local string
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, s := range list.Sessions {
		if strings.HasSuffix(s.Local, strconv.Itoa(3265+path)) {
			guest.run(t, "target", "session", "drop", "--socket", "/tmp/oneshot.sock", strconv.Itoa(s.ID))
			return
		}
	}
	t.Fatalf("no session on path %d: %s", path, out)
}
