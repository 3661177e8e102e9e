package fdio

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long Lock waits for a lock whose holder is no live process.
const lockPatience = 10 * time.Second

// Lock takes the lock of the file for this opening of it: two stores on one file would
// undo each other's work. The kernel releases it when the last descriptor is closed, so it outlives
// a crash only for a moment: where io_uring was in use, a kernel thread closes the files of a killed
// process after the process is gone, and Lock waits for that. The lock is one of flock(2) and not of
// fcntl(2), because its holder can be named. The error says who holds it; what is the noun for what
// fd is.
func Lock(fd int, what string) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK {
			return fmt.Errorf("lock the %s: %w", what, err)
		}
		switch pid := holder(fd); {
		case pid == os.Getpid():
			return fmt.Errorf("is in use by another store of this process; name the %s once only", what)
		case pid > 0 && alive(pid):
			return fmt.Errorf("is in use by another process (pid %d); stop that one, or serve another %s", pid, what)
		case time.Now().After(deadline):
			return fmt.Errorf("is in use by another process; stop that one, or serve another %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// alive reports whether a process exists that is more than a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err)
	}
	// proc_pid_stat(5): 1234 (any name) Z …
	_, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
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
