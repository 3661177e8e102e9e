package targettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Environment variables that add to the build options of the test itself.
const (
	envRace = "ONESHOT_TARGET_RACE" // "1": build the daemon with the race detector
	envTags = "ONESHOT_TARGET_TAGS" // build tags, comma separated
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
// from this checkout. It may be called concurrently.
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
	if buildDir, err = os.MkdirTemp("", "oneshot-target-"); err != nil {
		return "", fmt.Errorf("targettest: %w", err)
	}
	path := filepath.Join(buildDir, "target")
	cmd := exec.Command("go", append(buildArgs(path), "./cmd/target")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("targettest: %s: %w\n%s", cmd, err, out)
	}
	return path, nil
})

// buildArgs returns the options of the build. They follow those of the test, so
// that go test -race also finds races in the daemon.
func buildArgs(output string) []string {
	args := []string{"build", "-o", output}
	if raceEnabled || os.Getenv(envRace) == "1" {
		args = append(args, "-race")
	}
	var tags []string
	if invariantsEnabled {
		tags = append(tags, "invariants")
	}
	if t := os.Getenv(envTags); t != "" {
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
