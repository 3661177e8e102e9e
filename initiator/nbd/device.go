package nbd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
)

// Device is what the kernel says of a device that is connected.
type Device struct {
	Index    int    `json:"index"`
	Path     string `json:"device"`
	URL      string `json:"url"` // without secrets; empty: not attached by this program
	Size     int64  `json:"size"`
	ReadOnly bool   `json:"read_only"`
	// Sockets is how many there are, each with a session.
	Sockets int `json:"connections"`
	// Served reports whether a process serves it now.
	Served bool `json:"served"`

	isid pdu.ISID
	name string // of the initiator
	disk string // which one it was made of; empty: it does not say
}

// sysBlock is where the kernel shows its devices.
const sysBlock = "/sys/block"

// Path returns the path of a device.
func Path(index int) string { return fmt.Sprintf("/dev/nbd%d", index) }

// ParseDevice reads nbd3 or /dev/nbd3.
func ParseDevice(s string) (int, error) {
	number, ok := strings.CutPrefix(strings.TrimPrefix(s, "/dev/"), "nbd")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n > 1<<16 {
		return 0, fmt.Errorf("%q is no device such as nbd3", s)
	}
	return n, nil
}

// Attached lists the devices that are connected, in no order.
func Attached() ([]Device, error) { return attachedIn(sysBlock) }

func attachedIn(dir string) ([]Device, error) {
	all, err := filepath.Glob(filepath.Join(dir, "nbd*"))
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, path := range all {
		d, err := deviceIn(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// deviceIn reads one; fs.ErrNotExist: it is not connected.
func deviceIn(path string) (d Device, err error) {
	if d.Index, err = ParseDevice(filepath.Base(path)); err != nil {
		return d, err
	}
	d.Path = Path(d.Index)
	if _, err := os.Stat(filepath.Join(path, "pid")); err != nil {
		return d, err
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(path, name))
		return strings.TrimSpace(string(b))
	}
	sectors, _ := strconv.ParseInt(read("size"), 10, 64)
	d.Size = sectors * 512
	d.ReadOnly = read("ro") == "1"
	if b, ok := parseBackend(read("backend")); ok {
		d.URL, d.isid, d.name, d.Sockets, d.disk = b.url, b.isid, b.name, b.sockets, b.disk
	}
	d.Served = isLocked(d.Index)
	return d, nil
}

// backend is what a device has as identifier: who takes it over has to log in under the same names, and to find the same disk.
type backend struct {
	url, name string
	isid      pdu.ISID
	sockets   int
	disk      string // digestOf what it says of itself; empty: it is not known
}

const backendFormat = "%s name=%s isid=%x connections=%d"

// String returns the identifier.
func (b backend) String() string {
	s := fmt.Sprintf(backendFormat, b.url, b.name, b.isid[:], b.sockets)
	if b.disk != "" {
		s += " disk=" + b.disk
	}
	return s
}

// parseBackend reads what String returns, and nothing else: the kernel wants to hear the same text again.
func parseBackend(s string) (b backend, ok bool) {
	var id []byte
	_, _ = fmt.Sscanf(s, backendFormat+" disk=%s", &b.url, &b.name, &id, &b.sockets, &b.disk) // the end may be missing
	copy(b.isid[:], id)
	return b, b.sockets >= 1 && b.sockets <= MaxConnections && b.String() == s
}

// digestOf tells disks apart by what they say of themselves.
func digestOf(id *initiator.Identity) string {
	says := append([]string{id.Vendor, id.Product, id.Serial}, id.Names...)
	sum := sha256.Sum256([]byte(strings.Join(says, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// lock makes this process the one that serves a device, until it ends or calls unlock.
func lock(index int) (unlock func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, lockName(index)); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("another process serves nbd%d", index)
		}
		return nil, err
	}
	return func() { _ = unix.Close(fd) }, nil
}

// isLocked reports whether a process serves a device. It does not take the lock to find out, for somebody else might ask
// for it at that moment.
func isLocked(index int) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Close(fd) }()
	return !errors.Is(unix.Connect(fd, lockName(index)), unix.ECONNREFUSED) // nobody has the name
}

// lockName is the name of the socket that is the lock of a device.
func lockName(index int) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: fmt.Sprintf("@oneshot-attach-nbd%d", index)}
}

// Detach writes what the kernel holds back to the disk, and ends the device, which must not be in use. With force nothing is written:
// what the kernel holds back is lost.
func Detach(k Kernel, index int, force bool) error {
	f, err := openAlone(index)
	if err != nil {
		return err
	}
	if err := end(f, k, index, force); err != nil {
		return err
	}
	// The kernel keeps the partitions of a disk that has gone until somebody opens its device.
	if f, err = os.Open(Path(index)); err == nil {
		err = f.Close()
	}
	return err
}

// end ends the device that f is, and closes f.
func end(f interface {
	Sync() error
	io.Closer
}, k Kernel, index int, force bool,
) error {
	var err error
	if !force {
		if err = f.Sync(); err != nil {
			err = fmt.Errorf("what the kernel holds back is not on the disk, so the device stays; detach --force ends it all the same: %w", err)
		}
	}
	if err == nil {
		err = k.Disconnect(index)
	}
	closed := f.Close() // which writes back, too
	if force {
		closed = nil
	}
	return errors.Join(err, closed)
}

// openAlone opens a device unless it is mounted or part of another one, which it cannot become as long as it is open.
func openAlone(index int) (*os.File, error) {
	f, err := os.OpenFile(Path(index), os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		f, err = os.OpenFile(Path(index), os.O_RDONLY|unix.O_EXCL, 0)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%s is in use: unmount it first", Path(index))
	}
	return f, err
}
