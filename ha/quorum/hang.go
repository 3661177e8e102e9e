package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// hangsAfter is how long the owner waits for the disk, and nobody can change anything. A disk that takes longer hangs.
const hangsAfter = time.Second

// saving is something that the disk is busy with.
type saving struct {
	began  time.Time
	number uint64 // of the newest batch then
	done   chan error
}

// errHangs is what the log says of a disk that hangs. For how long it does hangs tells.
var errHangs = errors.New("its disk does not answer")

// onDisk has another goroutine do f, which waits for the disk and changes nothing but the log, and waits for it for up to hangsAfter. Meanwhile others may look
// at the node. While the disk hangs all goes on as while it is full: the node takes nothing in, but others take what it has to say to the leader.
func (n *Node) onDisk(f func() error) (ended bool, err error) {
	s := n.saving.Load()
	if s == nil {
		s = &saving{time.Now(), n.core.log.newest(), make(chan error, 1)}
		n.saving.Store(s)
		n.wg.Go(func() { s.done <- f() })
	}
	late := time.NewTimer(time.Until(s.began.Add(hangsAfter)))
	defer late.Stop()
	for {
		select {
		case err := <-s.done:
			n.saving.Store(nil)
			if n.core.log.newest() != s.number {
				n.core.Saved(time.Since(s.began))
			}
			return true, err
		case look := <-n.looks:
			look()
		case <-late.C:
			return false, errHangs
		}
	}
}

// hangs says for how long the disk has not saved what it got; nil: it was not long.
func (n *Node) hangs() error {
	s := n.saving.Load()
	if s == nil || time.Since(s.began) < hangsAfter {
		return nil
	}
	return fmt.Errorf("the disk of the consensus log has not answered for %v, so this node takes part in nothing until it does", time.Since(s.began).Truncate(time.Second))
}

// why says why the node takes no part; nil: it does. Owner only.
func (n *Node) why() error { return cmp.Or(n.core.Refused(), n.hangs(), n.trouble) }
