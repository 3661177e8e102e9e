// Command initiator uses iSCSI disks without a kernel's help: over TCP, over iSER and over
// one-shot RDMA in user space.
//
//	initiator ls URL                    targets of a node, LUNs of a target
//	initiator inquiry URL               what a disk says of itself
//	initiator read URL [FILE]           copy a disk to a file or standard output
//	initiator write URL [FILE]          copy a file or standard input to a disk
//	initiator bench URL                 put a load on a disk and say what it took
//	initiator version                   say what this is
//
// It exits with 0 when all went well, with 1 when something failed, and with 2 when it was
// called wrongly.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"oneshot/internal/command"
)

const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process.
func run(ctx context.Context, arg0 string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	name := command.Name(arg0, "initiator")
	command.Rename(root, name)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if _, wrong := errors.AsType[*usageError](err); wrong {
		return exitUsage
	}
	return exitError
}

// usageError is a call that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
