package file

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// isResident reports whether the pages of the file are always in memory: it is in a tmpfs, and this machine does not
// swap. Should swapping be switched on later, a read may wait for a page, and its connection with it.
func isResident(fd int) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return false
	}
	swaps, err := os.ReadFile("/proc/swaps")
	return err == nil && !swapping(swaps)
}

// swapping reports whether the content of /proc/swaps (proc(5)) lists an area: there is a line below the heading.
func swapping(swaps []byte) bool { return bytes.Count(bytes.TrimSpace(swaps), []byte{'\n'}) > 0 }
