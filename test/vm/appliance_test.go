package vm

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	client "oneshot/initiator"
	"oneshot/internal/debian"
	"oneshot/test/vm/machine"
)

// appliance is a machine that boots into the target.
type appliance struct {
	t       *testing.T
	args    []string
	onLAN   bool // on the network of the tests
	dir     string
	console string
	qemu    *exec.Cmd
	exited  chan struct{}
}

// buildAppliance builds the appliance, once for all tests, and returns the directory that it is in.
var buildAppliance = sync.OnceValues(func() (string, error) {
	cache, err := machine.CacheDir()
	if err != nil {
		return "", err
	}
	kernels, err := debian.KernelDir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(cache, "appliance")
	_, err = run(".", "go", "run", "oneshot/appliance/build", "-out", out, "-cache", cache, "-kernels", kernels)
	return out, err
})

// unpackAppliance returns what buildAppliance has built, its kernel and its initramfs not compressed, so that the emulated
// processor does not have to unpack them each time.
var unpackAppliance = sync.OnceValues(func() (*machine.Image, error) {
	dir, err := buildAppliance()
	if err != nil {
		return nil, err
	}
	kernel, err := machine.Unpacked(dir, filepath.Join(dir, "vmlinuz"))
	if err != nil {
		return nil, err
	}
	if _, err := run(dir, "gzip", "-dkf", "initramfs.gz"); err != nil {
		return nil, err
	}
	return &machine.Image{Kernel: kernel, Initramfs: filepath.Join(dir, "initramfs")}, nil
})

// applianceConfig shows a file to TCP and soft-RoCE.
const applianceConfig = `
log: {format: json}
stores:
  disk: {type: file, path: disk.img, size: 64MiB}
targets: [{iqn: "` + iqn + `", luns: {0: disk}}]
portals:
  - {transport: tcp, listen: 0.0.0.0:3260}
  - {transport: verbs, listen: 0.0.0.0:3262, device: rxe0}
`

// newAppliance makes a machine that boots the appliance, with a network of qemu's own whose id is lan, or, if it is empty, on that of the
// tests. Its disk holds the configuration, copies of files, and the stores.
func newAppliance(t *testing.T, network, config string, copies ...string) *appliance {
	t.Helper()
	image, err := unpackAppliance()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "target.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		if _, err := run(".", "cp", "--sparse=always", c, files); err != nil {
			t.Fatal(err)
		}
	}
	disk := filepath.Join(dir, "disk")
	if _, err := run(".", "mkfs.ext4", "-q", "-d", files, disk, "128M"); err != nil {
		t.Fatal(err)
	}
	a := &appliance{t: t, dir: dir, console: filepath.Join(dir, "console"), args: []string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", machine.CPU, "-smp", "2", "-m", "1024",
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", image.Kernel, "-initrd", image.Initramfs,
		"-append", machine.KernelArguments("oneshot.ip=10.8.0.2/24", "oneshot.mtu=9000", "oneshot.config=/dev/vda:/target.yaml"),
		"-drive", "file=" + disk + ",format=raw,if=virtio",
		"-serial", "file:" + filepath.Join(dir, "console"), "-qmp", "unix:" + filepath.Join(dir, "qmp") + ",server=on,wait=off",
	}}
	if network != "" {
		a.args = append(a.args, "-netdev", network, "-device", "virtio-net-pci,netdev=lan,mac=52:54:00:08:00:02,host_mtu=9000")
	}
	a.onLAN = network == ""
	return a
}

// freeAddress is an address at which nobody listens, and nobody will before QEMU does: those who take any port that is
// free do so at 127.0.0.1.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.%d.%d:0", os.Getpid()>>8&0xff, os.Getpid()&0xff))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// boot starts the machine and waits until its portals are open.
func (a *appliance) boot(portals int) {
	a.t.Helper()
	a.bootUntil(`"portal open"`, portals)
}

// bootUntil starts the machine and waits until its console has said something n times.
func (a *appliance) bootUntil(text string, n int) {
	a.t.Helper()
	_ = os.Remove(a.console)
	a.qemu = exec.Command("qemu-system-x86_64", a.args...)
	if a.onLAN {
		c, err := lan.Cable(applianceOnNetwork)
		if err != nil {
			a.t.Fatal(err)
		}
		defer c.File.Close()
		a.qemu.Args, a.qemu.ExtraFiles = append(a.qemu.Args, c.Args...), []*os.File{c.File}
	}
	a.qemu.Stderr = os.Stderr
	a.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.qemu.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.exited = make(chan struct{})
	go func(q *exec.Cmd, done chan struct{}) {
		_ = q.Wait()
		close(done)
	}(a.qemu, a.exited)
	a.t.Cleanup(a.cut)
	a.until(text, n)
}

// until waits until the console has said something n times.
func (a *appliance) until(text string, n int) {
	a.t.Helper()
	for deadline := time.Now().Add(machine.BootTime); ; time.Sleep(50 * time.Millisecond) {
		ended := false
		select {
		case <-a.exited:
			ended = true
		default:
		}
		b, _ := os.ReadFile(a.console)
		if strings.Count(string(b), text) >= n {
			return
		}
		if ended {
			a.t.Fatalf("QEMU has ended, and the appliance has not said %s %d times:\n%s", text, n, b)
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("the appliance has not said %s %d times:\n%s", text, n, b)
		}
	}
}

// cut takes the power away.
func (a *appliance) cut() {
	_ = a.qemu.Process.Kill()
	<-a.exited
}

// pressPower presses the power button, and waits for the end.
func (a *appliance) pressPower() {
	a.t.Helper()
	if err := qmp(filepath.Join(a.dir, "qmp"), "system_powerdown", map[string]any{}); err != nil {
		a.t.Fatal(err)
	}
	a.until("appliance: the end", 1)
	select {
	case <-a.exited:
	case <-time.After(machine.BootTime):
		a.t.Error("the appliance does not power off")
	}
}

// TestAppliance: another machine logs in to the appliance, over soft-RoCE and over TCP. Synced data is there after
// a power cut, and the power button shuts the appliance down in an orderly way.
func TestAppliance(t *testing.T) {
	a := newAppliance(t, "", applianceConfig)
	sharedOnLAN(t, "10.8.0.1")
	a.boot(2)
	i := inGuest(t, "10.8.0.2:3262", "iser")
	i.discoverISER()
	guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
	i.record(nil)
	dev := "/dev/" + i.login(1)[0]
	makeFS(t, "ext4", dev)
	guest.run(t, "@mount", "ext4", dev, "/mnt/d")
	guest.run(t, "@fill", "/mnt/d", "60", strconv.Itoa(4<<20), "5")
	want := guest.run(t, "@sum", "/mnt/d")
	guest.run(t, "@umount", "/mnt/d") // and so synced
	i.logout()
	a.cut()

	a.boot(2)
	tcp := inGuest(t, "10.8.0.2:3260", "default")
	tcp.record(nil)
	dev = "/dev/" + tcp.login(1)[0]
	guest.run(t, "@mount", "ext4", dev, "/mnt/d")
	expect(t, "checksum after a power cut", guest.run(t, "@sum", "/mnt/d"), want)
	guest.run(t, "@umount", "/mnt/d")
	guest.run(t, "e2fsck", "-fn", dev)
	tcp.logout()
	a.pressPower()
}

// TestApplianceAdvertises boots the appliance without a configuration, behind a forwarded port, as it was built and its
// page says: discovery names the address outside, and with that one reads and writes the disk.
func TestApplianceAdvertises(t *testing.T) {
	outside := freeAddress(t)
	a := newAppliance(t, "user,id=lan,hostfwd=tcp:"+outside+"-:3260", applianceConfig)
	a.replace("-append", func(words string) string {
		words, _, _ = strings.Cut(words, " oneshot.")
		return words + " oneshot.advertise=" + outside
	})
	built, err := buildAppliance()
	if err != nil {
		t.Fatal(err)
	}
	a.replace("-kernel", func(string) string { return filepath.Join(built, "vmlinuz") })
	a.replace("-initrd", func(string) string { return filepath.Join(built, "initramfs.gz") })
	a.bootUntil("portal open", 3)
	found, err := client.Discover(t.Context(), client.URL{Address: outside}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || len(found[0].Portals) != 1 || found[0].Portals[0].Address != outside {
		t.Fatalf("discovery by %s names %+v", outside, found)
	}
	s, err := client.Dial(t.Context(), client.URL{Address: found[0].Portals[0].Address, Target: found[0].Name, LUN: -1}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lu, err := s.LU(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	want, got := []byte(strings.Repeat("there", 4096)), make([]byte, 5*4096)
	if _, err := lu.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := lu.ReadAt(got, 0); err != nil || string(got) != string(want) {
		t.Errorf("read back: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	a.pressPower()
}

// replace changes the argument that follows flag.
func (a *appliance) replace(flag string, change func(string) string) {
	a.t.Helper()
	i := slices.Index(a.args, flag)
	if i < 0 {
		a.t.Fatalf("QEMU has no %s", flag)
	}
	a.args[i+1] = change(a.args[i+1])
}
