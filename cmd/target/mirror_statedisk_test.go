//go:build !race

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend/backendtest"
	"oneshot/mgmt"
)

// TestMirrorStateDiskHangs: the file system with the state directory of the primary takes nothing any more, under load, while the disk of its copy is well. The
// other node serves, and says why; the node itself says so, too. When the file system goes on, all copies are in sync again, and the mirror can come back.
func TestMirrorStateDiskHangs(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s := newSiteOf(t, mirrorText)
	freeze, thaw := s.withState("a")
	s.startAll()
	l := s.beginLoad()
	s.servedBy("a")
	l.more(100)
	freeze()
	s.untilCluster("b", "b serves, and says why", func(c *mgmt.Cluster) bool {
		return c.Mirrors[0].Role == mgmt.RolePrimary && c.Members[0].Stuck
	})
	l.more(100)
	s.untilCluster("b", "a is left out", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Copies[0].State == mgmt.CopyStale })
	s.untilCluster("a", "a says what is wrong, and does not serve", func(c *mgmt.Cluster) bool {
		return c.Trouble != "" && c.Mirrors[0].Role != mgmt.RolePrimary
	})
	l.more(100)
	thaw()
	s.untilCluster("b", "a is back", func(c *mgmt.Cluster) bool { return !c.Members[0].Stuck && isLevel(&c.Mirrors[0]) })
	s.servedBy("a")
	l.more(100)
	s.endLoad(l)
}

// withState has the state directory of a node be a file system of its own, which freeze stops: whoever writes to it waits until thaw is called, or the test ends.
func (s *site) withState(name string) (freeze, thaw func()) {
	s.t.Helper()
	image, dir := s.path(name, "state.img"), s.path(name, "consensus")
	err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20), os.Mkdir(dir, 0o700))
	if err == nil {
		err = exec.Command("mkfs.ext4", "-q", image).Run()
	}
	if err == nil {
		err = unix.Mount(backendtest.NewLoopOf(s.t, image, 512).Path, dir, "ext4", 0, "")
	}
	if err != nil {
		s.t.Fatal(err)
	}
	ask := func(request uint) error {
		root, err := os.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(unix.IoctlSetInt(int(root.Fd()), request, 0), root.Close())
	}
	must := func(request uint) {
		s.t.Helper()
		if err := ask(request); err != nil {
			s.t.Fatal(err)
		}
	}
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878              // linux/fs.h
	context.AfterFunc(s.t.Context(), func() { _ = ask(fiThaw) }) // before processes are killed: they end only when it goes on
	s.t.Cleanup(func() {
		s.kill(name)
		_ = unix.Unmount(dir, unix.MNT_DETACH) // it ends with the namespace
	})
	return func() { must(fiFreeze) }, func() { must(fiThaw) }
}
