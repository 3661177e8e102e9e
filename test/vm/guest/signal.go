package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// signal: @signal PROGRAM NUMBER signals every process of a program, at least one.
func signal(_ func(string), a []string) error {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	found := false
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(comm)) != a[0] {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err := unix.Kill(pid, unix.Signal(number(a[1]))); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		found = true
	}
	if !found {
		return fmt.Errorf("no process of %s", a[0])
	}
	return nil
}
