package fdio

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock takes the lock of the file for this opening of it: two stores on one file would
// undo each other's work. The kernel gives it free when the last descriptor is closed, so
// it never outlives a crash. flock(2) and not fcntl(2), because the holder can be named. The
// error says who holds it; what is the noun for what fd is.
func Lock(fd int, what string) error {
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == unix.EWOULDBLOCK && holder(fd) == os.Getpid():
		return fmt.Errorf("is in use by another store of this process; name the %s once only", what)
	case err == unix.EWOULDBLOCK:
		if pid := holder(fd); pid > 0 {
			return fmt.Errorf("is in use by another process (pid %d); stop that one, or serve another %s", pid, what)
		}
		return fmt.Errorf("is in use by another process; stop that one, or serve another %s", what)
	case err != nil:
		return fmt.Errorf("lock the %s: %w", what, err)
	}
	return nil
}

// holder returns the process that holds the lock of the file, or 0 if the kernel does not
// tell (another container, a network file system).
func holder(fd int) int {
	var st unix.Stat_t
	f, err := os.Open("/proc/locks")
	if err != nil || unix.Fstat(fd, &st) != nil {
		return 0
	}
	defer f.Close()
	// proc_locks(5): 1: FLOCK  ADVISORY  WRITE 1234 fd:01:131073 0 EOF
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if w := strings.Fields(sc.Text()); len(w) > 5 && w[1] == "FLOCK" && w[5] == file {
			pid, _ := strconv.Atoi(w[4])
			return max(pid, 0)
		}
	}
	return 0
}
