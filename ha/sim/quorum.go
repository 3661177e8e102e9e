package sim

import (
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	voting "oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// group is consensus by package ha/quorum in place of the model: elections, logs, proposals that take their time or
// are lost. Each node has a voter, and two copies have a witness. What a power cut does to a log the simulation of
// that package tries; here a log keeps all that was written.
type group struct {
	*run
	voters []*voter
}

// voter is a member in the process of a node.
type voter struct {
	*group
	name   string
	number uint64
	at     replica.ID // in the network
	node   *node      // nil: the witness, or the world has not begun
	lives  uint32     // of the node, when core began
	disk   files
	core   *voting.Core
	views  *voting.Views
}

const quorumTick = 60 * time.Millisecond

// foundGroup makes the group, before the world begins, and lets it agree on the first view.
func (r *run) foundGroup() {
	g := &group{run: r}
	r.group = g
	places := []replica.ID{}
	for _, n := range r.nodes {
		places = append(places, n.id)
	}
	if len(places) == 2 {
		places = append(places, witness)
	}
	for _, at := range places {
		g.voters = append(g.voters, &voter{group: g, name: fmt.Sprintf("node-%d", at), at: at, disk: files{}})
	}
	first := g.voters[0]
	if _, err := voting.Init(first.disk, "sim", first.name, false, 0); err != nil {
		panic(err)
	}
	first.number = 1
	first.open()
	for _, v := range g.voters[1:] {
		g.join(v)
	}
	g.rehearse(func() bool {
		all := true
		for _, v := range g.voters {
			voters, _ := v.core.Voters()
			view, ok := v.views.Now()
			all = all && len(voters) == 3 && ok && view == r.view
		}
		if _, ok := first.views.Now(); !ok {
			_ = first.views.Propose(r.view)
		}
		return all
	})
	for _, v := range g.voters {
		if v.at != witness {
			v.node, v.lives = r.nodes[v.at], r.nodes[v.at].lives
		}
		v.tick()
	}
}

// join makes a member of v.
func (g *group) join(v *voter) {
	first, token := g.voters[0], []byte(v.name)
	if _, err := first.core.AddToken(token); err != nil {
		panic(err)
	}
	if _, err := first.core.Join(v.name, v.at == witness, [32]byte{byte(v.at)}, token); err != nil {
		panic(err)
	}
	g.rehearse(func() bool {
		members := first.core.State().Members()
		i := slices.IndexFunc(members, func(m voting.Member) bool { return m.Name == v.name })
		if i >= 0 {
			v.number = members[i].Number
		}
		return i >= 0
	})
	l, err := voting.CreateLog(v.disk, voting.Identity{Cluster: first.core.Hello().Cluster, Number: v.number, Name: v.name}, nil, g.r.Uint64)
	if err != nil {
		panic(err)
	}
	_ = l.Close()
	v.open()
}

// rehearse lets the group work on a network that loses nothing, until something holds.
func (g *group) rehearse(holds func() bool) {
	for range 10000 {
		for _, v := range g.voters {
			if v.core == nil {
				continue
			}
			v.core.Tick()
			out := v.work()
			v.views.Agreed(&out)
			for _, m := range out.Messages {
				if to := g.voter(m.Raft.GetTo()); to != nil {
					to.core.Receive(m)
				}
			}
		}
		if holds() {
			return
		}
	}
	panic("the group does not get ready")
}

func (g *group) voter(number uint64) *voter {
	i := slices.IndexFunc(g.voters, func(v *voter) bool { return v.number == number && v.core != nil })
	if i < 0 {
		return nil
	}
	return g.voters[i]
}

// open begins a life.
func (v *voter) open() {
	l, err := voting.OpenLog(v.disk, v.r.Uint64)
	if err != nil {
		panic(err)
	}
	if v.core, err = voting.Start(l, slog.New(slog.DiscardHandler)); err != nil {
		panic(err)
	}
	if v.views, err = voting.ViewsOf(v.core, "main", 0); err != nil {
		panic(err)
	}
}

// runs says whether the process does anything; after a kill it begins with what its log holds.
func (v *voter) runs() bool {
	if v.node == nil {
		return v.witnessUp
	}
	if v.node.core == nil || v.node.paused {
		return false
	}
	if v.lives != v.node.lives {
		v.lives = v.node.lives
		v.open()
	}
	return true
}

func (v *voter) tick() {
	if v.runs() {
		v.core.Tick()
		v.send()
	}
	v.after(quorumTick+v.between(0, time.Millisecond), v.tick)
}

// work lets consensus save and apply, and tells the core of the mirror.
func (v *voter) work() voting.Output {
	var out voting.Output
	if err := v.core.Work(&out); err != nil {
		panic(err)
	}
	return out
}

// send does what follows from an event.
func (v *voter) send() {
	out := v.work()
	for _, view := range v.views.Agreed(&out) {
		v.agree(view)
		if v.node != nil {
			v.node.tell(replica.Agreed{View: view})
		}
	}
	for _, m := range out.Messages {
		to := v.voter(m.Raft.GetTo())
		if to == nil || !v.reaches(v.at, to.at) || !v.reaches(to.at, v.at) {
			v.core.Unreachable(m.Raft.GetTo())
			continue
		}
		v.after(v.between(200*time.Microsecond, 3*time.Millisecond), func() {
			if to.runs() && v.reaches(v.at, to.at) {
				to.core.Receive(m)
				to.send()
			}
		})
	}
}

// agree notes a view that a voter is the first to know.
func (g *group) agree(v replica.View) {
	if v.Version != g.view.Version+1 {
		if v.Version <= g.view.Version && g.views[v.Version-1] != v {
			g.fail(1, "version %d is agreed on as %+v and as %+v", v.Version, g.views[v.Version-1], v)
		}
		return
	}
	g.agreed(v)
}

// propose is what a core asks for. It gets there after the step of the core.
func (g *group) propose(n *node, view replica.View) {
	life := n.lives
	g.after(g.between(0, time.Millisecond), func() {
		for _, v := range g.voters {
			if v.node == n && n.lives == life && v.runs() {
				_ = v.views.Propose(view)
				v.send()
			}
		}
	})
}

// news tells a node of the newest view that its voter knows.
func (g *group) news(n *node) {
	for _, v := range g.voters {
		if v.node == n && v.runs() {
			if view, ok := v.views.Now(); ok {
				n.tell(replica.Agreed{View: view})
			}
		}
	}
}

// files is a directory in memory that loses nothing.
type files map[string]*content

type content struct{ b []byte }

func (f files) ReadFile(name string) ([]byte, error) {
	if c := f[name]; c != nil {
		return slices.Clone(c.b), nil
	}
	return nil, fs.ErrNotExist
}

func (f files) Create(name string) (voting.File, error) {
	f[name] = &content{}
	return f[name], nil
}

func (f files) Rename(from, to string) error {
	f[to] = f[from]
	delete(f, from)
	return nil
}

func (f files) Remove(name string) error { delete(f, name); return nil }
func (f files) SyncDir() error           { return nil }

func (c *content) WriteAt(b []byte, off int64) (int, error) {
	c.b = append(c.b[:min(int(off), len(c.b))], b...)
	return len(b), nil
}

func (c *content) Sync() error  { return nil }
func (c *content) Close() error { return nil }
