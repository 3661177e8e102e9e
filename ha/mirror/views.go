package mirror

import (
	"sync"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// consensus is the record of a set, as this node's member of the cluster knows it.
type consensus struct {
	node    *quorum.Node
	set     string
	lineage uint64
	next    chan replica.View // the newest that was proposed and is not on its way
}

// ConsensusOn returns the views of a set on which the members of a cluster agree. The node has to live longer than the
// mirror. A copy of another lineage learns who is primary in the one that is in force, and proposes nothing.
func ConsensusOn(n *quorum.Node, set string, lineage uint64) Views {
	return &consensus{node: n, set: set, lineage: lineage, next: make(chan replica.View, 1)}
}

// Watch implements Views.
func (c *consensus) Watch(f func(replica.View)) (stop func(), err error) {
	follower, err := c.node.Follow(c.set, c.lineage, f)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ended:
				return
			case v := <-c.next:
				_ = follower.Propose(v) // what fails is asked for again
			}
		}
	})
	return func() {
		follower.Close()
		close(ended)
		wg.Wait()
	}, nil
}

// Propose implements Views. It takes the place of one that has not left yet.
func (c *consensus) Propose(v replica.View) {
	for {
		select {
		case c.next <- v:
			return
		default:
		}
		select {
		case <-c.next:
		default:
		}
	}
}
