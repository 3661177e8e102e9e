package main

import (
	"bufio"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"target": main, "oneshot": main})
}

// TestScripts runs testdata/script/*.txtar against the command as a process. Short runs, which the race detector watches, leave out
// scripts without a daemon: their commands do one thing after the other.
func TestScripts(t *testing.T) {
	all, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	scripts := slices.DeleteFunc(all, func(path string) bool {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return testing.Short() && !strings.Contains(string(text), "\nstart ")
	})
	if len(scripts) < 5 {
		t.Errorf("only %d scripts", len(scripts))
	}
	testscript.Run(t, testscript.Params{
		Files:               scripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               reservePorts,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": cmdStatus,
			"start":  cmdStart,
			"end":    cmdEnd,
			"hangup": cmdHangup,
		},
	})
}

// reservePorts has $PORT1 to $PORT4 and $PORT_OF_6 stand for free ports, the last one of ::1, in the script and in its files.
func reservePorts(env *testscript.Env) error {
	var names []string
	for name, ip := range map[string]string{"PORT1": "127.0.0.1", "PORT2": "127.0.0.1", "PORT3": "127.0.0.1", "PORT4": "127.0.0.1", "PORT_OF_6": "::1"} {
		at, release, err := targettest.Reserve(netip.MustParseAddr(ip))
		if err != nil {
			return err
		}
		env.Defer(release)
		port := strconv.Itoa(int(at.Port()))
		env.Setenv(name, port)
		names = append(names, "$"+name, port)
	}
	files, err := filepath.Glob(filepath.Join(env.WorkDir, "*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a directory
		}
		if err := os.WriteFile(f, []byte(strings.NewReplacer(names...).Replace(string(b))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// process is the daemon that cmdStart has started.
type process struct {
	cmd    *exec.Cmd
	stderr strings.Builder
}

// cmdStatus runs a command and expects an exit status: status 2 target serve x.
// It leaves the output of the command in the files out and err.
func cmdStatus(ts *testscript.TestScript, _ bool, args []string) {
	cmd := program(ts, args[1:])
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		ts.Fatalf("%v", err)
	}
	write(ts, "out", stdout.String())
	write(ts, "err", stderr.String())
	if got := strconv.Itoa(cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("status %s, want %s\n%s%s", got, args[0], stdout.String(), stderr.String())
	}
}

// cmdStart starts a daemon and waits until it says that it listens.
func cmdStart(ts *testscript.TestScript, _ bool, args []string) {
	p := &process{cmd: program(ts, args)}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	running.Store(ts, p)
	ts.Defer(func() {
		if _, left := running.LoadAndDelete(ts); left { // a script that failed before end
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "serving ") {
		p.cmd.Wait()
		running.Delete(ts)
		ts.Fatalf("the daemon says %q, %v\n%s", line, err, p.stderr.String())
	}
	write(ts, "serving", line)
}

// running holds the daemon of each script; scripts run in parallel.
var running sync.Map

// cmdHangup sends SIGHUP to the daemon and waits until the output of target status matches:
// hangup SOCKET REGEXP.
func cmdHangup(ts *testscript.TestScript, _ bool, args []string) {
	found, ok := running.Load(ts)
	if !ok {
		ts.Fatalf("no daemon was started")
	}
	p, want := found.(*process), regexp.MustCompile(args[1])
	ts.Check(p.cmd.Process.Signal(syscall.SIGHUP))
	var out []byte
	for start := time.Now(); !want.Match(out); {
		if time.Since(start) > 30*time.Second {
			ts.Fatalf("30 s after SIGHUP: %s", out)
		}
		var err error
		out, err = program(ts, []string{"target", "status", "--socket", args[0]}).CombinedOutput()
		if err != nil {
			ts.Fatalf("%v: %s", err, out)
		}
	}
}

// cmdEnd sends a signal to the daemon and expects an exit status: end 0 TERM.
func cmdEnd(ts *testscript.TestScript, _ bool, args []string) {
	found, ok := running.LoadAndDelete(ts)
	if !ok {
		ts.Fatalf("no daemon was started")
	}
	p := found.(*process)
	signal := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT}[args[1]]
	ts.Check(p.cmd.Process.Signal(signal))
	err := p.cmd.Wait()
	write(ts, "log", p.stderr.String())
	if got := strconv.Itoa(p.cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("status %s, want %s: %v\n%s", got, args[0], err, p.stderr.String())
	}
}

// program finds the command where testscript has put it: in the script's PATH.
func program(ts *testscript.TestScript, args []string) *exec.Cmd {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, args[0])
		if _, err := os.Stat(path); err != nil {
			continue
		}
		cmd := exec.Command(path, args[1:]...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"), socketVariable+"="+ts.Getenv(socketVariable))
		return cmd
	}
	ts.Fatalf("no command %s", args[0])
	return nil
}

func write(ts *testscript.TestScript, name, text string) {
	ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
}
