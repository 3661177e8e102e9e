package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The cores of a Pair.
const (
	TargetCore = 0
	ClientCore = 1
)

// Pair is a benchmark in which this project's daemon runs on one core and its initiator on another, over the loopback interface.
type Pair struct {
	Options
	Target, Initiator string // paths of the programs

	processes []*exec.Cmd
}

// Flags adds the flags that such a benchmark has besides those of Main.
func (b *Pair) Flags() {
	flag.StringVar(&b.Target, "target", "bin/target", "the target's `binary`")
	flag.StringVar(&b.Initiator, "initiator", "bin/initiator", "the initiator's `binary`")
}

// Run calls measure with a directory that is removed afterwards, while both cores are kept from halting. When it returns, the
// processes that were started have ended.
func (b *Pair) Run(measure func(dir string) error) (err error) {
	if runtime.NumCPU() <= max(TargetCore, ClientCore) {
		return fmt.Errorf("needs two cores, one for the target and one for the client; this machine has %d", runtime.NumCPU())
	}
	dir, err := os.MkdirTemp("", "oneshot-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer b.stop()
	// Waking a halted core takes a time that depends on the hypervisor: a loop of idle priority keeps it from halting.
	for _, core := range []int{TargetCore, ClientCore} {
		if _, err := b.Start(core, "chrt", "--idle", "0", "sh", "-c", "while :; do :; done"); err != nil {
			return err
		}
	}
	return measure(dir)
}

// Start starts a program on a core, and returns its PID. It runs until Run ends.
func (b *Pair) Start(core int, args ...string) (pid int, err error) {
	c := exec.Command("taskset", append([]string{"-c", fmt.Sprint(core)}, args...)...) // becomes the program that it starts
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return 0, fmt.Errorf("%s: %w (run it in the root of the checkout, after `make build`)", args[0], err)
	}
	b.processes = append(b.processes, c)
	return c.Process.Pid, nil
}

func (b *Pair) stop() {
	for _, c := range b.processes {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// Await waits until somebody listens at each address. Nobody tells when that is.
func Await(network string, addrs ...string) (err error) {
	for _, addr := range addrs {
		for range 200 {
			var c net.Conn
			if c, err = net.Dial(network, addr); err == nil {
				_ = c.Close()
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Load runs initiator bench with args on the client's core, and decodes its answer, which is JSON, into sample.
func (b *Pair) Load(ctx context.Context, sample any, args ...string) error {
	return b.LoadUnder(ctx, nil, sample, args...)
}

// LoadUnder is Load as the end of another command.
func (b *Pair) LoadUnder(ctx context.Context, command []string, sample any, args ...string) error {
	args = append([]string{"taskset", "-c", fmt.Sprint(ClientCore), b.Initiator, "bench", "--json"}, args...)
	args = slices.Concat(command, args)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return said(err)
	}
	return json.Unmarshal(out, sample)
}

// said is the error of a command, with the words of the command itself if it had any.
func said(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		return errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// Compare takes the samples of one point: every contender that o selects has its turn in every round. It calls row for each, in
// their order, with the sample that is the median by IOPS, and the extremes.
func Compare[C fmt.Stringer, S any](ctx context.Context, o *Options, p Point, contenders []C, once func(C) (S, error), iops func(S) float64, row func(c C, median S, low, high float64)) error {
	cs := slices.DeleteFunc(slices.Clone(contenders), func(c C) bool { return !o.Only.MatchString(c.String()) })
	samples, err := Rounds(ctx, o, cs, func(c C) (S, error) {
		s, err := once(c)
		if err != nil {
			return s, fmt.Errorf("%s, %s: %w", c, p, err)
		}
		return s, nil
	})
	if err != nil {
		return err
	}
	for i, c := range cs {
		s := samples[i]
		slices.SortFunc(s, func(a, b S) int { return cmp.Compare(iops(a), iops(b)) })
		row(c, s[len(s)/2], iops(s[0]), iops(s[len(s)-1]))
	}
	return nil
}
