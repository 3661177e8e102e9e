package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"oneshot/config"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/mgmt"
)

// What the administrator asks of a mirror its primary does. Any node of the cluster takes the request, and asks the
// primary over a stream of consensus if that is another one.
const mirrorsStream = "mirrors"

// here is a Server that asks nobody else.
type here struct{ *Server }

// listenPeers serves what other nodes ask of the mirrors of this one, until close.
func (m *member) listenPeers(s *Server) error {
	l, err := m.node.Listen(mirrorsStream)
	if err != nil {
		return err
	}
	m.peers = newService("mirrors", l, mgmt.NewPeerAPI(here{s}), m.log)
	m.wg.Go(func() {
		if err := m.peers.run(); err != nil {
			m.log.Error("the other nodes cannot ask this one for anything", "reason", err)
		}
	})
	return nil
}

// peer returns a client of another node.
func (m *member) peer(name string) *mgmt.Client {
	return mgmt.NewPeerClient(name, func(ctx context.Context) (net.Conn, error) { return m.node.Dial(ctx, name, mirrorsStream) })
}

// known is what consensus knows of a mirror.
type known struct {
	*quorum.Store
	name string
	view replica.View // Version 0: there is none yet
	set  *quorum.Set  // nil: the same
}

func (k *known) node(id replica.ID) string {
	if id < 1 || int(id) > len(k.Copies) {
		return ""
	}
	return k.Copies[id-1]
}

// primary returns the name of the node that serves the mirror; empty: nobody has yet.
func (k *known) primary() string {
	if k.view.Version == 0 {
		return ""
	}
	return k.node(k.view.Primary)
}

// knownMirrors lists the mirrors of the cluster, as this node's member knows them.
func (m *member) knownMirrors() []known {
	return knownOf(m.node.Records(quorum.KindStore), m.node.Records(quorum.KindSet))
}

func knownOf(stores, sets []*quorum.Record) (all []known) {
	views := map[string]*quorum.Set{}
	for _, r := range sets {
		if s, err := quorum.DecodeSet(r.Value); err == nil {
			views[r.Name] = &s
		}
	}
	for _, r := range stores {
		if s, err := quorum.DecodeStore(r.Value); err == nil {
			k := known{Store: s, name: r.Name, set: views[s.SetName(r.Name)]}
			if k.set != nil {
				k.view = k.set.View
			}
			all = append(all, k)
		}
	}
	return all
}

// knownMirror returns a mirror of the cluster.
func (m *member) knownMirror(name string) (*known, error) {
	var names []string
	for _, k := range m.knownMirrors() {
		if k.name == name {
			return &k, nil
		}
		names = append(names, k.name)
	}
	if len(names) == 0 {
		return nil, &mgmt.NotFoundError{What: "the cluster has no mirrors"}
	}
	return nil, &mgmt.NotFoundError{What: fmt.Sprintf("there is no mirror %s: there are %s", name, strings.Join(names, ", "))}
}

// local returns the mirror of that name of which this node has a copy, nil if there is none.
func (s *Server) local(name string) *mirrored {
	for _, m := range s.mirrors() {
		if m.name == name {
			return m
		}
	}
	return nil
}

// atPrimary calls f for the primary of a mirror: with the mirror if that is this node, else with a client for its node.
func (s *Server) atPrimary(name string, f func(m *mirrored, peer *mgmt.Client) error) error {
	if s.member == nil {
		return errNoCluster
	}
	if m := s.local(name); m != nil && m.Term() != 0 {
		return f(m, nil)
	}
	k, err := s.member.knownMirror(name)
	if err != nil {
		return err
	}
	switch primary := k.primary(); primary {
	case "":
		return fmt.Errorf("the mirror %s has never had a primary: start node %s, with whose copy it begins", name, k.Copies[0])
	case s.member.name:
		return fmt.Errorf("nobody serves the mirror %s now: node %s did last, and does not; target ha status shows who is missing", name, primary)
	default:
		c := s.member.peer(primary)
		defer c.Close()
		return f(nil, c)
	}
}

// localPrimary returns a mirror of which this node is the primary, for requests of other nodes.
func (h here) localPrimary(name string) (*mirrored, error) {
	m := h.local(name)
	if m == nil {
		return nil, fmt.Errorf("node %s has no copy of %s open", h.member.name, name)
	}
	if m.Term() == 0 {
		return nil, fmt.Errorf("node %s is not the primary of %s any more: try again", h.member.name, name)
	}
	return m, nil
}

// switchTime is how long a switch may take at another node.
const switchTime = consensusTime + mirror.SuccessorWithin + peerTime

// SwitchMirror implements mgmt.Mirrorer.
func (s *Server) SwitchMirror(ctx context.Context, name, to string) (done *mgmt.Switched, err error) {
	ctx, cancel := context.WithTimeout(ctx, switchTime)
	defer cancel()
	err = s.atPrimary(name, func(m *mirrored, peer *mgmt.Client) (err error) {
		if peer != nil {
			done, err = peer.SwitchMirror(ctx, name, to)
		} else {
			done, err = m.switchTo(ctx, to, s.member, false)
		}
		return err
	})
	return done, err
}

// SwitchMirror implements mgmt.Mirrorer.
func (h here) SwitchMirror(ctx context.Context, name, to string) (*mgmt.Switched, error) {
	m, err := h.localPrimary(name)
	if err != nil {
		return nil, err
	}
	return m.switchTo(ctx, to, h.member, false)
}

// switchTo has another node take over from this one, the primary. anyway: though it shows hosts something else.
func (s *mirrored) switchTo(ctx context.Context, to string, member *member, anyway bool) (*mgmt.Switched, error) {
	st, ok := s.Status()
	if !ok {
		return nil, fmt.Errorf("the mirror %s is being closed on this node", s.name)
	}
	others := replica.Nodes(0)
	if to == "" {
		if others = s.ready(&st, member); others == 0 {
			return nil, fmt.Errorf("no other node can serve the mirror %s: %s; wait until target ha status shows another copy in sync", s.name, s.copiesText(&st))
		}
	}
	id := s.idOf(to)
	switch {
	case to == "":
	case id == 0:
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("node %s has no copy of %s: nodes %s have", to, s.name, strings.Join(s.record.Copies, ", "))}
	case id == s.self:
		return &mgmt.Switched{From: to, To: to}, nil
	default:
		others = replica.NodesOf(id)
	}
	var err error
	if !anyway {
		if others, err = s.alike(others, member); others == 0 {
			return nil, err
		}
	}
	soon, cancel := context.WithTimeout(ctx, consensusTime)
	defer cancel()
	if err := member.canAgree(soon); err != nil {
		return nil, fmt.Errorf("nothing was changed, and %s goes on: it could not be agreed on that another node serves %s, and nobody would until then: %w", s.nodeName(s.self), s.name, err)
	}
	began := time.Now()
	isAny := to == ""
	id, err = s.SwitchToOneOf(soon, others)
	from, to := s.nodeName(s.self), s.nodeName(id)
	switch {
	case err == nil:
		serves, err := s.Successor(ctx)
		if err = s.whoServes(to, serves, isAny, err); err != nil {
			return nil, err
		}
		return &mgmt.Switched{From: from, To: s.nodeName(serves), Took: int64(time.Since(began))}, nil
	case errors.Is(err, mirror.ErrCannotTake):
		return nil, s.whyNot(&st, id, to, member)
	case errors.Is(err, mirror.ErrTooLate):
		return nil, fmt.Errorf("node %s has not got within a second what was being written to %s, so %s goes on: look at the disk of %s and the network to it, and try again", to, s.name, from, to)
	case soon.Err() != nil:
		return nil, fmt.Errorf("it is not known yet whether %s serves %s: no majority of the voters has agreed in time; target ha status shows who is missing", to, s.name)
	}
	return nil, fmt.Errorf("node %s has lost the mirror %s to another node meanwhile: target ha status shows which", from, s.name)
}

// alike leaves out those of some nodes whose configuration shows hosts something else than that of this one, and says what that is of the last one. No order gives
// them a mirror; what has to go on, when a node is lost, is stopped or drained, goes on at them all the same.
func (s *mirrored) alike(nodes replica.Nodes, member *member) (replica.Nodes, error) {
	var err error
	for id := range nodes.All() {
		to := s.nodeName(id)
		if names := member.shows(to); len(names) > 0 {
			nodes = nodes.Without(id)
			err = fmt.Errorf("node %s is not to serve %s, for its configuration is another one, and hosts would see that (%s): copy the file and run target reload there; target ha drain %s hands over all the same", to, s.name, strings.Join(names, ", "), s.nodeName(s.self))
		}
	}
	return nodes, err
}

// shows returns the parts of its configuration in which another node would show hosts something else than this one, when it serves a mirror. What the mirror itself is
// like to them the nodes have agreed on, or have compared when they connected; its pace, say, each node takes when it reads its file. Of a node of another version,
// which may say the same otherwise, nothing is known.
func (m *member) shows(node string) []string {
	own, info := m.info.Load(), m.node.Status().Infos[node]
	if own == nil || info == nil || info.Version != own.Version {
		return nil
	}
	return slices.DeleteFunc(config.Differences(partsOf(own), partsOf(info)), func(part string) bool {
		return part != "portals" && !strings.HasPrefix(part, "targets.") && !strings.HasPrefix(part, "subsystems.")
	})
}

// whoServes says what is wrong with who serves, if Successor has returned that, after a node was given the office of this one.
func (s *mirrored) whoServes(to string, serves replica.ID, isAny bool, err error) error {
	from, now := s.nodeName(s.self), s.nodeName(serves)
	switch {
	case err != nil:
		return fmt.Errorf("node %s was to serve %s, and nobody has said within %v that he does: look at node %s, which may hang or be lost; %s takes over again as soon as it can, and target ha status shows who serves", to, s.name, mirror.SuccessorWithin, to, from)
	case now == from:
		return fmt.Errorf("node %s was to serve %s, and has not said that it does, so %s serves it again: look at node %s, which may hang or be lost, and try again when target ha status shows its copy in sync", to, s.name, from, to)
	case now != to && !isAny:
		return fmt.Errorf("node %s was to serve %s, and has not said that it does, so %s serves it now: look at node %s, which may hang or be lost", to, s.name, now, to)
	}
	return nil
}

// agreeTime is how long a majority may take to answer before this node orders what it has to agree on.
const agreeTime = consensusTime * 3 / 4

// canAgree says whether the voters can agree on another primary now. Who has proposed a successor serves nobody before it is known whether that one does, so
// without a majority it does not: a primary whose members answer serves on then. Of a node that is stuck the others may agree.
func (m *member) canAgree(ctx context.Context) error {
	if s := m.node.Status(); s.Trouble != nil {
		if s.CanSpare(m.name) {
			return nil
		}
		return fmt.Errorf("this node takes no part in consensus (%w), and the others are no majority without it", s.Trouble)
	}
	ctx, cancel := context.WithTimeout(ctx, agreeTime)
	defer cancel()
	if _, err := m.node.Get(ctx, formerKey); err != nil {
		return fmt.Errorf("no majority of the voters has answered within %v; target ha status shows who is missing", agreeTime)
	}
	return nil
}

// whyNot says why a node cannot take over now.
func (s *mirrored) whyNot(st *mirror.Status, id replica.ID, to string, member *member) error {
	c := s.copyStatus(st, id, to)
	switch {
	case c.State != mgmt.CopyInSync:
		return fmt.Errorf("node %s cannot serve %s: its copy is %s; wait until target ha status shows it in sync", to, s.name, copyText(&c))
	case slices.Contains(member.drainedNodes(), to):
		return fmt.Errorf("node %s cannot serve %s: it is drained; target ha undrain %s lets it", to, s.name, to)
	case member.isStuck(to):
		return fmt.Errorf("node %s cannot serve %s: it is stuck, and would not learn of it; the disk of its cluster.state is full, fails, or does not answer: target ha status there says which", to, s.name)
	}
	return fmt.Errorf("another switch of %s is under way: see target ha status, and try again", s.name)
}

func copyText(c *mgmt.Copy) string {
	if c.Lacks > 0 {
		return fmt.Sprintf("%s (%.1f MiB to go)", c.State, float64(c.Lacks)/(1<<20))
	}
	return string(c.State)
}

func (s *mirrored) copiesText(st *mirror.Status) string {
	var words []string
	for i, name := range s.record.Copies {
		c := s.copyStatus(st, replica.ID(i+1), name)
		words = append(words, name+" "+copyText(&c))
	}
	return strings.Join(words, ", ")
}

// ready returns the nodes that can take over, as far as this one knows.
func (s *mirrored) ready(st *mirror.Status, member *member) replica.Nodes {
	return (st.View.InSync & st.Connected).Without(s.self) &^ s.numbers(member.unfit())
}

// idOf returns the number of a node's copy, 0 if it has none.
func (s *mirrored) idOf(name string) replica.ID { return idIn(s.record, name) }

// drainedNodes are the nodes that the administrator has drained, as far as this one knows.
func (m *member) drainedNodes() quorum.Drained {
	if d := m.drained.Load(); d != nil {
		return *d
	}
	return nil
}

// learn takes news of consensus.
func (m *member) learn(r *quorum.Record) {
	if r.Kind == quorum.KindSet {
		m.learnLineage(r)
		return
	}
	if r.Kind == quorum.KindStore {
		m.learnStore(r)
		return
	}
	if r.Key != quorum.DrainedKey {
		return
	}
	d, err := quorum.DecodeDrained(r.Value)
	if err != nil {
		m.log.Error("which nodes are drained is not known here", "reason", err)
		return
	}
	m.drained.Store(&d)
	m.tellUnfit()
}

// unfit are the nodes to which no mirror is to be handed over, as far as this one knows: who is drained, and who is stuck. Other nodes that are would
// not learn from consensus that they have the office, and nobody else may take it from them. This one hands over what it serves when it has been stuck
// for stuckFor, and the others can agree on that.
func (m *member) unfit() []string {
	names := slices.Clone([]string(m.drainedNodes()))
	if s := m.stuck.Load(); s != nil {
		names = append(names, *s...)
	}
	return names
}

// tellUnfit tells the mirrors of them.
func (m *member) tellUnfit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.open {
		s.letOthers(m.unfit())
	}
}

const (
	// stuckFor is how long a node takes no part in consensus before it hands over what it serves. Changes of reservations are BUSY meanwhile, and after that
	// they are not. A disk that is only slow for a moment costs no switch.
	stuckFor = 5 * time.Second
	// stuckAgain is the time between two looks whether the others can agree on a successor.
	stuckAgain = time.Second
)

// lookWhoIsStuck looks whenever that may have changed.
func (m *member) lookWhoIsStuck(ctx context.Context) {
	var since time.Time // that this node takes no part; zero: it does
	var due <-chan time.Time
	for {
		select {
		case <-m.node.StuckTurned():
		case <-due:
		case <-ctx.Done():
			return
		}
		var names []string
		st := m.node.Status()
		for _, number := range st.Stuck {
			if o := st.Member(number); o != nil {
				names = append(names, o.Name)
			}
		}
		for _, name := range names {
			if !m.isStuck(name) {
				m.log.Warn("another node takes no part in consensus, as it says: the disk of its log is full, fails or does not answer", "node", name)
			}
		}
		_, isOutdated := errors.AsType[*quorum.OutdatedError](st.Trouble) // for good: it serves nothing
		if due = nil; st.Trouble == nil || isOutdated {
			since = time.Time{}
		} else {
			if since.IsZero() {
				since = time.Now()
			}
			due = time.After(stuckAgain)
			// Without a majority of others nobody would hear who is to serve, and who has asked for a successor serves nothing before that is known.
			if time.Since(since) >= stuckFor && st.CanSpare(m.name) {
				if names = append(names, m.name); !m.isStuck(m.name) {
					m.log.Warn("this node has taken no part in consensus for some time, so it hands over what it serves, if another node can serve it", "reason", st.Trouble)
				}
			}
		}
		m.stuck.Store(&names)
		m.tellUnfit()
	}
}

// isStuck says whether a node takes no part in consensus, and this one for stuckFor.
func (m *member) isStuck(name string) bool {
	s := m.stuck.Load()
	return s != nil && slices.Contains(*s, name)
}

// learnLineage tells a mirror of the lineage that is in force.
func (m *member) learnLineage(r *quorum.Record) {
	set, err := setRecord(r)
	if err != nil || set == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.open {
		if s.record.SetName(s.name) == r.Name {
			s.isOf(set)
		}
	}
}

// opened has a mirror hear of what concerns it, until closed.
func (m *member) opened(s *mirrored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[s] = true
	if m.retired {
		s.Retire()
	}
	s.letOthers(m.unfit())
}

func (m *member) closed(s *mirrored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, s)
}

// numbers returns those of nodes by their names.
func (s *mirrored) numbers(names []string) (n replica.Nodes) {
	for _, name := range names {
		if id := s.idOf(name); id != 0 {
			n = n.With(id)
		}
	}
	return n
}

// DrainNode implements mgmt.Target.
func (s *Server) DrainNode(ctx context.Context, name string, on bool) error {
	n, err := s.memberNode()
	if err != nil {
		return err
	}
	members := n.Status().Members
	if !slices.ContainsFunc(members, func(m quorum.Member) bool { return m.Name == name && m.Leaving == quorum.Stays }) {
		return &mgmt.NotFoundError{What: fmt.Sprintf("there is no node %s in the cluster: target ha status lists them", name)}
	}
	ctx, cancel := context.WithTimeout(ctx, consensusTime)
	defer cancel()
	err = n.Drain(ctx, name, on, func(d quorum.Drained) error {
		if !on {
			return nil
		}
		for _, k := range s.member.knownMirrors() {
			if !slices.ContainsFunc(k.Copies, func(c string) bool { return !slices.Contains(d, c) }) {
				return fmt.Errorf("nobody could serve the mirror %s: all of its nodes, %s, would be drained; undrain another one first", k.name, strings.Join(k.Copies, ", "))
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		err = quorum.ErrUnknown
	}
	return noMajority(err)
}
