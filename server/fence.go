package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"oneshot/config"
	"oneshot/ha/replica"
)

const (
	// fenceTime is how long the command of a fence may take.
	fenceTime = time.Minute
	// fenceRest is the time after a command's end in which the node is not fenced again: it has served several mirrors, perhaps, or is
	// starting.
	fenceRest = time.Minute
	// fenceWords bounds what is kept of the command's output, in bytes.
	fenceWords = 1 << 10
)

// successions finds out whom a node has lost, from the states of its copy, one after the other. Some may be missed.
type successions struct {
	self   replica.ID
	former replica.View // the last one with another primary; zero: none since this node was the primary
}

// lost returns the node that this one has taken over from, and that is not there any more: it has neither handed over nor promised anything to the
// new primary, so it is not in sync by the new view. 0: there is none, or it is not known, since an office between the two was missed.
func (f *successions) lost(s replica.State) replica.ID {
	v := &s.View
	if s.Role != replica.Primary || v.Primary != f.self {
		if v.Primary != f.self {
			f.former = *v
		}
		return 0
	}
	former := f.former
	f.former = replica.View{}
	if v.Term != former.Term+1 || v.Planned || v.InSync.Has(former.Primary) {
		return 0
	}
	return former.Primary
}

// fences are the commands by which nodes lose their power.
func fencesOf(c *config.Cluster) map[string][]string {
	commands := make(map[string][]string)
	for _, n := range c.Nodes {
		commands[n.Name] = n.Fence
	}
	return commands
}

// fence runs the command that takes the power from a node, if the configuration has one. It does not wait for it. The mirror is the one that this node has
// taken over; that of another one, a moment later, has the node fenced no second time.
func (m *member) fence(node, mirror string) {
	command := (*m.fences.Load())[node]
	if len(command) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fenced[node] {
		return
	}
	m.fenced[node] = true
	m.wg.Go(func() {
		log := m.log.With("node", node, "mirror", mirror, "program", command[0])
		log.Warn("the node is fenced: this one has taken over from it")
		began := time.Now()
		says, err := runFence(m.ctx, fenceTime, command, "ONESHOT_NODE="+node, "ONESHOT_MIRROR="+mirror)
		if err == nil {
			log.Warn("the node was fenced", "took", time.Since(began), "says", says)
		} else {
			log.Error("the node could not be fenced", "took", time.Since(began), "says", says, "reason", err)
		}
		select {
		case <-m.ctx.Done():
		case <-time.After(fenceRest):
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.fenced, node)
	})
}

// runFence runs a command until it ends, but no longer than limit, nor than ctx, and returns the end of what it says. Its processes end with it, and with
// this one.
func runFence(ctx context.Context, limit time.Duration, command []string, env ...string) (says string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	runtime.LockOSThread() // whose end the kernel takes for that of the parent (prctl(2), PR_SET_PDEATHSIG)
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...) // the daemon's own may have secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for somebody who has left the group, and has the output open
	out := new(lastWords)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it has not ended within %v, and was killed: %w", limit, context.DeadlineExceeded)
	}
	return string(bytes.TrimSpace(out.b)), err
}

// lastWords keeps the end of what is written.
type lastWords struct{ b []byte }

func (w *lastWords) Write(b []byte) (int, error) {
	w.b = append(w.b, b...)
	w.b = w.b[max(0, len(w.b)-fenceWords):]
	return len(b), nil
}
