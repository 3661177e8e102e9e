package vm

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/test/vm/machine"
)

// appliance is a machine that boots into the target.
type appliance struct {
	t       *testing.T
	args    []string
	dir     string
	console string
	qemu    *exec.Cmd
	exited  chan struct{}
}

// newAppliance builds the appliance. Its disk holds a configuration, and the store of a LUN.
func newAppliance(t *testing.T, lan string) *appliance {
	t.Helper()
	cache, err := machine.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(cache, "appliance")
	if _, err := run(".", "go", "run", "oneshot/appliance/build", "-out", out, "-cache", cache); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	const config = `
log: {format: json}
stores:
  disk: {type: file, path: disk.img, size: 64MiB}
targets: [{iqn: "` + iqn + `", luns: {0: disk}}]
portals:
  - {transport: tcp, listen: 0.0.0.0:3260}
  - {transport: verbs, listen: 0.0.0.0:3262, device: rxe0}
`
	if err := os.WriteFile(filepath.Join(files, "target.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "disk")
	if _, err := run(".", "mkfs.ext4", "-q", "-d", files, disk, "128M"); err != nil {
		t.Fatal(err)
	}
	return &appliance{t: t, dir: dir, console: filepath.Join(dir, "console"), args: []string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(out, "vmlinuz"), "-initrd", filepath.Join(out, "initramfs.gz"),
		"-append", machine.KernelArguments("oneshot.ip=10.8.0.2/24", "oneshot.mtu=9000", "oneshot.config=/dev/vda:/target.yaml"),
		"-netdev", "socket,id=lan,connect=" + lan, "-device", "virtio-net-pci,netdev=lan,mac=52:54:00:08:00:02,host_mtu=9000",
		"-drive", "file=" + disk + ",format=raw,if=virtio",
		"-serial", "file:" + filepath.Join(dir, "console"), "-qmp", "unix:" + filepath.Join(dir, "qmp") + ",server=on,wait=off",
	}}
}

// boot starts the machine and waits until its portals are open.
func (a *appliance) boot(portals int) {
	a.t.Helper()
	_ = os.Remove(a.console)
	a.qemu = exec.Command("qemu-system-x86_64", a.args...)
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
	a.until(`"portal open"`, portals)
}

// until waits until the console has said something n times.
func (a *appliance) until(text string, n int) {
	a.t.Helper()
	for deadline := time.Now().Add(machine.BootTime); ; time.Sleep(50 * time.Millisecond) {
		b, _ := os.ReadFile(a.console)
		if strings.Count(string(b), text) >= n {
			return
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

// TestAppliance: a machine that is nothing but a target, and another that logs in to it, over
// soft-RoCE and over TCP. What was synced is there after a power cut, and the power button ends
// it in good order.
func TestAppliance(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lan := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a := newAppliance(t, lan)
	peer, err := boot(guestImage, t.TempDir(), "-netdev", "socket,id=lan,listen="+lan,
		"-device", "virtio-net-pci,netdev=lan,mac=52:54:00:08:00:01,host_mtu=9000")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Stop()
	onOther(peer, func() {
		for _, c := range []string{
			"ip link set dev eth1 mtu 9000 up", "ip addr add 10.8.0.1/24 dev eth1", "rdma link add rxe1 type rxe netdev eth1",
		} {
			guest.run(t, strings.Fields(c)...)
		}
		a.boot(2)
		i := inGuest(t, "10.8.0.2:3262", "iser")
		if found := i.adm("discovery", "-t", "sendtargets", "-p", i.portal, "-I", "iser"); !strings.Contains(found, iqn) {
			t.Errorf("discovery says %q", found)
		}
		guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
		i.record(nil)
		dev := "/dev/" + i.login(1)[0]
		makeFS(t, "ext4", dev)
		guest.run(t, "@mount", "ext4", dev, "/mnt/d")
		guest.run(t, "@fill", "/mnt/d", "60", strconv.Itoa(8<<20), "5")
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
	})
}
