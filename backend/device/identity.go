package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Identifier = (*Store)(nil)

// Identities names the device: by what its medium is called for good, if it is (a WWID, the UUID of
// a device-mapper or md device), and otherwise by its number, which is the same until the device
// goes or the machine restarts.
func (s *Store) Identities() []backend.Identity { return []backend.Identity{s.identity} }

// IdentityOf returns the identity that a store on the device at path has.
func IdentityOf(path string) (backend.Identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("device store %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", fmt.Errorf("device store %s: not a block device", path)
	}
	return identityOf(st.Rdev, "/sys"), nil
}

// identityOf asks sysfs about a device number.
func identityOf(rdev uint64, sys string) backend.Identity {
	number := fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", number))
	if err != nil {
		return backend.Passing("device-" + number)
	}
	partition := attribute(dir, "partition")
	disk := dir
	if partition != "" {
		disk = filepath.Dir(dir)
		partition = "-part" + partition
	}
	for _, name := range []string{"dm/uuid", "md/uuid", "wwid", "device/wwid"} {
		if id := attribute(disk, name); id != "" {
			return backend.Identity("device-" + printable(id) + partition)
		}
	}
	return backend.Passing("device-" + number)
}

func attribute(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// printable replaces what an identity must not hold: vendors pad their names with spaces.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '/' {
			return '_'
		}
		return r
	}, strings.Join(strings.Fields(s), "_"))
}
