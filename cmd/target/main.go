// Command target serves block stores to initiators of iSCSI and hosts of NVMe over Fabrics.
//
//	target serve [--config FILE]     serve until SIGTERM or SIGINT
//	target check --config FILE       validate, and show what would be served
//	target reload                    make a daemon read its configuration again
//	target status, target sessions   show what a daemon serves, to whom, and how fast
//	target session drop ID           end a session, or a controller
//	target access, target access set show and set access states of paths
//	target partition ls|create|…     divide stores, and say who may use what
//	target endpoint ls|drop          show and end the users of partitions
//	target ha init|join|status|…     make a cluster of nodes, and look after it
//	target witness, target keeper    vote in a cluster; hold addresses that go with mirrors
//	target import FILE               turn another target's configuration into ours
//	target rdma                      list the kernel's RDMA devices
//	target nic                       be an RDMA card for other programs
//	target version                   print the version and what is compiled in
//
// The exit status is 0 for success, 1 if the configuration is not valid or something
// failed, and 2 for a command line that makes no sense.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"oneshot/config"
	"oneshot/internal/command"
	"oneshot/internal/loglimit"
)

const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// Linux gives a signal to the first thread of a process, unless that thread does not want it. In a read of a disk that hangs it wants it, and
// cannot take it: the signal lies there until the read is over, and nobody else hears of it. So the first thread is main's alone, which
// waits for signals.
func init() { runtime.LockOSThread() }

func main() { os.Exit(run(os.Args[0], os.Args[1:], os.Stdout, os.Stderr)) }

// usualName is what the program is built as. Packages install it under another name.
const usualName = "target"

// run is main without the process.
func run(arg0 string, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	name := command.Name(arg0, usualName)
	command.Rename(root, name)
	command.ShowExitStatus(root)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command.Completion(root, misused)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	out, flush := loglimit.ForLastWords(err, stderr)
	defer flush()
	report(out, name, err)
	if _, wrong := errors.AsType[*usageError](err); wrong {
		return exitUsage
	}
	return exitError
}

// report prints an error for the person at the terminal: in one line, or, for a
// configuration that is not valid, with all of its problems.
func report(w io.Writer, name string, err error) {
	bad, ok := errors.AsType[*config.Error](err)
	if !ok {
		fmt.Fprintf(w, "%s: %v\n", name, err)
		return
	}
	fmt.Fprintf(w, "%v\n\n", bad)
	fmt.Fprintf(w, "%s: %s in %s\n", name, problems(bad), bad.Problems[0].Pos.File)
}

// problems returns "1 problem", "2 problems" or "more than 100 problems".
func problems(bad *config.Error) string {
	text := count(len(bad.Problems), "problem")
	if bad.More {
		text = "more than " + text
	}
	return text
}

// count returns "1 problem" or "2 problems".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
