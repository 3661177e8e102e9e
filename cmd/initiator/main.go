// Command initiator uses iSCSI disks without the help of the kernel: over TCP, iSER and
// one-shot RDMA, in user space. It also uses partitions, without SCSI.
//
//	initiator ls URL                    targets of a node, LUNs of a target
//	initiator inquiry URL               vendor, product, serial number and names of a disk
//	initiator read URL [FILE]           copy a disk to a file or standard output
//	initiator write URL [FILE]          copy a file or standard input to a disk
//	initiator bench URL                 put a load on a disk and measure it
//	initiator attach URL                make a block device of a disk
//	initiator detach DEVICE             end such a device
//	initiator attached                  list such devices
//	initiator partition ls URL          partitions of a service
//	initiator partition read URL [FILE]
//	initiator partition write URL [FILE]
//	initiator partition bench URL       as with disks
//	initiator version                   print the version
//
// The exit status is 0 for success, 1 if something failed, and 2 for a command line that
// makes no sense.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"oneshot/internal/command"
	"oneshot/internal/loglimit"
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
	command.ShowExitStatus(root)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command.Completion(root, misused)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted by a signal")
	}
	out, flush := loglimit.ForLastWords(err, stderr)
	defer flush()
	fmt.Fprintf(out, "%s: %s\n", name, plainLines(err.Error()))
	if _, wrong := errors.AsType[*usageError](err); wrong {
		return exitUsage
	}
	return exitError
}

// misused is the error for a command that was called in a way that makes no sense.
func misused(c *cobra.Command, reason string) error {
	return &usageError{fmt.Errorf("%s; %s --help explains", reason, c.CommandPath())}
}

// usageError is the error for a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
