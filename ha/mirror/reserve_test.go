package mirror

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/ha/reservations"
	"oneshot/volume/access"
)

// nexus is one with the table of a node.
type nexus struct {
	holder access.Holder
	table  *access.Table
	denied atomic.Uint32
}

func (n *nexus) Holder() access.Holder { return n.holder }
func (n *nexus) Session() any          { return n }
func (n *nexus) Tell(access.Event)     {}
func (n *nexus) Abort(done func())     { done() }
func (n *nexus) Deny(mask, denied access.Denial) {
	n.denied.Store(n.denied.Load()&^uint32(mask) | uint32(denied))
}

// do sends a command until it is answered with something else than BUSY.
func (n *nexus) do(t *testing.T, c access.Change) (s access.State) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		again, over := c, make(chan struct{})
		again.By = n
		if !n.table.Do(&again, func() { close(over) }) {
			<-over
		}
		switch {
		case again.Result == access.Done:
			return again.State
		case again.Result != access.NotNow, time.Since(began) > time.Minute:
			t.Fatalf("%+v: result %d, %v", c, again.Result, again.Err)
		}
	}
}

// TestReservationsWhileLeadersHang: hosts fence each other through both nodes of a mirror while the disk of the leader of consensus hangs in the middle, the
// primary's now and then. What is answered is done, once, and stays; whatever was not is done once when the host sends it again.
func TestReservationsWhileLeadersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMembers(t, false)
		defer c.close()
		view := quorum.Set{View: replica.View{Version: 1, Term: 1, First: 1, Primary: 1, InSync: replica.NodesOf(1, 2)}}
		if _, err := c.nodes["a"].Put(t.Context(), quorum.Key{Kind: quorum.KindSet, Name: "main"}, 0, view.Encode()); err != nil {
			t.Fatal(err)
		}
		nexuses := map[string][2]*nexus{} // of two hosts, by node
		for i, name := range []string{"a", "b"} {
			table := access.NewTable(access.Nothing(), nil)
			r := reservations.Begin(table, reservations.Options{
				Consensus: c.nodes[name], Set: "main", Node: name, Log: slog.New(slog.DiscardHandler),
				Term: func() uint64 { return uint64(1 - i) }, Prove: func(uint64) error { return nil },
			})
			defer r.Close()
			var both [2]*nexus
			for h, host := range []string{"x", "y"} {
				both[h] = &nexus{table: table, holder: access.Holder{
					Initiator: access.Initiator{Protocol: access.ISCSI, Name: "iqn." + host, Port: "400000000001"},
					Port:      access.Port{Target: "iqn.t", Group: uint16(i + 1)},
				}}
				table.Subscribe(both[h])
			}
			nexuses[name] = both
		}
		generation := uint32(0)
		for round := range 12 {
			through := []string{"b", "a"}[round%2]
			winner, loser := round/2%2, 1-round/2%2
			s := c.nodes["a"].Status()
			leader := s.Member(s.Leader)
			if leader == nil {
				t.Fatal("there is no leader")
			}
			goOn := c.disks[leader.Name].stall()
			later := time.AfterFunc(time.Duration(1+round)*time.Second, goOn)
			ours, theirs := nexuses[through][winner], nexuses["a"][loser]
			ports := []access.PortOf{{Port: ours.holder.Port, Relative: 1}}
			key, other := uint64(1+winner), uint64(1+loser)
			theirs.do(t, access.Change{Op: access.RegisterAndIgnore, NewKey: other, Ports: []access.PortOf{{Port: theirs.holder.Port, Relative: 1}}})
			ours.do(t, access.Change{Op: access.RegisterAndIgnore, NewKey: key, Ports: ports})
			ours.do(t, access.Change{Op: access.Reserve, Key: key, Kind: access.WriteExclusiveRegistrants})
			ours.do(t, access.Change{Op: access.PreemptAndAbort, Key: key, NewKey: other, Kind: access.WriteExclusiveRegistrants})
			if theirs.denied.Load()&uint32(access.Writes) == 0 || nexuses["a"][winner].denied.Load() != 0 && through == "a" {
				t.Fatalf("round %d: the primary lets %s write, who was fenced, or denies it to who has fenced", round, theirs.holder.Initiator.Name)
			}
			ours.do(t, access.Change{Op: access.Clear, Key: key})
			generation += 4
			for _, both := range nexuses {
				if s := both[0].do(t, access.Change{Op: access.Look}); s.Generation != generation || len(s.Registrations) != 0 {
					t.Fatalf("round %d: generation %d, want %d; %+v", round, s.Generation, generation, s.Registrations)
				}
			}
			later.Stop()
			goOn()
		}
	})
}
