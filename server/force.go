package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/backend/device"
	"oneshot/backend/file"
	"oneshot/config"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// Force is what it would mean to have a node that does not run go on without others that are lost for good: as a cluster of
// its own, or, for one mirror, in a cluster that goes on.
type Force struct {
	Name    string // of the cluster, or of the mirror: what the administrator confirms
	Node    string // that goes on
	Others  []ForcedOther
	Mirrors []ForcedMirror

	config *config.Config
	dir    *quorum.Dir
	log    *quorum.Examined
	known  []known
	alone  string // the mirror that it is about; empty: all of the cluster
}

// ForcedOther is a node that would be left out.
type ForcedOther struct {
	Name, Address string
	Lives         bool   // somebody answers there
	Says          string // what came of the attempt to reach it
}

// ForcedMirror says what a mirror would have and lose.
type ForcedMirror struct {
	Name      string
	HasCopy   bool // of this node
	HasView   bool // there was a primary
	WasInSync bool
	Unknown   bool     // the disk was exchanged or set back
	Term      uint64   // the newest that this node knows
	Primary   string   // of that term
	InSync    []string // others that had all that was acknowledged then
	Mark      uint64   // all records up to it are on the disk of this node
	Missing   int64    // bytes that its copy goes without, because no copy could read them

	view      replica.View
	store     *quorum.Store
	set       *quorum.Set
	isStrange bool   // the copy has no metadata, or is of another lineage than the one in force
	isOther   bool   // the disk is not the one of the metadata, or there is none
	short     string // path of the file of the copy, if that has lost its end
	length    int64  // bytes that it had
}

// lengthen gives a file that has lost its end, which the administrator has been told, another one: it is taken as it is then.
func (m *ForcedMirror) lengthen() error {
	if m.short == "" {
		return nil
	}
	return os.Truncate(m.short, m.length)
}

// reachTime is how long another node may take to answer.
const reachTime = 2 * time.Second

// reach says whether somebody answers at the address of a node.
func reach(ctx context.Context, at string) (lives bool, says string) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		return false, err.Error()
	}
	_ = conn.Close()
	return true, "somebody answers"
}

// PlanForce finds out what it would mean to force a node, whose directory is open, and changes nothing. A mirror is named if
// it is about that one alone, in a cluster whose majority goes on.
func PlanForce(ctx context.Context, cfg *config.Config, dir *quorum.Dir, mirrorName string) (*Force, error) {
	c := &cfg.Cluster
	e, err := quorum.Examine(dir)
	if err != nil {
		return nil, err
	}
	f := &Force{Name: c.Name, Node: c.Self, config: cfg, dir: dir, log: e, alone: mirrorName}
	switch {
	case e.Cluster() != c.Name || e.Identity().Name != c.Self:
		return nil, fmt.Errorf("the state is that of node %s of cluster %s, and this is node %s of %s", e.Identity().Name, e.Cluster(), c.Self, c.Name)
	case e.IsWitness():
		return nil, fmt.Errorf("node %s is a witness and has no copy of anything: force a node that has one", c.Self)
	case mirrorName == "" && len(e.Others()) == 0:
		return nil, fmt.Errorf("node %s is the only member of the cluster already: start it", c.Self)
	}
	if mirrorName != "" {
		f.Name = mirrorName
		if err := f.askMajority(ctx); err != nil {
			return nil, err
		}
	} else {
		f.known = knownOf(e.Records(quorum.KindStore), e.Records(quorum.KindSet))
	}
	for i := range f.known {
		if mirrorName == "" || f.known[i].name == mirrorName {
			m, err := f.mirrorOf(&f.known[i])
			if err != nil {
				return nil, err
			}
			f.Mirrors = append(f.Mirrors, *m)
		}
	}
	if mirrorName != "" {
		switch {
		case len(f.Mirrors) == 0:
			return nil, fmt.Errorf("there is no mirror %s in the cluster", mirrorName)
		case !f.Mirrors[0].HasCopy:
			return nil, fmt.Errorf("node %s has no copy of %s: nodes %s have", c.Self, mirrorName, strings.Join(f.Mirrors[0].store.Copies, ", "))
		case !f.Mirrors[0].HasView:
			return nil, fmt.Errorf("the mirror %s has never had a primary, so nothing is lost: start node %s, with whose copy it begins", mirrorName, f.Mirrors[0].store.Copies[0])
		}
	}
	f.reachAll(ctx)
	return f, nil
}

// mirrorOf says what this node has of a mirror.
func (f *Force) mirrorOf(k *known) (*ForcedMirror, error) {
	self := idIn(k.Store, f.Node)
	m := &ForcedMirror{Name: k.name, HasCopy: self != 0, HasView: k.view.Version > 0, store: k.Store, view: k.view, set: k.set}
	if self == 0 || !m.HasView {
		return m, nil
	}
	dir, err := quorum.OpenDir(filepath.Join(f.config.Cluster.State, mirrorsDir, k.name))
	if err != nil {
		return nil, err
	}
	kept, err := mirror.Inspect(dir)
	own, lineageErr := readLineage(dir)
	noted, _, notedErr := readRecord(dir)
	if err := errors.Join(err, lineageErr, dir.Close()); err != nil {
		return nil, err
	}
	m.WasInSync = k.view.InSync.Has(self)
	if m.isStrange = kept == nil || own != k.set.Lineage; m.isStrange {
		m.WasInSync = false
	} else {
		if kept.View.Version > m.view.Version {
			m.view = kept.View
			m.WasInSync = m.WasInSync && m.view.InSync.Has(self)
		}
		m.Mark, m.Unknown, m.Missing = kept.Mark, kept.Unknown, kept.Missing
		m.WasInSync = m.WasInSync && !kept.Unknown
	}
	if m.isOther = kept != nil && !f.isDisk(k.name, kept.Disk); m.isOther {
		m.WasInSync, m.Unknown = false, true
	}
	if s := f.config.Store(k.name); !m.isOther && kept != nil && notedErr == nil && s != nil && s.Mirror != nil {
		if c := s.Mirror.Copy(f.Node); c != nil && isShort(c, noted) {
			m.WasInSync, m.Unknown, m.short, m.length = false, true, c.File.Path, noted.Size
		}
	}
	m.Term, m.Primary = m.view.Term, k.node(m.view.Primary)
	for id := range m.view.InSync.Without(self).All() {
		m.InSync = append(m.InSync, k.node(id))
	}
	return m, nil
}

// isDisk reports whether the disk of this node's copy of a mirror is the one of that identity. If the configuration has no such copy nobody knows.
func (f *Force) isDisk(name, identity string) bool {
	s := f.config.Store(name)
	if s == nil || s.Mirror == nil {
		return true
	}
	c := s.Mirror.Copy(f.Node)
	if c == nil {
		return true
	}
	if c.Type == config.StoreFile {
		ids, err := file.IdentitiesOf(c.File.Path)
		return err == nil && slices.Contains(ids, backend.Identity(identity))
	}
	now, err := device.IdentityOf(c.Device.Path)
	return err == nil && string(now) == identity
}

// leftOut lists the nodes that may serve a mirror with what they have: those with a copy in sync, though they be members no more, for who was
// sent away and has not heard of it goes on; and, if the cluster is left behind, all its members.
func (f *Force) leftOut() (names []string) {
	if f.alone == "" {
		for _, m := range f.log.Members() {
			names = append(names, m.Name)
		}
	}
	for i := range f.Mirrors {
		names = append(names, f.Mirrors[i].InSync...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == f.Node })
}

// reachAll tries to reach those who would be left out.
func (f *Force) reachAll(ctx context.Context) {
	for _, name := range f.leftOut() {
		o := ForcedOther{Name: name, Says: "the configuration has no address of it"}
		if c := f.config.Cluster.Node(name); c != nil {
			o.Address = c.Address
		}
		f.Others = append(f.Others, o)
	}
	var wg sync.WaitGroup
	for i := range f.Others {
		if o := &f.Others[i]; o.Address != "" {
			wg.Go(func() { o.Lives, o.Says = reach(ctx, o.Address) })
		}
	}
	wg.Wait()
}

// Living returns the nodes that live, so that nothing may be forced.
func (f *Force) Living() (names []string) {
	for _, o := range f.Others {
		if o.Lives {
			names = append(names, o.Name)
		}
	}
	return names
}

// Do forces it, and returns tokens for the other nodes of the configuration, in their order.
func (f *Force) Do(ctx context.Context) ([]quorum.Token, error) {
	if f.alone != "" {
		return nil, f.doMirror(ctx)
	}
	id := f.log.Identity()
	past := former{cluster: id.Cluster, seen: map[uint64]quorum.Seen{}}
	for _, m := range f.log.Members() {
		if s := f.log.Seen(m.Number); m.Number != id.Number {
			past.seen[m.Number] = quorum.Seen{Incarnation: max(s.Incarnation, m.Incarnation), Nonce: s.Nonce, Batch: s.Batch}
			if m.Incarnation > s.Incarnation {
				past.seen[m.Number] = quorum.Seen{Incarnation: m.Incarnation, Nonce: m.Nonce, Batch: s.Batch}
			}
		}
	}
	records := []*quorum.Record{f.next(formerKey, past.encode(f.log.Members()))}
	for i := range f.Mirrors {
		m := &f.Mirrors[i]
		key := quorum.Key{Kind: quorum.KindSet, Name: m.store.SetName(m.Name)}
		switch {
		case !m.HasCopy:
			records = append(records, f.gone(quorum.Key{Kind: quorum.KindStore, Name: m.Name}))
			if m.HasView {
				records = append(records, f.gone(key))
			}
		case m.HasView:
			if err := m.lengthen(); err != nil {
				return nil, err
			}
			if m.isStrange || m.isOther {
				if err := f.order(m); err != nil {
					return nil, err
				}
			}
			s := m.next(f.Node)
			records = append(records, &quorum.Record{Key: key, Version: s.View.Version, Value: s.Encode()})
		}
	}
	return f.log.Force(records, len(f.config.Cluster.Nodes)-1)
}

// next is the next version of a record.
func (f *Force) next(k quorum.Key, value []byte) *quorum.Record {
	r := &quorum.Record{Key: k, Version: 1, Value: value}
	if old := f.log.Get(k); old != nil {
		r.Version = old.Version + 1
	}
	return r
}

func (f *Force) gone(k quorum.Key) *quorum.Record {
	r := f.next(k, nil)
	r.Deleted = true
	return r
}

// next is the set with the first view of another lineage.
func (m *ForcedMirror) next(node string) *quorum.Set {
	self := idIn(m.store, node)
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return &quorum.Set{
		Lineage: max(1, binary.BigEndian.Uint64(b[:])), Former: m.set.Lineage, Forced: self, WasInSync: m.WasInSync,
		View: replica.View{Version: m.view.Version + 1, Term: m.view.Term + 1, First: m.view.First, Primary: self, InSync: replica.NodesOf(self)},
	}
}

// majorityTime is how long the voters may take to find a leader.
const majorityTime = 10 * time.Second

// inCluster does something as the member that this node is, while a majority of the voters answers.
func (f *Force) inCluster(ctx context.Context, do func(ctx context.Context, n *quorum.Node) error) error {
	l, err := net.Listen("tcp", f.config.Cluster.Node(f.Node).Address)
	if err != nil {
		return fmt.Errorf("cannot listen for the other nodes: %w", err)
	}
	n, err := quorum.Open(quorum.Options{
		Cluster: f.config.Cluster.Name, Name: f.Node, FS: f.dir, Listener: l, Log: slog.New(slog.DiscardHandler),
		Dial: quorum.DialTCP(func(name string) (string, error) {
			if c := f.config.Cluster.Node(name); c != nil {
				return c.Address, nil
			}
			return "", fmt.Errorf("the configuration has no address of node %s", name)
		}),
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, majorityTime)
	defer cancel()
	s, err := n.Await(ctx, func(s *quorum.Status) bool { return s.Leader != 0 || s.Trouble != nil })
	switch {
	case err == nil && s.Trouble != nil:
		err = s.Trouble
	case err != nil:
		err = fmt.Errorf("no majority of the voters answers: bring voters back; if they are lost for good, have this node go on as a cluster of its own: target ha force, without a mirror")
	default:
		err = do(ctx, n)
	}
	return errors.Join(err, n.Close())
}

// askMajority learns what is in force.
func (f *Force) askMajority(ctx context.Context) error {
	return f.inCluster(ctx, func(ctx context.Context, n *quorum.Node) error {
		if _, err := n.Get(ctx, formerKey); err != nil { // what was agreed on before is known here then
			return noMajority(cmp.Or(err, quorum.ErrUnknown))
		}
		f.known = knownOf(n.Records(quorum.KindStore), n.Records(quorum.KindSet))
		return nil
	})
}

// order notes that the copy of a mirror may be the one with which a lineage begins.
func (f *Force) order(m *ForcedMirror) error {
	dir, err := quorum.OpenDir(filepath.Join(f.config.Cluster.State, mirrorsDir, m.Name))
	if err != nil {
		return err
	}
	return errors.Join((&order{Forced: true, Other: m.isOther}).write(dir), dir.Close())
}

// doMirror begins a lineage of one mirror.
func (f *Force) doMirror(ctx context.Context) error {
	m := &f.Mirrors[0]
	if err := m.lengthen(); err != nil {
		return err
	}
	if err := f.order(m); err != nil {
		return err
	}
	return f.inCluster(ctx, func(ctx context.Context, n *quorum.Node) error {
		next := m.next(f.Node)
		_, err := n.Put(ctx, quorum.Key{Kind: quorum.KindSet, Name: m.store.SetName(m.Name)}, next.View.Version-1, next.Encode())
		if errors.Is(err, quorum.ErrConflict) {
			return fmt.Errorf("the mirror %s has changed since this was asked: begin again", m.Name)
		}
		return err
	})
}

// Rejoin is what a node would give up that comes back to a cluster that has gone on without it.
type Rejoin struct {
	Mirrors []string // of which it has copies

	cluster *config.Cluster
	dir     *quorum.Dir
	log     *quorum.Examined // nil: there is none
}

// PlanRejoin finds out what it would mean that a node, whose directory is open, gives its own state up, and changes nothing.
func PlanRejoin(c *config.Cluster, dir *quorum.Dir) (*Rejoin, error) {
	r := &Rejoin{cluster: c, dir: dir}
	dirs, err := mirrorDirs(c.State)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		r.Mirrors = append(r.Mirrors, filepath.Base(d))
	}
	// A log that is lost, or damaged, is worth nothing anyway.
	if e, err := quorum.Examine(dir); err == nil {
		r.log = e
	}
	return r, nil
}

// IsNode says whether the node has a log that can be read. It may be a member that others rely on, so nothing is given up before a cluster has taken the
// node in anew.
func (r *Rejoin) IsNode() bool { return r.log != nil }

// GiveUp orders that the bytes of former lineages may be overwritten, at the next start of the node. If it is to join the
// cluster anew its membership goes, and with it what it has promised: a log that cannot be read at once, another one when the new membership begins.
func (r *Rejoin) GiveUp(anew bool) error {
	o := order{GiveUp: true}
	if anew {
		o.Cluster = ^uint64(0) // nobody knows which
		if r.log != nil {
			id := r.log.Identity()
			o.Cluster, o.Number, o.Incarnation, o.Nonce, o.Batch = id.Cluster, id.Number, id.Incarnation, id.Nonce, r.log.Batch()
		}
	}
	for _, name := range r.Mirrors {
		dir, err := quorum.OpenDir(filepath.Join(r.cluster.State, mirrorsDir, name))
		if err != nil {
			return err
		}
		// After a crash the log may be gone already, and the order knows whose it was.
		var before order
		isOrdered, err := before.read(dir)
		if isOrdered && err == nil && before.GiveUp && r.log == nil {
			o = before
		}
		if err := errors.Join(o.write(dir), dir.Close()); err != nil {
			return err
		}
	}
	if !anew || r.IsNode() {
		return nil
	}
	return quorum.Discard(r.dir)
}
