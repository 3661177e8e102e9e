// Package mounted sees whether a file system is mounted where one belongs.
package mounted

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// system is where the files of the operating system are; tests have others.
var system = "/"

// Check returns an error if dir, which need not exist, is or lies below a directory where another file system belongs that is not mounted.
// What is made there is in the place of the real one, and disappears below it at the next mount.
func Check(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	dir = resolved(dir)
	expected, mounts := expectedMounts(), currentMounts()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if slices.Contains(mounts, dir) {
			return nil // what is above may be as it is
		}
		if by := expected(dir); by != "" {
			return fmt.Errorf("%s, where a file system belongs (%s), has none mounted: mount it", dir, by)
		}
	}
	return nil
}

// resolved returns a path without symbolic links, as far as it exists.
func resolved(path string) string {
	rest := ""
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		if to, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(to, rest)
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
	return path
}

// expectedMounts returns a function that says who mounts something at a directory: /etc/fstab, or a unit of
// systemd; empty: nobody.
func expectedMounts() func(dir string) string {
	var fstab []string
	text, _ := os.ReadFile(filepath.Join(system, "etc/fstab"))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 3 && !strings.HasPrefix(f[0], "#") && strings.HasPrefix(f[1], "/") {
			fstab = append(fstab, filepath.Clean(unescape(f[1])))
		}
	}
	return func(dir string) string {
		if slices.Contains(fstab, dir) {
			return "/etc/fstab"
		}
		unit := unitName(dir)
		// Of the administrator's units only: those of packages may never be started. One that is masked is
		// /dev/null.
		if info, err := os.Stat(filepath.Join(system, "etc/systemd/system", unit)); err == nil && info.Mode().IsRegular() {
			return unit
		}
		return ""
	}
}

// currentMounts lists the directories at which something is mounted.
func currentMounts() (dirs []string) {
	text, _ := os.ReadFile(filepath.Join(system, "proc/self/mountinfo"))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 {
			dirs = append(dirs, unescape(f[4]))
		}
	}
	return dirs
}

// unescape reads what fstab(5) and the kernel write for blanks and backslashes.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// unitName is the unit that mounts at dir, as systemd-escape --path --suffix=mount has it.
func unitName(dir string) string {
	var b strings.Builder
	for i, c := range []byte(strings.Trim(dir, "/")) {
		switch {
		case c == '/':
			b.WriteByte('-')
		case c == '_' || c == ':' || c == '.' && i > 0 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String() + ".mount"
}
