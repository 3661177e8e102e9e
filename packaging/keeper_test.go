//go:build deb

package packaging

import (
	"strconv"
	"strings"
	"testing"
)

const (
	moves     = "10.0.3.20" // goes with the mirror
	moves860  = moves + ":860"
	lookMoves = "ip -o address show dev eth1 to " + moves + " | wc -l"
)

// keptConfig is of a node whose peer has never joined. DEVICE is a watchdog. The port is one for which a daemon needs a capability.
const keptConfig = `
cluster:
  name: lab
  state: /var/lib/oneshot/cluster
  keeper: {watchdog: DEVICE}
  nodes: {debian: {address: ` + address + `}, other: {address: 10.0.3.16}}
stores:
  disk:
    type: mirror
    size: 16MiB
    copies: {debian: {type: file, path: /var/lib/oneshot/disk.img}, other: {type: file, path: /var/lib/oneshot/disk.img}}
targets: [{iqn: "` + iqn + `", luns: {0: disk}}]
portals: [{mirror: disk, listen: "` + moves860 + `", group: 10, interface: eth1}]
state: /var/lib/oneshot/state
management: {socket: /run/oneshot/target.sock}`

// TestKeeperUnit: the units of the package hold an address that goes with a mirror, and pet a watchdog. While the daemon or the keeper is
// killed, and while both are upgraded, nobody is refused there, the socket stays the same one, and a writer on the host loses nothing. A purge leaves nothing of what was enabled.
func TestKeeperUnit(t *testing.T) {
	s := prepare(t).boot(t, moves860)
	s.until("systemctl is-system-running | grep -v -e starting -e initializing", "running")
	s.run("dpkg -i /root/oneshot_1.0_*.deb")
	s.run("modprobe softdog soft_noboot=1") // says so, instead of a reset
	watchdog := s.run("grep -l 'Software Watchdog' /sys/class/watchdog/*/identity | cut -d / -f 5")
	s.run("cat > /etc/oneshot/target.yaml <<'YAML'\n" + strings.Replace(keptConfig, "DEVICE", "/dev/"+watchdog, 1) + "\nYAML")
	s.run("runuser -u oneshot -- oneshot ha init --config /etc/oneshot/target.yaml")
	s.run("systemctl enable --now oneshot-keeper && systemctl restart oneshot")
	s.until(lookMoves, "1")

	t.Log("the address is there")
	pid := s.show("MainPID")
	s.expect("grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/"+pid+"/status | cut -f 2 | sort -u", "0000000000000000")
	s.expect("cat /sys/class/watchdog/"+watchdog+"/state", "active")
	s.expect("stat -c %U:%G:%a /run/oneshot-keeper /run/oneshot-keeper/keeper.sock | tr '\\n' ' '", "root:oneshot:750 root:oneshot:660")
	w := startWriter(t)
	w.more(50)
	s.run("touch /root/knocking")
	knocker := s.start("while [ -e /root/knocking ]; do { true <>/dev/tcp/" + strings.Replace(moves860, ":", "/", 1) + "; } 2>&1 && echo opened; sleep 0.02; done > /root/knocks")
	s.opens()
	socket := s.run(socketOfMoves)
	for _, c := range []struct{ what, command, unit, restarts string }{
		{"the daemon was killed", "systemctl kill -s KILL oneshot", "oneshot", "1"},
		{"the keeper was killed", "systemctl kill -s KILL oneshot-keeper", "oneshot-keeper", "1"},
		{"the daemon was killed again", "systemctl kill -s KILL oneshot", "oneshot", "2"},
		{"the package was upgraded", "dpkg --force-confold -i /root/oneshot_2.0_*.deb", "oneshot", "0"},
	} {
		s.run(c.command)
		s.until("systemctl show --value -p NRestarts "+c.unit, c.restarts)
		s.until(bothListen, "1")
		s.until(lookMoves, "1")
		w.more(50)
		s.opens()
		if now := s.run(socketOfMoves); now != socket {
			t.Errorf("%s: the socket that listens was %s, and is %s", c.what, socket, now)
		}
		t.Log(c.what)
	}
	w.end()
	s.run("rm /root/knocking")
	if _, err := knocker.Wait(limit); err != nil {
		t.Fatal(err)
	}
	s.expect("grep -c refused /root/knocks || true", "0")
	s.until("journalctl -u oneshot-keeper | grep -c 'an address was removed' | sed 's/[1-9].*/some/'", "some") // 0.3 s after the daemon, which starts 1 s later
	if out, _ := s.try("journalctl -u 'oneshot*' | grep -i -e 'not permitted' -e 'permission denied' -e 'could not be done'"); out != "" {
		t.Errorf("the journal says\n%s", out)
	}

	s.run("systemctl enable oneshot-attach@nbd0")
	s.run("dpkg -r oneshot")
	s.expect("systemctl is-active oneshot oneshot-keeper | sort -u", "inactive")
	s.until(lookMoves, "0")
	s.expect("cat /sys/class/watchdog/"+watchdog+"/state", "inactive")
	s.run("dpkg --purge oneshot && systemctl daemon-reload")
	s.expect("find /etc /var/lib/systemd -name '*oneshot*'", "")
	s.expect("ls -d /run/oneshot* 2>/dev/null || true", "")
	s.expect("systemctl list-units --failed --no-legend", "")
}

const (
	// socketOfMoves says which socket listens at the address that moves.
	socketOfMoves = "ss -Hltne src " + moves860 + " 2>/dev/null | grep -o 'ino:[0-9]*'"
	// bothListen says 1 if the daemon and the keeper that run now have it.
	bothListen = "ss -Hltnp src " + moves860 + " | grep pid=$(systemctl show --value -p MainPID oneshot), | grep -c pid=$(systemctl show --value -p MainPID oneshot-keeper),"
)

// opens waits until connections are made at the address that moves.
func (s *system) opens() {
	s.t.Helper()
	const opened = "grep -c opened /root/knocks"
	out, _ := s.try(opened)
	n, _ := strconv.Atoi(out) // 0: there are none yet
	s.until("test $("+opened+") -gt "+strconv.Itoa(n+5)+" && echo yes", "yes")
}
