package machine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"oneshot/internal/debian"
)

const (
	// Root is where the guest of a Rooted has its root file system, and Lower where it has that as the host has it.
	Root  = "/mnt/root"
	Lower = "/mnt/lower"
	// prepareTime is a limit that only a machine that hangs reaches.
	prepareTime = 2 * time.Minute
)

// prepare makes Root, with what is mounted there in any system.
const prepare = `set -e
mkdir -p ` + Lower + ` /mnt/up /mnt/work ` + Root + `
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root ` + Lower + `
mount -t overlay -o lowerdir=` + Lower + `,upperdir=/mnt/up,workdir=/mnt/work none ` + Root + `
mount --bind /proc ` + Root + `/proc
mount --bind /sys ` + Root + `/sys
mount --bind /dev ` + Root + `/dev
mount -t tmpfs none ` + Root + `/run
`

// Rooted is a machine with a root file system of the host's, which the guest can change for itself, in memory. Its methods may be called by
// several goroutines at once.
type Rooted struct {
	*Machine
	env []string
	dir string
}

// BootRooted starts a machine with the kernel k, whose image it makes in cache, and which loads modules in addition to those that it needs
// itself. root is the host's directory. env is the whole environment of commands in there. more are arguments of qemu.
func BootRooted(cache string, k *debian.Kernel, root string, modules, env []string, more ...string) (*Rooted, error) {
	img, err := Build(cache, k, Contents{
		Modules:  slices.Concat([]string{"virtio_pci", "virtio_net", "virtio_console", "9pnet_virtio", "9p", "overlay"}, modules),
		Programs: []string{"/bin/bash", "/bin/mount", "/bin/mkdir", "/usr/sbin/chroot"},
	})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vm") // a short path
	if err != nil {
		return nil, err
	}
	m, err := Boot(img, dir, append([]string{"-m", "4096", "-virtfs", Share(root, "root")}, more...)...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r := &Rooted{m, env, dir}
	if _, err := r.Run(prepareTime, "bash", "-c", prepare); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

// Share is the value of qemu's -virtfs for a directory of the host, which the guest mounts by the tag, and cannot change.
func Share(dir, tag string) string {
	return "local,path=" + dir + ",mount_tag=" + tag + ",security_model=none,readonly=on,multidevs=remap"
}

// Stop ends the guest as a power failure would.
func (r *Rooted) Stop() {
	r.Machine.Stop()
	_ = os.RemoveAll(r.dir)
}

// Run runs a command outside of Root, and returns its output, and an error if it fails (*ExitError) or does not end.
func (r *Rooted) Run(limit time.Duration, argv ...string) (string, error) {
	c, err := r.Start(argv...)
	if err != nil {
		return "", err
	}
	out, err := c.Wait(limit)
	switch {
	case err != nil:
		return out, err
	case c.Exit == -1:
		return out, fmt.Errorf("the guest is gone\n%s", r.Log())
	case c.Exit != 0:
		return out, &ExitError{argv, c.Exit, out}
	}
	return out, nil
}

// ExitError is that of a command that has failed.
type ExitError struct {
	Argv []string
	Exit int
	Out  string
}

func (e *ExitError) Error() string { return fmt.Sprintf("%q: exit %d\n%s", e.Argv, e.Exit, e.Out) }

// In is Run for a script of bash in Root.
func (r *Rooted) In(limit time.Duration, script string, args ...string) (string, error) {
	return r.Run(limit, slices.Concat([]string{"chroot", Root, "/usr/bin/env", "-i"}, r.env, []string{"/bin/bash", "-c", script, "in"}, args)...)
}
