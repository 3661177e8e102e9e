//go:build blktests

// Package blktests runs groups of blktests, the tests of Linux's block layer, in a virtual machine whose kernel is Debian's, with the
// programs of this machine: nvme against the daemon, which scripts/blktests-target runs as blktests asks, and nbd against initiator attach, for
// which scripts/blktests-nbd stands in for NBD's programs.
//
// It is built with the tag blktests alone. BLKTESTS names the directory of blktests, as make blktests BLKTESTS=DIR does. A test that does not
// pass must be listed in exceptions.go with the reason, and a listed test that passes is an error, too, so that the
// list stays true, unless the test tries something else than our programs. A test that hangs takes its machine with it, and the next one gets another. One test:
//
//	make blktests BLKTESTS=DIR RUN=010
package blktests

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	// envKernel names a release of Debian whose kernel the guest has, if not this one: trixie has authentication of NVMe.
	envKernel = "BLKTESTS_KERNEL"
	// envGroup is the group of tests: nvme, or nbd, which tries initiator attach.
	envGroup = "BLKTESTS_GROUP"
	// envOver is the transport: tcp, or rdma, which is soft-RoCE.
	envOver = "BLKTESTS_OVER"
	// testTime is a limit that only a test that hangs reaches. grace is what blktests may need to clean up when it is over.
	testTime = 15 * time.Minute
	grace    = 2 * time.Minute
)

// modules are those that the guest loads; blktests loads others.
var modules = []string{"crc32c_generic", "configfs", "loop", "nvme_tcp", "nvmet_tcp"}

// prepare is done outside of root. Its argument is the directory of the kernel's modules.
const prepare = `set -e
mount -t configfs none ` + machine.Root + `/sys/kernel/config
at=` + machine.Root + `/usr/lib/modules/${1##*/}
mkdir -p $at
mount --bind ` + machine.Lower + `$1 $at
`

// settle is done in root, once. Its arguments are the directories of this package, of blktests and of the kernel's files, the daemon and the initiator.
// nvme is a program that first has the daemon get the secrets that a test has written for Linux's own target.
const settle = `set -e
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t debugfs none /sys/kernel/debug || true
mkdir -p /run/judge/{bin,scripts,tests} /boot
cp $1/../../scripts/blktests-{target,nbd} /run/judge/scripts/
ln -s ../scripts/blktests-nbd /run/judge/bin/nbd-server
ln -s ../scripts/blktests-nbd /run/judge/bin/nbd-client
cp -r $2/. /run/judge/tests/
cp $3/config-$(uname -r) /boot/
cp $4 /run/judge/target
cp $5 /run/judge/initiator
printf '#!/bin/bash\n/run/judge/scripts/blktests-target sync\nexec /usr/sbin/nvme "$@"\n' >/run/judge/bin/nvme
chmod +x /run/judge/bin/nvme
[ -z "$UDEV" ] || /lib/systemd/systemd-udevd --daemon
[ "$TRTYPE" = rdma ] || exit 0
modprobe -a dummy crc32_generic rdma_rxe rdma_ucm ib_uverbs nvme_rdma nvmet_rdma
ip link add rd0 type dummy
ip link set dev rd0 mtu 9000 up # the largest packets of RoCE
ip addr add $ADDRESS/24 dev rd0
rdma link add rxe0 type rxe netdev rd0
`

// settings has the variables of blktests and of its two scripts here, for each group and transport.
var settings = map[string][]string{
	"nvme tcp":  {"TRTYPE=tcp", "SIZE=512MiB"},
	"nvme rdma": {"TRTYPE=rdma", "ADDRESS=10.9.0.1", "USE_RXE=1", "SIZE=512MiB"},
	"nbd tcp": {
		"SIZE=10GiB",
		"UDEV=1", // which opens a new device, and has the kernel look for partitions
		"REAPER=unshare --pid --fork --kill-child --mount-proc", // the guest's first process leaves zombies, and a test looks for processes
	},
}

// guest is a machine with blktests in it.
type guest struct {
	*machine.Rooted
	group string
}

// conditions are what a run is made with.
type conditions struct {
	dir       string // of blktests
	group     string // of its tests
	over      string // the transport
	target    string // the programs
	initiator string
}

// boot starts a machine.
func (c *conditions) boot() (*guest, error) {
	cache, err := machine.CacheDir()
	if err != nil {
		return nil, err
	}
	k, err := kernel(cache)
	if err != nil {
		return nil, err
	}
	unpacked := strings.TrimSuffix(k.Modules, "/lib/modules/"+k.Version)
	if _, err := debian.Run(".", "depmod", "-b", unpacked, k.Version); err != nil { // for modprobe
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	m, err := machine.BootRooted(cache, k, "/", modules, append([]string{
		"PATH=/run/judge/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb",
		"TARGET=/run/judge/target", "INITIATOR=/run/judge/initiator", "LOGIN_TIMEOUT=1h", "NVME_TARGET_CONTROL=/run/judge/scripts/blktests-target", "NVME_IMG_SIZE=512M", "NVME_NUM_ITER=10", "TIMEOUT=30",
		"SYSTEMD_IGNORE_CHROOT=1", // for udevadm
	}, settings[c.group+" "+c.over]...))
	if err != nil {
		return nil, err
	}
	_, err = m.Run(grace, "bash", "-c", prepare, "prepare", k.Modules)
	if err == nil {
		_, err = m.In(5*grace, settle, here, c.dir, filepath.Dir(k.Image), c.target, c.initiator)
	}
	if err != nil {
		m.Stop()
		return nil, err
	}
	return &guest{m, c.group}, nil
}

// kernel returns the one that the guest boots.
func kernel(cache string) (*debian.Kernel, error) {
	if suite := os.Getenv(envKernel); suite != "" {
		return debian.FetchKernelFrom(cache, suite)
	}
	dir, err := debian.KernelDir()
	if err != nil {
		return nil, err
	}
	return debian.Fetch(dir)
}

func (g *guest) stop() { g.Stop() }

// check runs a test. blktests fails if its test does; what counts is what it prints.
func (g *guest) check(name string) (string, error) {
	out, err := g.In(testTime+2*grace, fmt.Sprintf(`cd /run/judge/tests && timeout -k %.0f %.0f $REAPER ./check %s/%s`, grace.Seconds(), testTime.Seconds(), g.group, name))
	const late, killed = 124, 137 // what timeout says
	if e, failed := errors.AsType[*machine.ExitError](err); err == nil || failed && e.Exit != late && e.Exit != killed {
		return out, nil
	}
	return out, fmt.Errorf("%w\n%s", err, g.tell())
}

// tell returns what the daemon and the kernel say, and which processes hang in the kernel.
func (g *guest) tell() string {
	out, err := g.In(grace, `echo "what was said:"; tail -n 40 /run/oneshot-blktests/log /run/oneshot-nbd/*.log
echo "processes:"; ps -eo pid,ppid,stat,wchan:20,args --forest | grep -v '\]$'
echo w >/proc/sysrq-trigger
echo "the kernel:"; dmesg | tail -n 120`)
	if err != nil {
		out += "\n" + err.Error() + "\n" + g.Log()
	}
	return out
}

// TestBlktests runs every test of the group, one after the other.
func TestBlktests(t *testing.T) {
	dir, err := filepath.Abs(os.Getenv(envDir))
	if err != nil {
		t.Fatal(err)
	}
	c := &conditions{dir: dir, group: cmp.Or(os.Getenv(envGroup), "nvme"), over: cmp.Or(os.Getenv(envOver), "tcp")}
	if settings[c.group+" "+c.over] == nil {
		t.Fatalf("%s=%s, %s=%s: there are %v", envGroup, c.group, envOver, c.over, slices.Sorted(maps.Keys(settings)))
	}
	names, err := filepath.Glob(filepath.Join(dir, "tests", c.group, "[0-9][0-9][0-9]"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no tests/%s: say where blktests is, make blktests BLKTESTS=DIR", dir, c.group)
	}
	c.target, c.initiator = targettest.Binary(t), filepath.Join(t.TempDir(), "initiator")
	if _, err := debian.Run(".", "go", "build", "-o", c.initiator, "oneshot/cmd/initiator"); err != nil {
		t.Fatal(err)
	}
	s := &suite{boot: func() (place, error) { return c.boot() }}
	defer s.stop()
	for _, path := range names {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			v := s.run(name)
			e := excepted(c.group+"/"+name, os.Getenv(envKernel))
			t.Logf("[%s] %s", v.status, v.detail)
			switch {
			case v.status == "passed" && e.why != "" && !e.other:
				t.Errorf("it passes, and exceptions.go says that it does not: %s", e.why)
			case v.status == none || v.status != "passed" && e.why == "":
				t.Error(v.out)
				if g, ok := s.at.(*guest); ok {
					t.Log(g.tell())
				}
			}
		})
	}
}
