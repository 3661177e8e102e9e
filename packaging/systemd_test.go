//go:build deb

// Package packaging tests the Debian package on a Debian system with systemd, in a virtual machine. make test-deb
// runs it, as root.
package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"oneshot/internal/debian"
	"oneshot/test/vm/machine"
)

const (
	iqn     = "iqn.2026-11.example.oneshot:demo"
	forward = "127.0.0.1:25590" // on the host, leads to a port of the machine
	address = "10.0.3.15"       // in the machine
	service = address + ":3260"
	limit   = 3 * time.Minute // only a machine that hangs reaches it
)

// packages lists the packages of the system in addition to Debian's minimal ones.
const packages = "systemd-sysv,udev,dbus,kmod,iproute2,linux-image-amd64,initramfs-tools,rdma-core,librdmacm1,ibverbs-providers"

// system is a running Debian system.
type system struct {
	t *testing.T
	m *machine.Machine
}

// start runs a shell command in the system.
func (s *system) start(command string) *machine.Command {
	s.t.Helper()
	c, err := s.m.Start("/bin/bash", "-c", command)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// try runs a command to its end.
func (s *system) try(command string) (string, int) {
	s.t.Helper()
	c := s.start(command)
	out, err := c.Wait(limit)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.m.Log())
	}
	return strings.TrimSpace(out), c.Exit
}

// run runs a command to its end; it has to succeed.
func (s *system) run(command string) string {
	s.t.Helper()
	out, exit := s.try(command)
	if exit != 0 {
		s.t.Fatalf("%s: exit %d\n%s\n%s", command, exit, out, s.journal())
	}
	return out
}

// journal returns what the services have said last.
func (s *system) journal() string {
	out, _ := s.try("journalctl --no-pager -u 'oneshot*' -n 60")
	return out
}

func (s *system) expect(command, want string) {
	s.t.Helper()
	if got := s.run(command); got != want {
		s.t.Errorf("%s says %q, want %q", command, got, want)
	}
}

// show returns a property of the service.
func (s *system) show(property string) string {
	s.t.Helper()
	return s.run("systemctl show --value -p " + property + " oneshot")
}

// configure makes the service serve a configuration.
func (s *system) configure(config string) {
	s.t.Helper()
	s.run("cat > /etc/oneshot/target.yaml <<'YAML'\n" + config + "\nYAML")
	s.run("systemctl reload oneshot")
}

// until waits until the output of a command is want.
func (s *system) until(command, want string) {
	s.t.Helper()
	for deadline := time.Now().Add(limit); ; {
		out, _ := s.try(command)
		if out == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s says %q, not %q\n%s", command, out, want, s.journal())
		}
	}
}

// TestSystemd tests the package from its installation to its purge. Meanwhile a writer on the host goes on in
// spite of everything that interrupts the daemon, and reads back what it wrote.
func TestSystemd(t *testing.T) {
	s := prepare(t).boot(t, service)
	s.until("systemctl is-system-running | grep -v -e starting -e initializing", "running")
	t.Log("the system is up")
	s.run("dpkg -i /root/oneshot_1.0_*.deb")
	for property, want := range map[string]string{
		"Type": "notify", "ActiveState": "active", "UnitFileState": "enabled", "User": "oneshot", "WatchdogUSec": "30s", "StatusText": "serving",
	} {
		if got := s.show(property); got != want {
			t.Errorf("%s of the service is %q, want %q", property, got, want)
		}
	}
	s.expect("stat -c %U:%G:%a /etc/oneshot/target.yaml /var/lib/oneshot /run/oneshot/target.sock | tr '\\n' ' '", "root:oneshot:640 oneshot:oneshot:750 oneshot:oneshot:600")

	// The hardening of the unit allows io_uring with O_DIRECT, and RDMA devices.
	s.run("modprobe rdma_rxe && modprobe rdma_ucm && rdma link add rxe0 type rxe netdev eth1")
	s.configure(config)
	if out := s.run("oneshot status"); !strings.Contains(out, "tcp 0.0.0.0:3260, verbs "+address+":3265") {
		t.Errorf("oneshot status says\n%s", out)
	}
	s.until("journalctl -u oneshot | grep -c 'portal open.*transport=verbs'", "1")
	rdma := "oneshot-initiator inquiry 'iser+verbs://" + address + ":3265/" + iqn + "/0?device=rxe0'"
	if out := s.run(rdma); !strings.Contains(out, "ONESHOT") {
		t.Errorf("over RDMA the disk says\n%s", out)
	}
	s.expect("ls /var/lib/oneshot", "disk.img\nstate")

	t.Log("the service runs")
	w := startWriter(t)
	w.more(50)
	s.configure(strings.Replace(config, "{0: disk}", "{0: disk, 7: small}", 1))
	if out := s.run("oneshot status"); !strings.Contains(out, iqn+"  7    small") {
		t.Errorf("after the reload oneshot status says\n%s", out)
	}
	s.run("cp /etc/oneshot/target.yaml /root && echo 'portal: []' >> /etc/oneshot/target.yaml")
	if out, exit := s.try("systemctl reload oneshot"); exit == 0 {
		t.Errorf("a configuration that is not valid is loaded: %s", out)
	}
	s.expect("systemctl is-active oneshot", "active")
	s.until("journalctl -u oneshot | grep -c 'target.yaml:.*unknown key \"portal\"' | sed 's/[1-9]/some/'", "some")
	s.run("cp /root/target.yaml /etc/oneshot/target.yaml && systemctl reload oneshot")
	s.expect("systemctl show --value -p NRestarts oneshot", "0")
	w.more(50)

	t.Log("the service was reloaded")
	s.run("systemctl kill -s KILL oneshot")
	s.until("systemctl show --value -p NRestarts oneshot", "1")
	w.more(50)
	s.run("mkdir -p /run/systemd/system/oneshot.service.d && printf '[Service]\\nWatchdogSec=4s\\n' > /run/systemd/system/oneshot.service.d/quick.conf")
	s.run("systemctl daemon-reload && systemctl restart oneshot && systemctl kill -s STOP oneshot")
	s.until("systemctl show --value -p NRestarts oneshot", "1") // counted from the restart
	s.until("journalctl -u oneshot | grep -c 'Watchdog timeout'", "1")
	w.more(50)

	t.Log("the service was started again, after a kill and by the watchdog")
	before := s.show("MainPID")
	s.run("dpkg --force-confold -i /root/oneshot_2.0_*.deb")
	if after := s.show("MainPID"); after == before || after == "0" {
		t.Errorf("the upgrade leaves process %s in the place of %s", after, before)
	}
	s.expect("dpkg-query -W -f '${Version} ${db:Status-Status}' oneshot", "2.0 installed")
	w.more(50)
	w.end()
	s.expect("systemctl is-active oneshot", "active")
	if out, _ := s.try("journalctl -u oneshot -p err | grep -v -e '^-- ' -e 'Reload failed' -e 'Watchdog'"); out != "" {
		t.Errorf("the journal has errors:\n%s", out)
	}

	t.Log("the service was upgraded")
	s.run("rm -r /run/systemd/system/oneshot.service.d && dpkg -r oneshot")
	s.expect("systemctl is-active oneshot || true", "inactive")
	s.expect("ls /var/lib/oneshot /etc/oneshot | tr '\\n' ' '", "/etc/oneshot: target.yaml  /var/lib/oneshot: disk.img state")
	s.run("dpkg --purge oneshot && systemctl daemon-reload")
	s.expect("systemctl show --value -p LoadState oneshot", "not-found")
	s.expect("find /etc /usr/bin /usr/lib/systemd /usr/share /var/lib /var/cache -name '*oneshot*' -not -path '/var/lib/dpkg/*' | sort | tr '\\n' ' '", "/var/lib/oneshot")
	s.expect("ls /var/lib/oneshot; ls /run/oneshot 2>&1 | sed 's/.*: //'", "disk.img\nNo such file or directory")
	s.expect("systemctl list-units --failed --no-legend", "")
}

const config = `
stores:
  disk: {type: file, path: /var/lib/oneshot/disk.img, size: 64MiB, direct: true, io: uring}
  small: {type: memory, size: 1MiB}
targets: [{iqn: "` + iqn + `", luns: {0: disk}}]
portals:
  - {listen: "0.0.0.0:3260"}
  - {transport: verbs, listen: "` + address + `:3265", device: rxe0}
state: /var/lib/oneshot/state
management: {socket: /run/oneshot/target.sock}`

// disk is what a system boots from, and keeps.
type disk struct {
	image  string
	kernel machine.Image
}

// fresh is the disk that all tests begin with, which the first one makes.
var fresh *disk

// prepare makes the disk of a system, with both packages and the files that the tests need.
func prepare(t *testing.T) *disk {
	t.Helper()
	if fresh == nil {
		fresh = install(t)
	}
	d := *fresh
	d.image = filepath.Join(t.TempDir(), "root.img")
	host(t, "cp", "--sparse=always", fresh.image, d.image)
	return &d
}

func install(t *testing.T) *disk {
	t.Helper()
	cache, err := machine.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	root, image := filepath.Join(cache, "root"), filepath.Join(cache, "root.img")
	if _, err := os.Stat(root); err != nil {
		must(t, os.MkdirAll(cache, 0o755))
		tmp := root + ".tmp"
		must(t, os.RemoveAll(tmp))
		host(t, "sh", "-c", `debootstrap --variant=minbase --include=`+packages+` "$(. /etc/os-release; echo "$VERSION_CODENAME")" `+tmp)
		must(t, os.Rename(tmp, root))
	}
	put(t, root)
	must(t, os.RemoveAll(image))
	host(t, "mkfs.ext4", "-q", "-d", root, image, "2G")
	kernels, _ := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if len(kernels) != 1 {
		t.Fatalf("the system has %d kernels", len(kernels))
	}
	return &disk{image, machine.Image{Kernel: kernels[0], Initramfs: strings.Replace(kernels[0], "vmlinuz-", "initrd.img-", 1)}}
}

// boot starts the system. What comes to forward on the host goes to an address and port of it.
func (d *disk) boot(t *testing.T, to string) *system {
	t.Helper()
	socket, err := os.MkdirTemp("", "deb") // whose path has to be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(socket) })
	m, err := machine.Boot(&d.kernel, socket,
		"-append", machine.KernelArguments("root=/dev/vda", "rw"),
		"-drive", "file="+d.image+",if=virtio,format=raw,cache=unsafe",
		"-netdev", "user,id=forward,net=10.0.3.0/24,hostfwd=tcp:"+forward+"-"+to, "-device", "virtio-net-pci,netdev=forward")
	must(t, err)
	t.Cleanup(m.Stop)
	return &system{t, m}
}

// put copies the files that the test needs into the root directory.
func put(t *testing.T, root string) {
	t.Helper()
	build := func(output, pkg string, more ...string) {
		t.Helper()
		host(t, "go", append(append([]string{"build", "-trimpath", "-o", output}, more...), pkg)...)
	}
	old, err := filepath.Glob(filepath.Join(root, "root/*.deb"))
	must(t, err)
	for _, deb := range old {
		must(t, os.Remove(deb))
	}
	program := filepath.Join(t.TempDir(), "target")
	build(program, "oneshot/cmd/target", "-tags", "verbs")
	client := filepath.Join(t.TempDir(), "initiator")
	build(client, "oneshot/cmd/initiator", "-tags", "verbs")
	for _, version := range []string{"1.0", "2.0"} {
		host(t, "./deb.sh", "-v", version, program, client, filepath.Join(root, "root"))
	}
	build(filepath.Join(root, "usr/local/bin/guest"), "oneshot/test/vm/guest")
	// The guest's first process ends if its port does not appear within 5 s, which happens on a busy host.
	for path, text := range map[string]string{
		"etc/systemd/system/guest.service": "[Unit]\nDefaultDependencies=no\nAfter=basic.target\n[Service]\nExecStart=/usr/local/bin/guest\nRestart=always\nRestartSec=1s\n",
		"etc/systemd/network/eth1.network": "[Match]\nName=eth1\n[Network]\nAddress=" + address + "/24\n",
		"etc/hostname":                     "debian\n",
		"etc/fstab":                        "/dev/vda / ext4 defaults 0 0\n",
	} {
		path = filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	wants := filepath.Join(root, "etc/systemd/system/multi-user.target.wants")
	must(t, os.MkdirAll(wants, 0o755))
	online := filepath.Join(root, "etc/systemd/system/network-online.target.wants")
	must(t, os.MkdirAll(online, 0o755))
	for link, unit := range map[string]string{
		filepath.Join(wants, "guest.service"):                         "/etc/systemd/system/guest.service",
		filepath.Join(wants, "systemd-networkd.service"):              "/lib/systemd/system/systemd-networkd.service",
		filepath.Join(online, "systemd-networkd-wait-online.service"): "/lib/systemd/system/systemd-networkd-wait-online.service",
	} {
		if err := os.Symlink(unit, link); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host runs a program on the host.
func host(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := debian.Run(".", name, args...); err != nil {
		t.Fatal(err)
	}
}

// writer is packaging/writer, on the host.
type writer struct {
	t   *testing.T
	cmd *exec.Cmd
	out lines
	err bytes.Buffer
}

// lines counts lines.
type lines struct {
	n     atomic.Int64
	wrote chan struct{} // holds an element after new lines were written
}

func (l *lines) Write(b []byte) (int, error) {
	l.n.Add(int64(bytes.Count(b, []byte("\n"))))
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return len(b), nil
}

func startWriter(t *testing.T) *writer {
	t.Helper()
	program := filepath.Join(t.TempDir(), "writer")
	host(t, "go", "build", "-o", program, "./writer")
	w := &writer{t: t, cmd: exec.Command(program, forward, iqn), out: lines{wrote: make(chan struct{}, 1)}}
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.err
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, w.cmd.Start())
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

// more waits until n more blocks have been written.
func (w *writer) more(n int64) {
	w.t.Helper()
	hung := time.After(limit)
	for want := w.out.n.Load() + n; w.out.n.Load() < want; {
		select {
		case <-w.out.wrote:
		case <-hung:
			w.t.Fatalf("the writer does not go on after %d blocks: %s", w.out.n.Load(), w.err.String())
		}
	}
}

// end makes the writer read back what it wrote, and waits for it.
func (w *writer) end() {
	w.t.Helper()
	must(w.t, w.cmd.Process.Signal(os.Interrupt))
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatal(fmt.Errorf("the writer: %w: %s", err, w.err.String()))
	}
	w.t.Log(strings.TrimSpace(w.err.String()))
}
