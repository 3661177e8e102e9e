package quorum

import (
	"context"
	"net"
	"slices"
)

// Status is what this node knows.
type Status struct {
	Cluster string
	Number  uint64 // of this node
	Leader  uint64 // 0: none
	Term    uint64
	Members []Member
	Voters  []uint64
	Former  []uint64 // voters whose majority is needed as well, while a change of the voters is under way
	// Settling says that this node leads, and that new voters may not know yet that they vote: if the leader is lost now the others may have to wait for it.
	Settling bool
	Heard    []uint64 // members that are connected, and this node
	Stuck    []uint64 // members that say that their disk takes nothing, so that they take no part
	Trouble  error    // why this node takes no part

	// Infos are what nodes say of themselves, by name, as far as this one knows.
	Infos map[string]*NodeInfo
	// Broken says why this node cannot send to a member, by number, where it has tried and cannot.
	Broken map[uint64]string
	// Clocks says by how much the clock of a member is faster than that of this node, as a part of 1, by number, where that is much. Less than 0: it is slower.
	Clocks map[uint64]float64
}

// Member returns the member of that number, nil if there is none.
func (s *Status) Member(number uint64) *Member {
	for i := range s.Members {
		if s.Members[i].Number == number {
			return &s.Members[i]
		}
	}
	return nil
}

// CanSpare reports whether a majority of the voters, and of the former ones while they change, is up without the member of that name, and takes part:
// the disk of one that is heard may be full. It is true where there is nothing to lose: the member is leaving already, there is none, or it is the
// only one, which consensus does not let go.
func (s *Status) CanSpare(name string) bool {
	var number uint64
	others := 0
	for _, m := range s.Members {
		switch {
		case m.Leaving != Stays:
		case m.Name == name:
			number = m.Number
		default:
			others++
		}
	}
	if number == 0 || others == 0 {
		return true
	}
	for _, voters := range [][]uint64{s.Voters, s.Former} {
		up := 0
		for _, v := range voters {
			if m := s.Member(v); m != nil && v != number && m.Leaving == Stays && s.takesPart(v) {
				up++
			}
		}
		if len(voters) > 0 && up <= len(voters)/2 {
			return false
		}
	}
	return true
}

// takesPart says whether a member is heard, and its disk takes something, as far as this node knows.
func (s *Status) takesPart(number uint64) bool {
	return slices.Contains(s.Heard, number) && !slices.Contains(s.Stuck, number) && (number != s.Number || s.Trouble == nil)
}

// voterNames returns the names of the voters.
func (s *Status) voterNames() (names []string) {
	for _, v := range s.Voters {
		if m := s.Member(v); m != nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// Status returns what this node knows, without asking others.
func (n *Node) Status() (s Status) {
	n.look(func() { s = n.status() })
	return s
}

// status is called by the owner.
func (n *Node) status() Status {
	s := Status{Cluster: n.core.state.name, Number: n.core.log.id.Number, Members: n.core.state.Members(), Trouble: n.why()}
	s.Leader, s.Term = n.core.Leader()
	s.Voters, s.Former = n.core.Voters()
	s.Settling = n.core.Settling()
	s.Infos, s.Broken = map[string]*NodeInfo{}, map[uint64]string{}
	s.Clocks = map[uint64]float64{}
	for number, p := range n.peers {
		if faster := p.clock(); faster != 0 {
			s.Clocks[number] = faster
		}
		if why := p.reason(); why != "" {
			s.Broken[number] = why
		}
	}
	for _, m := range s.Members {
		if r := n.core.state.Get(Key{KindNode, m.Name}); r != nil {
			if info, err := DecodeNodeInfo(r.Value); err == nil { // else of a newer version
				s.Infos[m.Name] = info
			}
		}
		if r := n.core.hears(m.Number); r != nil && r.Stuck {
			s.Stuck = append(s.Stuck, m.Number)
		}
		if in := n.incoming[m.Number]; m.Number == s.Number || in != nil && n.isHeard(in) {
			s.Heard = append(s.Heard, m.Number)
		}
	}
	return s
}

// StuckTurned returns a channel with a token whenever Status.Stuck may have changed, or whether there is a Status.Trouble. It is for one who asks.
func (n *Node) StuckTurned() <-chan struct{} { return n.turned }

func (n *Node) stuckTurned() {
	select {
	case n.turned <- struct{}{}:
	default:
	}
}

// await is a call of Await.
type await struct {
	holds func(*Status) bool
	found chan Status // has room for one
}

// Await returns the status when holds returns true for it: at once, or after a change. holds is called by the
// goroutine that owns the node.
func (n *Node) Await(ctx context.Context, holds func(*Status) bool) (Status, error) {
	a := &await{holds, make(chan Status, 1)}
	if n.doFor(ctx, func() { n.awaits[a] = true }) == net.ErrClosed {
		return Status{}, net.ErrClosed
	}
	select {
	case s := <-a.found:
		return s, nil
	case <-ctx.Done():
		n.look(func() { delete(n.awaits, a) })
		return n.Status(), ctx.Err()
	case <-n.ended:
		return Status{}, net.ErrClosed
	}
}

// tell looks at what is awaited.
func (n *Node) tell() {
	if len(n.awaits) == 0 {
		return
	}
	s := n.status()
	for a := range n.awaits {
		if a.holds(&s) {
			delete(n.awaits, a)
			a.found <- s
		}
	}
}
