//go:build deb

package packaging

import (
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"oneshot/test/targettest"
	"oneshot/test/vm/machine"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const (
	attachIQN = "iqn.2026-11.example.oneshot:attached"
	theHost   = "10.0.3.2" // as the system sees it
)

// TestAttachAtBoot: a system that mounts a disk by the unit of the package, as docs/attach.md says, has it again after
// a power cut of both ends, with all that was synced. The target comes later than the system. Meanwhile programs notice
// nothing when the service is killed, or the target, and in the end the system goes down in an order in which the file
// system is clean.
func TestAttachAtBoot(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
targets: [{iqn: `+attachIQN+`, luns: {0: d}, auth: {chap: {user: alice, secret: wonderland-looking}}}]
portals: [{transport: iwarp, listen: $PORTAL}]
`)
	_, port, err := net.SplitHostPort(tg.Portal())
	must(t, err)
	d := prepare(t)
	s := d.boot(t, service)
	s.until("systemctl is-system-running | grep -v -e starting -e initializing", "running")
	s.run("dpkg -i /root/oneshot_1.0_*.deb")
	s.run("cat > /etc/oneshot/attach/nbd0.env <<'ENV'\nURL=oneshot+iwarp://" + net.JoinHostPort(theHost, port) + "/" + attachIQN + "/0\n" +
		"OPTIONS=--dead-time 2m --ping 1s\nLIBISCSI_CHAP_USERNAME=alice\nLIBISCSI_CHAP_PASSWORD=wonderland-looking\nENV")
	s.run("systemctl enable --now oneshot-attach@nbd0")
	s.run("mkfs.ext4 -q /dev/nbd0")
	s.run("echo '/dev/nbd0 /mnt ext4 _netdev,x-systemd.requires=oneshot-attach@nbd0.service 0 0' >> /etc/fstab")
	s.run("systemctl daemon-reload && systemctl start mnt.mount")
	s.run("echo 1000 > /sys/block/nbd0/queue/io_timeout") // ms: until the kernel looks after what a dead attach had

	t.Log("the disk is mounted")
	load, err := s.m.Start("@records", "/mnt/records", "1000000")
	must(t, err)
	more(t, load, 50)
	s.run("systemctl kill -s KILL oneshot-attach@nbd0")
	more(t, load, 50)
	s.until("systemctl show --value -p NRestarts oneshot-attach@nbd0", "1")
	tg.Kill()
	tg.Start()
	synced := more(t, load, 50)
	s.run("sync -f /etc/fstab") // of the system's own disk

	t.Log("the service and the target were killed")
	s.m.Stop()
	for line := range load.Lines { // what was said before the power went
		synced = number(t, line)
	}
	tg.Kill()
	s = d.boot(t, service)
	s.until("journalctl -b -u oneshot-attach@nbd0 | grep -q 'no session yet' && echo yes", "yes")
	tg.Start()
	s.until("systemctl is-active mnt.mount", "active")
	s.expect("findmnt -n -o SOURCE /mnt", "/dev/nbd0")
	s.expect("systemctl show --value -p NRestarts oneshot-attach@nbd0", "0")
	check, err := s.m.Start("@check", "/mnt/records", strconv.Itoa(synced+1))
	must(t, err)
	if out, err := check.Wait(limit); err != nil || check.Exit != 0 {
		t.Fatalf("after the power cut: %v: %s", err, out)
	}
	t.Logf("%d records are there after the power cut", synced+1)

	s.run("cp /mnt/records /mnt/copy") // without a sync
	s.start("systemctl poweroff")
	select {
	case <-s.m.Ended():
	case <-time.After(limit):
		t.Fatalf("the system does not go down\n%s", s.m.Log())
	}
	host(t, "/sbin/e2fsck", "-fn", tg.Dir+"/disk.img")
	head, err := exec.Command("/sbin/dumpe2fs", "-h", tg.Dir+"/disk.img").Output()
	must(t, err)
	if strings.Contains(string(head), "needs_recovery") {
		t.Error("the system has gone down before it has unmounted the disk")
	}
	dump, err := exec.Command("/sbin/debugfs", "-R", "ls -l /", tg.Dir+"/disk.img").Output()
	must(t, err)
	if !strings.Contains(string(dump), "copy") {
		t.Errorf("what was written last is not on the disk:\n%s", dump)
	}
}

// more waits for n more records, and returns the number of the last one.
func more(t *testing.T, load *machine.Command, n int) (last int) {
	t.Helper()
	hung := time.After(limit)
	for range n {
		select {
		case line, ok := <-load.Lines:
			if !ok {
				t.Fatalf("the load ends with %d after record %d", load.Exit, last)
			}
			last = number(t, line)
		case <-hung:
			t.Fatalf("the load does not go on after record %d", last)
		}
	}
	return last
}

func number(t *testing.T, line string) int {
	t.Helper()
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("the load says %q", line)
	}
	return n
}
