package harness

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Linux
// offers to user space.
const clockTick = 10 * time.Millisecond

// Ticks is the sum of times as the kernel prints them.
func Ticks(fields []string) (sum time.Duration, err error) {
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("CPU time: %w", err)
		}
		sum += time.Duration(n) * clockTick
	}
	return sum, nil
}

// MachineCPU returns the time of all processors so far, and the part of it in which they were not
// idle. Stolen time counts in both.
func MachineCPU() (all, busy time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal …
	if len(fields) < 9 {
		return 0, 0, fmt.Errorf("/proc/stat: %q", line)
	}
	if all, err = Ticks(fields[1:9]); err != nil {
		return 0, 0, err
	}
	busy, err = Ticks(slices.Concat(fields[1:4], fields[6:9]))
	return all, busy, err
}

// ProcessCPU returns the user and system time of a process so far.
func ProcessCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, user, system, err := ParseStat(string(text))
	return user + system, err
}

// ParseStat reads the name, and the user and system time, from a line of /proc/PID/stat or of the stat of a thread.
func ParseStat(line string) (name string, user, system time.Duration, err error) {
	// The name is in parentheses, and may contain any characters.
	begin, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	if begin < 0 || end < begin || len(fields) < 13 {
		return "", 0, 0, fmt.Errorf("/proc/PID/stat: %q", line)
	}
	if user, err = Ticks(fields[11:12]); err == nil {
		system, err = Ticks(fields[12:13])
	}
	return line[begin+1 : end], user, system, err
}
