//go:build blktests

// Package blktests runs the nvme group of blktests, the tests of Linux's block layer, against the daemon: in a virtual machine
// whose kernel is Debian's, with the programs of this machine. scripts/blktests-target is what blktests asks for a target.
//
// It is built with the tag blktests alone. BLKTESTS names the directory of blktests, as make blktests BLKTESTS=DIR does. A test that does not
// pass must be listed in exceptions.go with the reason, and a listed test that passes is an error, too, so that the
// list stays true. One test:
//
//	make blktests BLKTESTS=DIR RUN=010
package blktests

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oneshot/internal/debian"
	"oneshot/test/targettest"
	"oneshot/test/vm/machine"
)

const (
	envDir = "BLKTESTS"
	// testTime is a limit that only a test that hangs reaches.
	testTime = 30 * time.Minute
	// root is where the guest has the files of this machine, which it can change for itself.
	root = "/mnt/root"
)

// modules are those that the guest loads; blktests loads others.
var modules = []string{"virtio_pci", "virtio_net", "virtio_console", "crc32c_generic", "9pnet_virtio", "9p", "overlay", "configfs", "loop", "nvme_tcp", "nvmet_tcp"}

// prepare makes root, with what is mounted there in any system. Its argument is the directory of the kernel's modules.
const prepare = `set -e
mkdir -p /mnt/lower /mnt/up /mnt/work /mnt/modules/up /mnt/modules/work ` + root + `
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /mnt/lower
mount -t overlay -o lowerdir=/mnt/lower,upperdir=/mnt/up,workdir=/mnt/work none ` + root + `
mount --bind /proc ` + root + `/proc
mount --bind /sys ` + root + `/sys
mount --bind /dev ` + root + `/dev
mount -t tmpfs none ` + root + `/run
mount -t configfs none ` + root + `/sys/kernel/config
at=` + root + `/usr/lib/modules/${1##*/}
mkdir -p $at
mount --bind /mnt/lower$1 $at
`

// guest is a machine with blktests in it.
type guest struct {
	*machine.Machine
	t *testing.T
}

// boot starts the machine. dir is that of blktests.
func boot(t *testing.T, dir string) *guest {
	t.Helper()
	cache, err := machine.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	k, err := debian.Fetch(cache)
	if err != nil {
		t.Fatal(err)
	}
	unpacked := strings.TrimSuffix(k.Modules, "/lib/modules/"+k.Version)
	if _, err := debian.Run(".", "depmod", "-b", unpacked, k.Version); err != nil { // for modprobe
		t.Fatal(err)
	}
	img, err := machine.Build(cache, k, machine.Contents{
		Modules: modules, Programs: []string{"/bin/bash", "/bin/mount", "/bin/mkdir", "/usr/sbin/chroot"},
	})
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "blk") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	m, err := machine.Boot(img, tmp, "-m", "4096",
		"-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	g := &guest{m, t}
	g.run(time.Minute, "bash", "-c", prepare, "prepare", k.Modules)
	scripts, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	g.in(testTime, fmt.Sprintf(`ln -s /proc/self/fd /dev/fd && ln -s fd/0 /dev/stdin && ln -s fd/1 /dev/stdout && ln -s fd/2 /dev/stderr && mkdir -p /run/judge/scripts /run/judge/tests && cp %s/scripts/blktests-target /run/judge/scripts/ && cp %s /run/judge/target && cp -r %s/. /run/judge/tests/`,
		scripts, targettest.Binary(t), dir))
	return g
}

// run runs a command, and returns its output and its exit status.
func (g *guest) run(limit time.Duration, argv ...string) (string, int) {
	g.t.Helper()
	c, err := g.Start(argv...)
	if err != nil {
		g.t.Fatal(err)
	}
	out, err := c.Wait(limit)
	if err != nil {
		g.t.Fatalf("%v\n%s", err, g.Log())
	}
	return out, c.Exit
}

// in runs a line of bash in root.
func (g *guest) in(limit time.Duration, line string) string {
	g.t.Helper()
	out, exit := g.run(limit, "chroot", root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb",
		"TARGET=/run/judge/target", "SIZE=512MiB", "NVME_TARGET_CONTROL=/run/judge/scripts/blktests-target", "NVME_IMG_SIZE=512M", "NVME_NUM_ITER=10", "TIMEOUT=30", "SYSTEMD_IGNORE_CHROOT=1", // for udevadm
		"/bin/bash", "-c", line)
	if exit != 0 && !strings.Contains(line, "./check") {
		g.t.Fatalf("%s: exit %d\n%s", line, exit, out)
	}
	return out
}

// verdictLine is the one with which a test ends.
var verdictLine = regexp.MustCompile(`(?m)^nvme/\d+ .*\[(passed|failed|not run)\]\s*\n((?: {4}.*\n)*)`)

// TestBlktests runs every test of the group, one after the other.
func TestBlktests(t *testing.T) {
	dir, err := filepath.Abs(os.Getenv(envDir))
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "tests/nvme/[0-9][0-9][0-9]"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no tests/nvme: say where blktests is, make blktests BLKTESTS=DIR", dir)
	}
	g := boot(t, dir)
	for _, path := range names {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			g.t = t
			out := g.in(testTime, "cd /run/judge/tests && timeout 1200 ./check nvme/"+name)
			m := verdictLine.FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("there is no verdict in\n%s", out)
			}
			why, excepted := exceptions[name]
			t.Logf("[%s] %s", m[1], strings.Join(strings.Fields(m[2]), " "))
			switch {
			case m[1] == "passed" && excepted:
				t.Errorf("it passes, and exceptions.go says that it does not: %s", why)
			case m[1] != "passed" && !excepted:
				t.Errorf("%s\nthe daemon:\n%s\nthe kernel:\n%s", out, g.in(time.Minute, "tail -n 30 /run/oneshot-blktests/log || true"), g.in(time.Minute, "dmesg | tail -n 40"))
			}
		})
	}
	for name := range exceptions {
		if !slices.ContainsFunc(names, func(path string) bool { return filepath.Base(path) == name }) {
			t.Logf("exceptions.go has %s, and this blktests does not", name)
		}
	}
}
