package vm

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/internal/debian"
)

// TestDeviceStore runs the tests of the device store in the guest, which has other devices than loop: a RAM
// disk, which has no discard, and a thinly provisioned SCSI disk with blocks of 4096 bytes. The io_uring of
// its kernel is older than that of most hosts.
func TestDeviceStore(t *testing.T) {
	dir := t.TempDir()
	if _, err := run("../..", "go", "test", "-c", "-o", filepath.Join(dir, "device.test"), "./backend/device"); err != nil {
		t.Fatal(err)
	}
	g := newDownloads(t, dir)
	g.get("device.test")
	modules := newDownloads(t, moduleDir(t))
	for file, parameters := range map[string]string{
		"block/loop.ko":      "",
		"block/brd.ko":       "rd_nr=1 rd_size=16384",
		"scsi/scsi_debug.ko": "dev_size_mb=16 sector_size=4096 lbpu=1 lbpws=1 lbprz=1 ndelay=0 delay=0",
	} {
		guest.run(t, "@module", modules.get(file), parameters)
	}
	thin := strings.TrimSpace(guest.run(t, "@disk", "scsi_debug"))
	for _, c := range []struct{ tests, device, passes string }{
		{"^TestOthers$/direct", "/dev/ram0", "TestOthers/ram0_direct_ring"},
		{"^TestOthers$/direct", thin, "TestOthers/" + filepath.Base(thin) + "_direct_ring"},
		{"^TestDevice$/^direct_ring$", "", "TestDevice/direct_ring"},
		{"^Test[^OD]|^TestOpen|^TestDiscard", "", "TestWatch"},
	} {
		out := guest.run(t, "/tmp/device.test", "-test.v", "-test.run", c.tests, "-rapid.checks", "3", "-rapid.nofailfile", "-devices", c.device)
		if !strings.Contains(out, "--- PASS: "+c.passes+" ") {
			t.Errorf("%s did not run:\n%s", c.passes, out)
		}
	}
}

// moduleDir returns the directory of the drivers of the guest's kernel.
func moduleDir(t *testing.T) string {
	t.Helper()
	kernels, err := debian.KernelDir()
	if err != nil {
		t.Fatal(err)
	}
	k, err := debian.Fetch(kernels) // there already: the guest runs it
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(k.Modules, "kernel/drivers")
}

// downloads is a directory that the guest gets files from.
type downloads struct {
	t   *testing.T
	url string
}

func newDownloads(t *testing.T, dir string) *downloads {
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &downloads{t, "http://10.0.2.2:" + port + "/"}
}

// get returns the path of the file in the guest.
func (d *downloads) get(name string) string {
	d.t.Helper()
	path := "/tmp/" + filepath.Base(name)
	guest.run(d.t, "@fetch", d.url+name, path)
	return path
}
