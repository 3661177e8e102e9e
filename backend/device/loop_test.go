package device

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// DevicesVariable names block devices, separated by commas, that the suite runs on besides
// loop devices. They are overwritten.
const DevicesVariable = "ONESHOT_TEST_DEVICES"

func testDevices() []string {
	return strings.FieldsFunc(os.Getenv(DevicesVariable), func(r rune) bool { return r == ',' })
}

// loopDevice is a block device in front of a file: what every Linux can make.
type loopDevice struct {
	t    *testing.T
	path string
	file string
	dev  *os.File
}

// newLoop makes a block device of size bytes, which goes when the test ends.
func newLoop(t *testing.T, size int64, block int) *loopDevice {
	t.Helper()
	l := &loopDevice{t: t, file: filepath.Join(t.TempDir(), "loop.img")}
	f, err := os.OpenFile(l.file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("tests of block devices need loop devices (modprobe loop) and run as root: %v", err)
	}
	defer control.Close()
	for l.dev == nil { // others may take the free one in between
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		l.attach("/dev/loop"+strconv.Itoa(n), f, block)
	}
	t.Cleanup(func() {
		_, _ = unix.IoctlRetInt(int(l.dev.Fd()), unix.LOOP_CLR_FD)
		l.dev.Close()
	})
	return l
}

func (l *loopDevice) attach(path string, f *os.File, block int) {
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	cfg := unix.LoopConfig{Fd: uint32(f.Fd()), Size: uint32(block)}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	switch err := unix.IoctlLoopConfigure(int(dev.Fd()), &cfg); err {
	case nil:
		l.path, l.dev = path, dev
	case unix.EBUSY:
		dev.Close()
	default:
		l.t.Fatal(err)
	}
}

// resize gives the device another size, as somebody does who knows nothing of us.
func (l *loopDevice) resize(size int64) {
	l.t.Helper()
	if err := os.Truncate(l.file, size); err != nil {
		l.t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(l.dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		l.t.Fatal(err)
	}
}
