package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// signal: @signal PROGRAM NUMBER signals every process of a program, at least one. Those that another of them
// forked are left to it, as SIGKILL cannot be: a worker of fio that is interrupted in the middle of its
// bookkeeping waits for ever, in about one of ten cases, for completions of what it never submitted.
func signal(_ func(string), a []string) error {
	pids, err := processes(a[0])
	for _, pid := range pids {
		if unix.Signal(number(a[1])) != unix.SIGKILL && slices.Contains(pids, parent(pid)) {
			continue
		}
		if e := unix.Kill(pid, unix.Signal(number(a[1]))); e != nil && !errors.Is(e, unix.ESRCH) {
			return e
		}
	}
	return err
}

// parent returns the parent of a process, 0 for one that is gone.
func parent(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, ppid, _ := strings.Cut(string(status), "\nPPid:")
	ppid, _, _ = strings.Cut(ppid, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(ppid))
	return n
}

// processes returns those of a program; none is an error.
func processes(program string) (pids []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(comm)) != program {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process of %s", program)
	}
	return pids, nil
}

// held: @held PROGRAM says how many descriptors a program has open, and how much memory it has pinned.
func held(say func(string), a []string) error {
	pids, err := processes(a[0])
	if err != nil {
		return err
	}
	for _, pid := range pids {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return err
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return err
		}
		_, pinned, _ := strings.Cut(string(status), "VmPin:")
		pinned, _, _ = strings.Cut(pinned, "\n")
		say(fmt.Sprintf("%d descriptors, %s pinned", len(open), strings.TrimSpace(pinned)))
	}
	return nil
}
