package device

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// What sysfs tells of devices, and what identity it makes.
func TestIdentityFromSysfs(t *testing.T) {
	sys := t.TempDir()
	rdev := unix.Mkdev(8, 3)
	for _, c := range []struct {
		files map[string]string // below the disk
		part  string            // the device is this partition of it
		want  backend.Identity
	}{
		{map[string]string{"device/wwid": "naa.5000c500a1b2c3d4\n"}, "", "device-naa.5000c500a1b2c3d4"},
		{map[string]string{"device/wwid": "t10.ATA     Some Disk                 S3R/1AL\n"}, "2", "device-t10.ATA_Some_Disk_S3R_1AL-part2"},
		{map[string]string{"wwid": "eui.0025385b71b0a1c9\n"}, "", "device-eui.0025385b71b0a1c9"},
		{map[string]string{"dm/uuid": "LVM-abc\n", "wwid": "x"}, "", "device-LVM-abc"},
		{map[string]string{"dm/uuid": "\n"}, "", "passing-device-8:3"},
		{nil, "1", "passing-device-8:3"},
	} {
		dir := filepath.Join(sys, "devices", t.Name(), "disk"+string(c.want))
		for name, text := range c.files {
			put(t, filepath.Join(dir, name), text)
		}
		if c.part != "" {
			dir = filepath.Join(dir, "diskp")
			put(t, filepath.Join(dir, "partition"), c.part+"\n")
		}
		put(t, filepath.Join(dir, "dev"), "8:3\n")
		link := filepath.Join(sys, "dev/block/8:3")
		_ = os.MkdirAll(filepath.Dir(link), 0o700)
		_ = os.Remove(link)
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		if got := identityOf(rdev, sys); got != c.want {
			t.Errorf("%v, partition %q: %q, want %q", c.files, c.part, got, c.want)
		}
		_ = os.RemoveAll(filepath.Join(sys, "devices"))
	}
	if got := identityOf(unix.Mkdev(9, 9), sys); got != "passing-device-9:9" {
		t.Errorf("a device that sysfs does not know: %q", got)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A device is the same by whichever path, and not another one.
func TestIdentity(t *testing.T) {
	a, b := backendtest.NewLoop(t, backendtest.MinSize, 512), backendtest.NewLoop(t, backendtest.MinSize, 512)
	s := mustOpen(t, Config{Path: a.Path})
	defer mustClose(t, s)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(a.Path, link); err != nil {
		t.Fatal(err)
	}
	if got, err := IdentityOf(link); err != nil || got != backend.IdentityOf(s) || got == "" {
		t.Errorf("%q, %v; the store says %q", got, err, backend.IdentityOf(s))
	}
	if got, err := IdentityOf(b.Path); err != nil || got == backend.IdentityOf(s) {
		t.Errorf("another device: %q, %v", got, err)
	}
	if _, err := IdentityOf(t.TempDir()); err == nil {
		t.Error("a directory has an identity")
	}
}
