// Package newer tests the target with the kernel of a newer Debian, for what this release's has not: authentication of NVMe.
package newer

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"oneshot/internal/debian"
	"oneshot/test/targettest"
	"oneshot/test/vm/machine"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const (
	suite = "trixie"
	// runTime is a limit that only a command that hangs reaches.
	runTime = 10 * time.Minute
)

// boot starts a machine with the kernel of suite.
func boot(t *testing.T) *machine.Machine {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cache, err := machine.CacheDir()
	check(err)
	check(os.MkdirAll(cache, 0o755))
	k, err := debian.FetchKernelFrom(cache, suite)
	check(err)
	img, err := machine.Build(cache, k, machine.Contents{
		Modules:  []string{"virtio_pci", "virtio_net", "virtio_console", "nvme_tcp"},
		Programs: []string{"/usr/sbin/nvme", "/bin/dmesg", "/bin/bash", "/usr/bin/dd", "/usr/bin/cmp"},
	})
	check(err)
	m, err := machine.Boot(img, t.TempDir())
	check(err)
	t.Cleanup(m.Stop)
	return m
}

const (
	nqn        = "nqn.2026-11.example.oneshot:vm"
	hostNQN    = "nqn.2014-08.org.nvmexpress:uuid:6d1e2f3a-4b5c-4d6e-8f70-8192a3b4c5d6"
	hostID     = "6d1e2f3a-4b5c-4d6e-8f70-8192a3b4c5d6"
	hostSecret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	ctrlSecret = "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:"
	wrong      = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"
)

// TestAuthenticationOfLinux: Linux' own host proves itself, and has the controller prove itself, with each hash function and groups up to ffdhe3072, and
// uses the disk. With a wrong secret of either side it does not. An emulated processor computes for half a minute with ffdhe4096 and
// ffdhe6144, which come with ONESHOT_GROUPS set, and for minutes with ffdhe8192.
func TestAuthenticationOfLinux(t *testing.T) {
	m := boot(t)
	run := func(argv ...string) (string, int) {
		t.Helper()
		c, err := m.Start(argv...)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Wait(runTime)
		if err != nil {
			t.Fatalf("%v\n%s", err, m.Log())
		}
		return out, c.Exit
	}
	type proof struct{ name, hash, group, host, ctrl, fails string }
	proofs := []proof{
		{"sha256, null", "sha256", "'null'", hostSecret, ctrlSecret, ""},
		{"sha384, ffdhe2048", "sha384", "ffdhe2048", hostSecret, ctrlSecret, ""},
		{"sha512, ffdhe3072", "sha512", "ffdhe3072", hostSecret, ctrlSecret, ""},
		{"the host's secret is wrong", "sha256", "ffdhe2048", wrong, "", "the host has not proved who it is"},
		{"the controller's is", "sha256", "ffdhe2048", hostSecret, wrong, "the host refuses the controller"},
	}
	if os.Getenv("ONESHOT_GROUPS") != "" {
		proofs = append(proofs, proof{"sha256, ffdhe4096", "sha256", "ffdhe4096", hostSecret, ctrlSecret, ""},
			proof{"sha256, ffdhe6144", "sha256", "ffdhe6144", hostSecret, "", ""})
	}
	for _, c := range proofs {
		t.Run(c.name, func(t *testing.T) {
			tg := targettest.Start(t, `
stores: {d: {type: memory, size: 16MiB}}
subsystems:
  - nqn: "`+nqn+`"
    namespaces: {1: d}
    auth: {dhchap_secret: "`+hostSecret+`", dhchap_ctrl_secret: "`+ctrlSecret+`", dhchap_hashes: [`+c.hash+`], dhchap_groups: [`+c.group+`]}
portals: [{transport: nvme-tcp, listen: $PORTAL}]
limits: {login_timeout: 1h} # an emulated processor computes for long
`)
			_, port, err := net.SplitHostPort(tg.Portal())
			if err != nil {
				t.Fatal(err)
			}
			connect := []string{"nvme", "connect", "-t", "tcp", "-a", "10.0.2.2", "-s", port, "-n", nqn, "--hostnqn=" + hostNQN, "--hostid=" + hostID, "-i", "1", "--dhchap-secret=" + c.host}
			if c.ctrl != "" {
				connect = append(connect, "--dhchap-ctrl-secret="+c.ctrl)
			}
			out, exit := run(connect...)
			if c.fails != "" {
				if exit == 0 || !strings.Contains(tg.Log(), c.fails) {
					t.Errorf("nvme connect says %d: %s\n%s", exit, out, tg.Log())
				}
				return
			}
			if exit != 0 {
				d, _ := run("dmesg")
				t.Fatalf("nvme connect: %s\n%s", out, d)
			}
			const use = `set -e
while ! [ -b /dev/nvme*n1 ]; do :; done
dd if=/dev/urandom of=/tmp/x bs=64k count=16 2>/dev/null
dd if=/tmp/x of=$(echo /dev/nvme*n1) bs=64k oflag=direct 2>/dev/null
dd if=$(echo /dev/nvme*n1) of=/tmp/y bs=64k count=16 iflag=direct 2>/dev/null
cmp /tmp/x /tmp/y`
			if out, exit := run("bash", "-c", use); exit != 0 {
				t.Errorf("the disk: %s", out)
			}
			mutual := "mutual=" + map[bool]string{true: "true", false: "false"}[c.ctrl != ""]
			if log := tg.Log(); !strings.Contains(log, `by="`+c.hash+" "+strings.Trim(c.group, "'")+`"`) || !strings.Contains(log, mutual) {
				t.Errorf("the log does not say what was proved: %s", log)
			}
			if out, exit := run("nvme", "disconnect", "-n", nqn); exit != 0 {
				t.Errorf("nvme disconnect: %s", out)
			}
		})
	}
}
