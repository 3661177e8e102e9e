// Package conformance runs libiscsi's iscsi-test-cu against the daemon: every
// test it has, each alone in a process of its own with a time limit of its own,
// against each kind of logical unit. A test that does not pass must be listed
// in exceptions.go with the reason, and a listed test that passes is an error
// too, so that the list stays true.
//
// Two releases of the tool are used: the installed one, 1.19, and that of the next Debian, 1.20. ISCSI_TEST_CU names
// another, later one to use instead, as make conformance LIBISCSI=DIR does.
//
// Run one test with
//
//	go test ./test/conformance -run 'Conformance/installed/memory/Read10.Simple$' -v
package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"oneshot/internal/debian"
)

const (
	// The slowest tests wait for a second initiator's timers and need 8 s.
	testTimeout = 60 * time.Second
	// A test that hangs is not waited for so long.
	hangTimeout = 3 * time.Second
)

// A verdict is the result of one run of one test.
type verdict string

const (
	pass verdict = "PASS"
	skip verdict = "SKIP" // the tool found a feature missing, perhaps half way
	fail verdict = "FAIL" // a wrong answer, or a crash of the tool
	hang verdict = "HANG" // no end
)

// A result is a verdict with the tool's own words for it.
type result struct {
	verdict verdict
	reason  string // empty for pass
	output  string // all that the tool printed
}

// A tool is one version of iscsi-test-cu.
type tool struct {
	name string
	argv []string // how it is called
}

// installed is Debian's.
var installed = tool{"installed", []string{"iscsi-test-cu"}}

// envTool names another iscsi-test-cu, to be used instead of the usual ones.
const envTool = "ISCSI_TEST_CU"

// newer is the next release of Debian, whose libiscsi is 1.20, and packages are what its
// iscsi-test-cu needs, down to the C library.
const newer = "trixie"

var packages = []string{"libiscsi-bin", "libcunit1", "libibverbs1", "librdmacm1t64", "libnl-3-200", "libnl-route-3-200", "libc6"}

// tools returns those that the tests use.
var tools = sync.OnceValues(func() ([]tool, error) {
	if path := os.Getenv(envTool); path != "" {
		return []tool{{"given", []string{path}}}, nil
	}
	tests, err := installed.list(context.Background())
	if err != nil || releaseOf(tests) >= v120 {
		return []tool{installed}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	root, err := debian.FetchFrom(filepath.Join(cache, "oneshot-conformance"), newer, packages...)
	if err != nil {
		return nil, err
	}
	linkers, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*/ld-linux-*.so.*"))
	if err != nil || len(linkers) != 1 {
		return nil, fmt.Errorf("conformance: %s holds %d dynamic linkers (%w)", root, len(linkers), err)
	}
	libraries := filepath.Dir(linkers[0])
	return []tool{installed, {newer, []string{linkers[0], "--library-path", libraries, filepath.Join(root, "usr/bin/iscsi-test-cu")}}}, nil
})

// command calls the tool with more arguments.
func (tl tool) command(ctx context.Context, args ...string) *exec.Cmd {
	argv := slices.Concat(tl.argv, args)
	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// A test has a name, Suite.Test, and is in families of the tool's, one of which is enough to
// call it.
type test struct{ family, name string }

// list asks the tool for its tests.
func (tl tool) list(ctx context.Context) ([]test, error) {
	out, err := tl.command(ctx, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("conformance: %s --list: %w (Debian package libiscsi-bin; `make deps` installs it)", tl.argv[0], err)
	}
	return parseList(string(out)), nil
}

func parseList(out string) []test {
	var tests []test
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		family, name, found := strings.Cut(strings.TrimSpace(line), ".")
		if found && strings.Contains(name, ".") && !seen[name] {
			seen[name] = true
			tests = append(tests, test{family, name})
		}
	}
	return tests
}

// A release of libiscsi is told by the tests that came with it.
type release int

const (
	v119 release = iota
	v120
	after120
)

func releaseOf(tests []test) release {
	switch has := func(name string) bool {
		return slices.ContainsFunc(tests, func(t test) bool { return t.name == name })
	}; {
	case has("ReportTargetPortGroups.Simple"):
		return after120
	case has("iSCSINop.Simple"):
		return v120
	}
	return v119
}

// run runs one test for at most limit on the logical unit that the first URL names; the others
// are further paths to it.
func (tl tool) run(ctx context.Context, limit time.Duration, ts test, urls ...string) result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append([]string{"--Verbose-scsi", "--dataloss", "--allow-sanitize", "--test=" + ts.family + "." + ts.name}, urls...)
	out, err := tl.command(ctx, args...).CombinedOutput()
	switch exit := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return result{hang, fmt.Sprintf("no end after %v", limit), string(out)}
	case errors.As(err, &exit) && !exit.Exited():
		return result{fail, fmt.Sprintf("the tool died: %v", exit), string(out)}
	case err != nil && exit == nil:
		return result{fail, err.Error(), string(out)}
	}
	return parseOutput(string(out))
}

var (
	testLine    = regexp.MustCompile(`^  Test: \S+ \.\.\.(.*)`)
	endLine     = regexp.MustCompile(`^(passed|FAILED)`)
	summaryLine = regexp.MustCompile(`^\s+tests\s+\d+\s+(\d+)\s+(\d+)\s+(\d+)`)  // total, ran, passed, failed
	assertLine  = regexp.MustCompile(`^\s+\d+\. (\S+:\d+)\s+- (.*?)(?:\s{4}|$)`) // the clean-up may follow on the same line
)

// parseOutput reads the verdict. Only the lines between the test's name and
// its end speak of the test: before and after them the tool probes the logical
// unit and cleans up, and prints [SKIPPED] and [FAILED] doing so.
func parseOutput(out string) result {
	r := result{output: out}
	var inTest bool
	var ran, failed, skipped, complaint, assertion string
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if m := testLine.FindStringSubmatch(line); m != nil {
			inTest, line = true, m[1] // the first note follows on the same line
		} else if endLine.MatchString(line) {
			inTest = false
		}
		if m := summaryLine.FindStringSubmatch(line); m != nil {
			ran, failed = m[1], m[3]
		}
		if m := assertLine.FindStringSubmatch(line); m != nil && assertion == "" {
			assertion = m[1] + " " + m[2]
		}
		if inTest {
			note(line, "[SKIPPED]", &skipped)
			note(line, "[FAILED]", &complaint)
		}
	}
	switch {
	case ran != "1":
		r.verdict, r.reason = fail, "the test did not run: "+lastLine(out)
	case failed != "0":
		r.verdict, r.reason = fail, strings.TrimSpace(complaint+" ("+assertion+")")
	case skipped != "":
		r.verdict, r.reason = skip, skipped
	default:
		r.verdict = pass
	}
	return r
}

// note keeps what follows the first mark.
func note(line, mark string, first *string) {
	if _, text, found := strings.Cut(line, mark); found && *first == "" {
		*first = strings.TrimSpace(text)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
