package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/iscsi"
	"oneshot/mgmt"
	"oneshot/scsi"
)

// Apply makes next the configuration that the server serves. Sessions go on, except those whose
// target is gone or no longer admits their initiator. Unit attentions tell initiators of LUNs
// that come, go and grow. Apply first does everything that can fail: after an error nothing has
// changed. The error is one line that says what to change.
func (s *Server) Apply(next *config.Config) (mgmt.Reload, error) {
	return s.ApplyFor(context.Background(), next)
}

// turn waits until no other change is under way, and keeps others waiting until done is called. If ctx ends before, the change is not to be made.
func (s *Server) turn(ctx context.Context) (done func(), err error) {
	done = func() {}
	select {
	case s.applying <- struct{}{}:
		done = func() { <-s.applying }
	case <-s.ended:
		return nil, errClosing
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		done()
		return nil, fmt.Errorf("another change is under way still: %w", err)
	}
	return done, nil
}

// ApplyFor is Apply for somebody who may give up. If ctx ends while another change is under way, nothing changes.
func (s *Server) ApplyFor(ctx context.Context, next *config.Config) (mgmt.Reload, error) {
	done, err := s.turn(ctx)
	if err != nil {
		return mgmt.Reload{}, err
	}
	defer done()
	c := s.newChange(next)
	if err := c.prepare(); err != nil {
		return mgmt.Reload{}, errors.Join(append([]error{err}, c.abandon()...)...)
	}
	kept := s.member.sockets()
	changed, err := c.commit()
	if list := s.member.sockets(); !slices.Equal(list, kept) {
		_ = s.member.keeper.Keep(list) // at once, for the next reload may listen there; if it is not done, Run does it
	}
	return changed, err
}

// inForce returns the configuration that is served: the last one that was applied, except for the
// keys that take effect only in a new process.
func (s *Server) inForce() *config.Config {
	c := *s.cfg
	l := s.first.Limits
	c.Limits.Commands, c.Limits.Memory, c.Limits.MemoryPerConnection = l.Commands, l.Memory, l.MemoryPerConnection
	c.Limits.ConnectionsPerSession = l.ConnectionsPerSession
	c.Cluster = clusterInForce(s.cfg, s.first)
	c.Log.Format, c.State, c.ISNS = s.first.Log.Format, s.first.State, s.first.ISNS
	c.Stores = slices.Clone(c.Stores)
	for i := range c.Stores {
		c.Stores[i] = s.units.inForce(c.Stores[i])
	}
	return &c
}

// inForce returns c, of the last configuration that was applied, with the options and the size that it has while it is open. The pace of a
// mirror is no such option: each reload sets it.
func (u *units) inForce(c config.Store) config.Store {
	var opened *config.Store
	if s := u.stores[medium(&c)]; s != nil {
		opened = s.opened
	} else if d := u.divided[medium(&c)]; d != nil {
		opened = d.opened
	}
	if opened == nil {
		return c
	}
	o := *opened
	o.Name, o.Pos, o.ReadOnly = c.Name, c.Pos, c.ReadOnly
	if o.Mirror != nil {
		m := *o.Mirror
		m.Resync, o.Mirror = c.Mirror.Resync, &m
	}
	return o
}

// change is a change under way.
type change struct {
	s    *Server
	plan *plan
	next *config.Config

	units   units // after the change
	changes map[string][]scsi.LUChange
	added   []*iscsi.Target
	targets map[string]*scsi.Target // after the change
	resized []*openStore
	opened  []openPortal
	done    []string
	pending []string

	services services     // after the change
	handler  http.Handler // new handler of a metrics service that stays; nil: it keeps its own
}

// newChange returns the change to next.
func (s *Server) newChange(next *config.Config) *change {
	return &change{s: s, plan: newPlan(s.inForce(), next), next: next, units: s.units.fresh()}
}

// prepare does everything that can fail, without disturbing what serves; abandon undoes it. It holds no lock,
// because stores may take long to open.
func (c *change) prepare() error {
	c.pending = slices.Clone(c.plan.pending)
	for _, step := range []func() error{c.prepareStores, c.prepareTargets, c.prepareSubsystems, c.preparePortals, c.prepareServices, c.prepareSizes} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) prepareStores() error {
	for _, s := range c.plan.frozen {
		if o, d := c.s.units.stores[medium(s)], c.s.units.divided[medium(s)]; o != nil && !bottom(o.opened).ReadOnly || d != nil && !bottom(d.opened).ReadOnly {
			continue // only a former reload has said that nobody writes
		}
		return fmt.Errorf("%s: the store %q was opened read-only, and this process cannot open it again to write: make it writable, and restart", s.Pos, s.Name)
	}
	for _, s := range c.plan.converted {
		return fmt.Errorf("%s: the store %q is open as a whole, divided, or for objects, and this process cannot make the one out of the other: change nothing else, and restart", s.Pos, s.Name)
	}
	c.keepStores()
	c.units.belows.takeStale() // of a change that was abandoned
	former := formerly(c.next)
	for _, store := range c.plan.open {
		s, err := patiently(c, func() (*openStore, error) { return c.units.openStore(store, former[medium(store)]) })
		if err != nil {
			return err
		}
		c.units.stores[medium(store)] = s
		c.created(s.made)
		if c.next.KeepsObjects(store.Name) {
			s.heap = c.units.heaps.begin(store.Name, s.volume.Store(), s.mirror, c.s.log.With("store", store.Name))
		}
	}
	for _, store := range c.plan.divide {
		d, err := patiently(c, func() (*divided, error) { return c.units.openDivided(store) })
		if err != nil {
			return err
		}
		c.units.divided[medium(store)] = d
		c.created(d.made)
	}
	for _, l := range c.plan.parts {
		s, err := c.units.openPartition(c.next, l.target, l.to)
		if err != nil {
			return err
		}
		c.units.stores[mediumOf(c.next, l.to)] = s
	}
	c.replaced()
	for _, s := range c.units.belows.takeStale() {
		c.pending = append(c.pending, fmt.Sprintf("%s: the options of the store %q, which others stand on, will change at the next start only", s.Pos, s.Name))
	}
	return nil
}

// created says which files the opening of stores has made: where a path has a mistake, a LUN shows a new disk from now on.
func (c *change) created(made []heldFile) {
	for _, m := range made {
		if m.Created() {
			c.did("file %s created", m.Path())
		}
	}
}

// replaced says which files were removed, or have others in their places, while stores hold them open: whoever has put another file there to be
// served learns that it is not, and what becomes of the one that is.
func (c *change) replaced() {
	for i := range c.next.Stores {
		store := &c.next.Stores[i]
		var files []heldFile
		if s := c.units.stores[medium(store)]; s != nil {
			files = s.made
		} else if d := c.units.divided[medium(store)]; d != nil {
			files = d.made
		}
		for _, f := range files {
			if f.Replaced() {
				c.pending = append(c.pending, fmt.Sprintf("%s: the store %q goes on with a file that was removed from %s, or replaced there, until the daemon ends; then what initiators have written to it is lost", store.Pos, store.Name, f.Path()))
			}
		}
	}
}

// keepStores takes over what is open and stays.
func (c *change) keepStores() {
	for medium := range shown(c.next) {
		if s := c.s.units.stores[medium]; s != nil {
			c.units.stores[medium] = s
		}
	}
	for medium := range dividedIn(c.next) {
		if d := c.s.units.divided[medium]; d != nil {
			c.units.divided[medium] = d
		}
	}
}

// patiently opens something. If that fails it may be in use by what is going, and is tried again.
func patiently[T any](c *change, open func() (T, error)) (T, error) {
	going := c.s.retirements.going()
	s, err := open()
	if err != nil && going != nil && !errors.Is(err, errKeepsSize) {
		select {
		case <-going:
		case <-time.After(retirePatience):
		}
		return open()
	}
	return s, err
}

// prepareTargets makes the logical units and targets that are new.
func (c *change) prepareTargets() error {
	c.changes = make(map[string][]scsi.LUChange)
	for i := range c.next.Targets {
		t := &c.next.Targets[i]
		for j := range t.LUNs {
			if err := c.keep(t, &t.LUNs[j]); err != nil {
				return err
			}
		}
	}
	c.targets = maps.Clone(c.s.targets)
	for _, t := range c.plan.remove {
		delete(c.targets, t.Name)
	}
	for _, t := range c.plan.add {
		st := c.s.newTarget(t)
		for j := range t.LUNs {
			st.SetLU(t.LUNs[j].Number, c.unit(t, &t.LUNs[j]))
		}
		c.targets[t.Name] = st
		c.added = append(c.added, nodeTarget(t, st))
	}
	for _, l := range c.plan.luns {
		put := scsi.LUChange{LUN: l.number}
		if l.to != nil {
			put.LU = c.unit(l.target, l.to)
		}
		c.changes[l.target.Name] = append(c.changes[l.target.Name], put)
	}
	return nil
}

// keep takes over the logical unit of a LUN if there is one already, or makes it.
func (c *change) keep(t *config.Target, l *config.LUN) error {
	s := c.units.stores[mediumOf(c.next, l)]
	key := keyOf(t, l, s)
	if lu := c.s.units.made[key]; lu != nil {
		c.units.made[key] = lu
		return nil
	}
	_, err := c.units.unit(t, l, s)
	return err
}

// unit returns the logical unit of a LUN, which keep has taken over or made.
func (c *change) unit(t *config.Target, l *config.LUN) *scsi.LogicalUnit {
	return c.units.made[keyOf(t, l, c.units.stores[mediumOf(c.next, l)])]
}

// preparePortals opens the new portals. Some of them may need the address of a portal that commit will close.
func (c *change) preparePortals() error {
	for _, p := range c.plan.openPortals {
		l, err := c.s.listen(p, c.inTheWay(p))
		if err != nil {
			return err
		}
		c.opened = append(c.opened, l)
	}
	return nil
}

// inTheWay returns the portals that commit will close and that occupy the address of p.
func (c *change) inTheWay(p *config.Portal) (list []portal) {
	for _, old := range c.s.portals {
		closes := slices.ContainsFunc(c.plan.closePortals, func(q *config.Portal) bool { return equal(*q, old.config) })
		if closes && old.bound().Overlaps(*p) {
			list = append(list, old.portal)
		}
	}
	return list
}

// prepareSizes comes last, because a store that has grown cannot shrink again.
func (c *change) prepareSizes() error {
	for _, store := range c.plan.resize {
		size, err := patiently(c, func() (int64, error) { return c.resize(store) })
		if errors.Is(err, errKeepsSize) {
			c.pending = append(c.pending, fmt.Sprintf("%s: a %s store keeps its size while it is in use; that of %q will change at the next start only", store.Pos, store.Type, store.Name))
			continue
		}
		if err != nil {
			err = fmt.Errorf("%s: store %q: %w", store.Pos, store.Name, err)
			for _, done := range c.resized {
				err = fmt.Errorf("%w; the store %q has %d bytes already", err, done.name, done.volume.Store().Info().Size)
			}
			return err
		}
		c.did("store %q has %s", store.Name, config.FormatSize(size))
	}
	return nil
}

var errKeepsSize = errors.New("stores of this type keep their size while they are open")

// resize gives a store, divided or not, the size of the configuration, and returns that in bytes.
func (c *change) resize(store *config.Store) (size int64, err error) {
	if d := c.units.divided[medium(store)]; d != nil {
		r, ok := backend.As[backend.Resizer](d.Whole())
		if !ok {
			return 0, errKeepsSize
		}
		if err = r.Resize(store.Size); err == nil {
			d.opened.Size = store.Size
		}
		return d.Whole().Info().Size, err
	}
	s := c.units.stores[medium(store)]
	can, err := s.volume.Resize(store.Size)
	if !can {
		return 0, errKeepsSize
	}
	if err == nil {
		c.resized = append(c.resized, s)
		s.opened.Size = store.Size
	}
	return s.volume.Store().Info().Size, err
}

// abandon undoes prepare.
func (c *change) abandon() []error {
	for _, p := range c.opened {
		_ = p.Close()
	}
	var errs []error
	if m := c.s.member; m != nil && m.keeper != nil {
		errs = append(errs, m.keeper.GiveUp(m.sockets()))
	}
	c.abandonServices()
	fresh := c.units.without(&c.s.units)
	for _, s := range fresh.stores {
		errs = append(errs, undo(s.made)...)
	}
	for _, d := range fresh.divided {
		errs = append(errs, undo(d.made)...)
	}
	return append(errs, fresh.close(c.s.ctx)...)
}

// errClosing is the answer to a change during or after a shutdown.
var errClosing = errors.New("the target is stopping")

// commit makes the change take effect. It cannot fail.
func (c *change) commit() (mgmt.Reload, error) {
	s := c.s
	c.narrowAccess() // it waits for connections, and nobody is to wait for mu then
	gone := s.units.without(&c.units)
	handOver(gone.mirrors()) // while their portals listen, and their addresses are here
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return mgmt.Reload{}, errors.Join(append([]error{errClosing}, c.abandon()...)...)
	}
	defer s.mu.Unlock()
	limits := nodeLimits(c.next)
	limits.Connections = s.connectionLimit(limits.Connections)
	s.node.SetLimits(limits)
	s.nvme.SetLimits(nvmeLimits(c.next))
	s.nvme.SetReferrals(referralsOf(c.next))
	most := c.next.Limits
	most.Connections = limits.Connections
	s.fronts[config.TransportIWARP].(*iwarpFront).partitions.setLimits(&most)
	s.fronts[config.TransportIWARP].(*iwarpFront).objects.setLimits(&most)
	c.done = append(c.done, c.plan.changed...)
	if s.member != nil && c.next.Cluster.Name == s.first.Cluster.Name {
		s.member.configure(&c.next.Cluster)
	}
	for _, store := range c.plan.paces {
		c.units.stores[medium(store)].mirror.SetPace(paceOf(store.Mirror))
	}
	c.commitTargets()
	c.commitSubsystems()
	c.commitPortals()
	c.commitServices()
	c.commitDivided(&gone)
	s.units, s.targets = c.units, c.targets
	s.cfg, s.loaded = c.next, time.Now()
	s.setPorts()
	s.announce()
	s.retire(gone)
	return mgmt.Reload{Done: c.done, Pending: c.pending}, nil
}

func (c *change) commitTargets() {
	for _, t := range c.plan.remove {
		c.s.node.RemoveTarget(t.Name)
		st := c.s.targets[t.Name]
		var all []scsi.LUChange
		for _, l := range t.LUNs {
			all = append(all, scsi.LUChange{LUN: l.Number})
		}
		st.SetLUs(all) // sessions that have not ended yet reach no logical unit any more
		c.did("target %s removed", t.Name)
	}
	for name, changes := range c.changes {
		c.targets[name].SetLUs(changes)
	}
	for _, t := range c.plan.access {
		c.s.node.ReplaceTarget(nodeTarget(t, c.targets[t.Name]))
		c.did("target %s has other rules of access", t.Name)
	}
	for _, l := range c.plan.luns {
		c.did("%s", l)
	}
	for _, s := range c.resized {
		s.volume.SizeChanged()
	}
	for _, t := range c.added {
		c.s.node.AddTarget(t)
		c.did("target %s added", t.Name)
	}
}

// narrowAccess is the first of two steps to other rules of access for targets whose LUNs change, too. Sessions go on of those who are
// admitted before and after it, and nobody logs in: whoever comes is not to see the LUNs of others as they were, and whoever has to go not as
// they will be. The commands of sessions that end are known to their logical units when it returns, and no more come.
func (c *change) narrowAccess() {
	narrowed := false
	for _, t := range c.plan.access {
		if len(c.changes[t.Name]) == 0 {
			continue
		}
		n, was := nodeTarget(t, c.targets[t.Name]), findTarget(c.s.cfg, t.Name)
		n.Changing = true
		n.Admit = func(initiator string) bool { return was.Admits(initiator) && t.Admits(initiator) }
		c.s.node.ReplaceTarget(n)
		narrowed = true
	}
	if narrowed {
		c.s.node.Quiesce()
	}
}

// commitDivided has divided stores be found by their names, and those that are gone not be found any more.
func (c *change) commitDivided(gone *units) {
	for _, d := range gone.divided {
		d.Withdraw()
	}
	for i := range c.next.Stores {
		store := &c.next.Stores[i]
		if d := c.units.divided[medium(store)]; d != nil && store.Partitioned {
			d.name = store.Name
			d.Publish(store.Name, store.ReadOnly)
		}
	}
}

func (l lunChange) String() string {
	var from, to string
	if l.from != nil {
		from = l.from.Shows()
	}
	if l.to != nil {
		to = l.to.Shows()
	}
	return fmt.Sprintf("LUN %d of %s %s", l.number, l.target.Name, verb(from, to, equal(l.from, l.to)))
}

// verb says what happens to a view of the store from, which is to be one of the store to; empty: there is none. alike says that both are
// shown in the same way.
func verb(from, to string, alike bool) string {
	switch {
	case from == "":
		return "added"
	case to == "":
		return "removed"
	case from != to:
		return "shows " + to + " in place of " + from
	case alike:
		return "shows another " + to
	}
	return "shows " + to + " in another way"
}

func (c *change) commitPortals() {
	for _, p := range c.plan.closePortals {
		i := slices.IndexFunc(c.s.portals, func(o openPortal) bool { return equal(o.config, *p) })
		_ = c.s.portals[i].Close()
		c.did("portal %s closed", c.s.portals[i].Addr())
		c.s.portals = slices.Delete(c.s.portals, i, i+1)
	}
	for _, p := range c.opened {
		c.s.portals = append(c.s.portals, p)
		if c.s.serving {
			c.s.start(p)
		}
		c.did("portal %s opened", p.Addr())
	}
	place := func(p openPortal) int {
		return slices.IndexFunc(c.next.Portals, func(q config.Portal) bool { return equal(q, p.config) })
	}
	slices.SortStableFunc(c.s.portals, func(a, b openPortal) int { return cmp.Compare(place(a), place(b)) })
}

func (c *change) did(format string, args ...any) {
	c.done = append(c.done, fmt.Sprintf(format, args...))
}

// drainPoll is the time between two looks at units that were removed, until their last command has ended.
const drainPoll = 20 * time.Millisecond

// await waits until no unit has a command, and no volume is the source or destination of a copy, or shown by a unit that an earlier change
// has removed and that has commands still. It returns when ctx ends, too: commands then hang in a store.
func (u *units) await(ctx context.Context) {
	for !u.idle() && ctx.Err() == nil {
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
		}
	}
}

func (u *units) idle() bool {
	own := make(map[*openStore]int) // views that go together with their store
	for key, lu := range u.made {
		if !lu.Idle() {
			return false
		}
		own[key.store]++
	}
	for key, ns := range u.spaces {
		if !ns.Idle() {
			return false
		}
		own[key.store]++
	}
	for _, s := range u.stores {
		if !s.idle() || int(s.views.Load()) > own[s] {
			return false
		}
	}
	return true
}

// retire closes the units and stores that no LUN shows any more, once their commands have ended. mu is held.
func (s *Server) retire(gone units) {
	if len(gone.made)+len(gone.spaces)+len(gone.stores)+len(gone.divided) == 0 {
		return
	}
	s.retirements.begin()
	s.wg.Go(func() {
		defer s.retirements.end()
		s.node.Quiesce()
		s.nvme.Quiesce()
		gone.await(s.ctx)
		for _, err := range gone.close(s.ctx) {
			s.log.Error("cannot close a store that no LUN shows any more", "reason", err)
		}
	})
}

// retirePatience is how long a change that cannot open a store waits for stores that are being closed.
const retirePatience = 10 * time.Second

// retirements counts the calls of retire whose stores are still being closed in the background.
type retirements struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0; nil while n is 0
}

func (r *retirements) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n++; r.n == 1 {
		r.none = make(chan struct{})
	}
}

func (r *retirements) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 {
		close(r.none)
		r.none = nil
	}
}

// going returns a channel that is closed once no store is being closed any more; nil: none is.
func (r *retirements) going() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none
}
