package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mountTest has this process be the one of TestUnmounted that has mounts of its own.
const mountTest = "ONESHOT_TEST_MOUNTS"

// A file is not created on a real mount point while nothing is mounted there, with the kernel's own list
// of mounts. A process with a mount namespace of its own tries it, and leaves the machine's alone.
func TestUnmounted(t *testing.T) {
	if dir := os.Getenv(mountTest); dir != "" {
		unmounted(t, dir)
		return
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestUnmounted$", "-test.v")
	c.Env = append(os.Environ(), mountTest+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnmounted") {
		t.Errorf("%v\n%s", err, out)
	}
}

func unmounted(t *testing.T, dir string) {
	at := filepath.Join(dir, "images")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at, 0o755))
	must(unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""))
	must(os.WriteFile("/etc/fstab", []byte("/dev/disk/by-label/images "+at+" xfs defaults 0 2\n"), 0o644))

	cfg := Config{Path: filepath.Join(at, "disk.img"), Size: 1 << 20, Sparse: true}
	refused := func(when string) {
		t.Helper()
		s, err := Open(cfg)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: the file was created", when)
		} else if want := "(/etc/fstab), has none mounted: mount it"; !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", when, err)
		}
		if left, err := os.ReadDir(at); len(left) != 0 || err != nil {
			t.Errorf("%s: %v, %v", when, left, err)
		}
	}
	refused("before")
	must(unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	s, err := Open(cfg)
	must(err)
	must(s.Close())
	must(unix.Unmount(at, 0))
	refused("afterwards")
}
