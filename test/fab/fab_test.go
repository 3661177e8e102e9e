//go:build nvmfabtest

package fab

import (
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
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

func TestMain(m *testing.M) { targettest.Main(m) }

const (
	envDir = "NVMFABTEST"
	// release is the Debian whose kernel and programs the guest has.
	release = "trixie"
	// runTime is a limit that only a suite that hangs reaches, grace that of what comes before and after.
	runTime = 30 * time.Minute
	grace   = 5 * time.Minute
	host    = "10.0.2.2" // where QEMU has the guest find this machine

	nqn        = "nqn.2026-11.example.oneshot:fab"
	authNQN    = "nqn.2026-11.example.oneshot:fab-auth"
	hostID     = "6d1e2f3a-4b5c-4d6e-8f70-8192a3b4c5d6"
	hostNQN    = "nqn.2014-08.org.nvmexpress:uuid:" + hostID
	hostSecret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
)

// packages are those that the suite needs.
var packages = []string{
	"base-files", "bash", "coreutils", "dash", "sed", "grep", "util-linux", "mount", "kmod", "iproute2", "net-tools", "fio", "nvme-cli",
	"python3", "python3-pytest", "python3-loguru",
}

// standIns are modules of Python that the suite imports.
//
//go:embed standin
var standIns embed.FS

// config serves two disks. A host has to prove itself for the second one.
const config = `
stores: {d: {type: memory, size: 32MiB}, e: {type: memory, size: 16MiB}}
subsystems:
  - {nqn: "` + nqn + `", namespaces: {1: d}}
  - {nqn: "` + authNQN + `", namespaces: {1: e}, auth: {dhchap_secret: "` + hostSecret + `", dhchap_groups: [ffdhe2048]}}
portals: [{transport: nvme-tcp, listen: $PORTAL}]
limits: {login_timeout: 1h} # an emulated processor computes for long
`

// settings is the suite's config/ts_config.json. A discovery log has the discovery service first.
func settings(port string) (string, error) {
	at := func(index int, more map[string]any) map[string]any {
		all := map[string]any{"transport": "tcp", "addr": host, "svcid": port, "index": index}
		maps.Copy(all, more)
		return all
	}
	b, err := json.Marshal(map[string]any{
		"app_name": "nvme-cli", "device_path": "", "connectByIP": "true", "disconnectOnDone": "true",
		"connectDetails": at(1, nil), "test_link_failure": "true", "test_authentication": "true",
		"test_auth_config": at(2, map[string]any{"dhchap_host": hostSecret, "dhchap_ctrl": "", "hostnqn": hostNQN}),
	})
	return string(b), err
}

// settle makes what the suite needs. Its arguments are the settings, and after them names and texts of stand-ins. Two files are not in the suite as it
// is published: a module of its own that it imports and that has to hold nothing, and bytes to write.
const settle = `set -e
mkdir -p /run/fab /run/standin /etc/nvme /mnt/suite /dev/shm
mount -t tmpfs none /dev/shm
mount -t 9p -o trans=virtio,version=9p2000.L,ro suite /mnt/suite
cp -r /mnt/suite/. /run/fab/
cd /run/fab
: >lib/structlib/struct_nvm_cmd_lib.py
head -c 512 /dev/urandom >assets/random_bytes.txt
printf %s "$1" >config/ts_config.json
echo ` + hostNQN + ` >/etc/nvme/hostnqn
echo ` + hostID + ` >/etc/nvme/hostid
shift
while [ $# -gt 0 ]; do
	mkdir -p "$(dirname "/run/standin/$1")"
	printf %s "$2" >"/run/standin/$1"
	shift 2
done
`

// boot starts a machine with the suite of dir in it.
func boot(t *testing.T, dir, settings string) *machine.Rooted {
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
	k, err := debian.FetchKernelFrom(cache, release)
	check(err)
	root, err := debian.FetchRoot(cache, release, packages...)
	check(err)
	m, err := machine.BootRooted(cache, k, root, []string{"nvme_tcp"}, []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", "PYTHONPATH=/run/standin",
	}, "-virtfs", machine.Share(dir, "suite"))
	check(err)
	t.Cleanup(m.Stop)
	args := []string{settings}
	check(fs.WalkDir(standIns, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := standIns.ReadFile(name)
		args = append(args, strings.TrimPrefix(name, "standin/"), string(text))
		return err
	}))
	_, err = m.In(grace, settle, args...)
	check(err)
	return m
}

// TestNvmFabTest runs every case of the suite.
func TestNvmFabTest(t *testing.T) {
	dir, err := filepath.Abs(os.Getenv(envDir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "test_cases")); err != nil {
		t.Fatalf("say where nvmFabTest is, make nvmfabtest NVMFABTEST=DIR: %v", err)
	}
	tg := targettest.Start(t, config)
	_, port, err := net.SplitHostPort(tg.Portal())
	if err != nil {
		t.Fatal(err)
	}
	conf, err := settings(port)
	if err != nil {
		t.Fatal(err)
	}
	m := boot(t, dir, conf)
	said, err := m.In(runTime, `cd /run/fab && python3 -m pytest -p pytest_html --junit-xml=/run/report.xml`)
	if _, failed := errors.AsType[*machine.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	text, err := m.In(grace, `cat /run/report.xml`)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	all, err := verdicts(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			v, except := all[name], exceptions[name]
			t.Logf("[%s] %s", v.status, v.why)
			switch {
			case v.status == "passed" && except != "":
				t.Errorf("it passes, and exceptions.go says that it does not: %s", except)
			case v.status != "passed" && except == "":
				t.Error(v.text)
			}
		})
	}
	for name := range exceptions {
		if _, there := all[name]; !there {
			t.Errorf("exceptions.go has %s, and the suite has not", name)
		}
	}
	if t.Failed() {
		kernel, _ := m.In(grace, `dmesg | tail -n 120`)
		t.Logf("%s\n%s", said, kernel)
	}
}
