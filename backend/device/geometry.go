package device

import (
	"bufio"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/fdio"
)

// geometry is what the kernel says of a device; bytes.
type geometry struct {
	size              int64
	logical, physical int   // blocks
	optimal           int   // length of an operation; 0: none is better than others
	discard           int64 // granularity; 0: space is not given back, or does not read as zeroes then
}

func geometryOf(fd int) (g geometry, err error) {
	if g.size, err = deviceSize(fd); err != nil {
		return g, err
	}
	for req, dst := range map[uint]*int{unix.BLKSSZGET: &g.logical, unix.BLKPBSZGET: &g.physical, unix.BLKIOOPT: &g.optimal} {
		var n int32 // int or unsigned int, whatever the size of Go's
		if err := ioctl(fd, req, unsafe.Pointer(&n)); err != nil {
			return g, fmt.Errorf("ask for the block size: %w", err)
		}
		*dst = int(n)
	}
	g.discard, err = discardOf(fd)
	return g, err
}

func deviceSize(fd int) (int64, error) {
	var n uint64
	if err := ioctl(fd, unix.BLKGETSIZE64, unsafe.Pointer(&n)); err != nil {
		return 0, fmt.Errorf("ask for the size: %w", err)
	}
	return int64(n), nil
}

// info is what the store looks like, its size excepted, and what O_DIRECT asks for.
func (g geometry) info(buffered bool) (info backend.Info, direct *fdio.Alignment) {
	info.BlockSize = max(512, g.logical)
	if !buffered {
		direct = &fdio.Alignment{Memory: info.BlockSize, Offset: info.BlockSize}
	}
	info.PhysicalBlockSize = powerOfTwo(max(g.physical, info.BlockSize))
	info.OptimalIO = int64(max(g.optimal, 0))
	info.StatusUnknown = true
	if g.discard > 0 {
		info.DiscardGranularity = int64(powerOfTwo(max(int(g.discard), info.BlockSize)))
	}
	return info, direct
}

// powerOfTwo rounds up.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// discardOf asks sysfs for the granularity of discards. A device that discards but cannot
// clear promises nothing of what is read afterwards; there discards overwrite.
func discardOf(fd int) (int64, error) {
	queue, err := queueDir(fd)
	if err != nil {
		return 0, err
	}
	if queue.number("discard_max_bytes") == 0 || queue.number("write_zeroes_max_bytes") == 0 {
		return 0, nil
	}
	return max(queue.number("discard_granularity"), 1), nil
}

// sysfsQueue is the directory with the properties of a device's request queue.
type sysfsQueue string

func queueDir(fd int) (sysfsQueue, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return "", nil // no sysfs here: nothing is known, and so nothing promised
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	return sysfsQueue(filepath.Join(dir, "queue")), nil
}

// number reads a property; 0 if there is none.
func (q sysfsQueue) number(name string) int64 {
	b, err := os.ReadFile(filepath.Join(string(q), name))
	if q == "" || err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return max(n, 0)
}

// mountOf says where the device is mounted, for a message, or nothing.
func mountOf(path string) string {
	var st unix.Stat_t
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil || unix.Stat(path, &st) != nil {
		return ""
	}
	defer f.Close()
	// proc_pid_mountinfo(5): 36 35 98:0 /mnt1 /mnt2 rw,noatime …
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if w := strings.Fields(sc.Text()); len(w) > 4 && w[2] == dev {
			return " (mounted on " + w[4] + ")"
		}
	}
	return ""
}
