package targettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// Environment variables that add to the build options of the test itself.
	envRace = "ONESHOT_TARGET_RACE" // "1": build the daemon with the race detector
	envTags = "ONESHOT_TARGET_TAGS" // build tags, comma separated
	// envBuilt is a directory in which test processes share the daemons that they build, so that each kind is linked once.
	// Without it each process has its own.
	envBuilt = "ONESHOT_BUILT"
)

// Main runs the tests of a package and removes what Binary built for them:
//
//	func TestMain(m *testing.M) { targettest.Main(m) }
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has something to clean up afterwards: it returns the exit
// status.
func Run(m *testing.M) int {
	code := m.Run()
	if buildDir != "" {
		if err := os.RemoveAll(buildDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// Binary returns the path of the daemon. The first call in a process builds it
// from this checkout, unless a daemon that is up to date is in ONESHOT_BUILT. It may be called concurrently.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

var buildDir string // written once by build, read by Main after all tests

var build = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if shared := os.Getenv(envBuilt); shared != "" {
		return share(root, shared)
	}
	if buildDir, err = os.MkdirTemp("", "oneshot-target-"); err != nil {
		return "", fmt.Errorf("targettest: %w", err)
	}
	return buildIn(root, buildDir)
})

// share builds the daemon in a directory below dir that belongs to daemons with its build options, one process at a
// time. If the daemon there is up to date, go build leaves it as it is.
func share(root, dir string) (path string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", fmt.Errorf("targettest: %w", err)
	}
	dir = filepath.Join(dir, "target"+strings.Join(options(), ""))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("targettest: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return "", fmt.Errorf("targettest: %w", err)
	}
	defer lock.Close() // ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("targettest: %s: %w", lock.Name(), err)
	}
	return buildIn(root, dir)
}

// buildIn builds the daemon of the module in root, in dir, without tables for debuggers: to make them is a third of the linker's work.
func buildIn(root, dir string) (path string, err error) {
	path = filepath.Join(dir, "target")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-ldflags=-s -w", "-o", path}, options(), []string{"./cmd/target"})...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("targettest: %s: %w\n%s", cmd, err, out)
	}
	return path, nil
}

// options returns the options of the build. They follow those of the test, so
// that go test -race also finds races in the daemon.
func options() (args []string) {
	if raceEnabled || os.Getenv(envRace) == "1" {
		args = append(args, "-race")
	}
	var tags []string
	if invariantsEnabled {
		tags = append(tags, "invariants")
	}
	if t := os.Getenv(envTags); t != "" && !slices.Contains(tags, t) {
		tags = append(tags, t)
	}
	if tags != nil {
		args = append(args, "-tags", strings.Join(tags, ","))
	}
	return args
}

// moduleRoot is the directory of go.mod: a test runs in its package's folder.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("targettest: go env GOMOD: %w", err)
	}
	gomod := strings.TrimSpace(string(out))
	if gomod == "" || gomod == os.DevNull {
		return "", errors.New("targettest: run inside the module's checkout")
	}
	return filepath.Dir(gomod), nil
}
