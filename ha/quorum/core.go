package quorum

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// tickTime is the time between two calls of Core.Tick.
const tickTime = 60 * time.Millisecond

// Ticks of the core, each of which is so many calls of Core.Tick as the round trips ask for (Core.pace). A node begins an election when it has heard
// no leader for electionTicks, and up to as many more.
const (
	electionTicks = 5
	retryTicks    = 4 // after which a change that was not seen is proposed again
)

// Core is a member as a step function. The calls Tick, Receive, Propose and Read take something in; Work does what
// follows from it. Its methods are called by one goroutine.
type Core struct {
	raw   *raft.RawNode
	log   *Log
	state *State
	conf  *raftpb.ConfState

	ready   *raft.Ready // taken from raft, and not done yet
	saved   bool        // it is on the disk
	renews  bool        // the disk hangs over a new file of the log
	applied uint64
	calls   int // of Tick, since the last tick
	pace    int // calls that are a tick
	ticks   uint64

	registered bool // this life stands in the state
	requests   uint64
	waits      map[uint64]*command  // own changes that have not ended, by request.Count
	sentAt     map[uint64]uint64    // tick; 0: not yet
	reads      map[uint64]*readWait // by number
	lastRead   uint64
	changingAt uint64 // tick at which a change of the members was proposed
	settled    bool   // this node knows that a majority knows of the last change of the voters
	settling   uint64 // term in which this node has proposed an empty entry to find out; 0: it has not since that change
	orphan     orphan
	askedAt    uint64 // tick at which this node has asked for the lead
	reports    map[uint64]*reported
	saves      recent
	near       bool   // this node is near the others
	wants      uint8  // ownPace, with the last tick
	lameUntil  uint64 // tick
	place      place

	aside   []Message // changes that go to other voters, while this node's disk takes nothing
	refused error     // others do not take this node any more

	// onDisk calls f, which waits for the disk, and changes nothing but the log. ended is false if the disk hangs: then the core takes nothing in, and
	// calls onDisk again, for the same f, which is called once. nil: it is called here.
	onDisk func(f func() error) (ended bool, err error)
}

type readWait struct {
	asked uint64 // tick
	index uint64 // that has to be applied; 0: raft has not answered
}

// Output is what Work did. Messages may leave, all else has happened.
type Output struct {
	Messages []Message
	Ended    []Ended   // changes that this node has proposed
	Reads    []uint64  // numbers of reads: the state holds what was answered before they began
	Changed  []*Record // in the order in which they were changed
	Members  bool      // members have changed
}

// Ended is the end of a change.
type Ended struct {
	Count uint64 // that Propose has returned
	Result
}

// Message is one to another member.
type Message struct {
	From  uint64 // who sends it; what is in it may be of another, whose change it takes to the leader
	Life  uint64 // incarnation of the sender
	Batch uint64 // of its log: that one is on its disk
	Raft  *raftpb.Message
}

// Start begins with what the log holds.
func Start(l *Log, logger *slog.Logger) (*Core, error) {
	c := &Core{log: l, waits: map[uint64]*command{}, sentAt: map[uint64]uint64{}, reads: map[uint64]*readWait{}, reports: map[uint64]*reported{}, pace: 1, wants: 1, state: &State{records: map[Key]*Record{}}}
	snapshot, err := l.store.Snapshot()
	if err != nil {
		return nil, err
	}
	if !raft.IsEmptySnap(snapshot) {
		if c.state, err = decodeState(snapshot.GetData()); err != nil {
			return nil, err
		}
	}
	c.conf = snapshot.GetMetadata().GetConfState()
	c.applied = snapshot.GetMetadata().GetIndex()
	c.raw, err = raft.NewRawNode(&raft.Config{
		ID: l.id.Number, ElectionTick: electionTicks, HeartbeatTick: 1, Storage: storage{l.store, c}, Applied: c.applied,
		MaxSizePerMsg: 256 << 10, MaxInflightMsgs: 64, MaxUncommittedEntriesSize: 4 << 20,
		CheckQuorum: true, PreVote: true, StepDownOnRemoval: true, Logger: raftLogger{logger},
	})
	return c, err
}

// storage is what raft reads. A snapshot is made when a member needs one: it has to name that member, or it is thrown
// away there.
type storage struct {
	*raft.MemoryStorage
	core *Core
}

func (s storage) Snapshot() (*raftpb.Snapshot, error) {
	c := s.core
	term, err := s.Term(c.applied)
	if err != nil {
		return nil, err
	}
	return &raftpb.Snapshot{Data: c.state.encode(), Metadata: &raftpb.SnapshotMetadata{
		Index: new(c.applied), Term: new(term), ConfState: proto.CloneOf(c.conf),
	}}, nil
}

// State returns what the members have agreed on, as far as this one knows. It changes with Work.
func (c *Core) State() *State { return c.state }

// Refused says why others do not take this node any more; nil: they do.
func (c *Core) Refused() error { return c.refused }

// Refuse tells a node that a member has refused it. Once outdated it takes part in nothing more.
func (c *Core) Refuse(err error) {
	if _, ok := errors.AsType[*OutdatedError](err); ok && c.refused == nil {
		c.refused = err
	}
}

// Leader returns the number of the leader, 0 if none is known, and the term.
func (c *Core) Leader() (leader, term uint64) {
	s := c.raw.BasicStatus()
	return s.Lead, s.GetTerm()
}

// isSilent says that nothing may be taken in: what was taken in before is not on the disk, or the node is refused.
func (c *Core) isSilent() bool { return c.ready != nil || c.renews || c.refused != nil }

// Tick is called once in tickTime.
func (c *Core) Tick() {
	if c.calls++; c.calls < c.pace {
		return
	}
	c.calls = 0
	c.ticks++
	c.setPace()
	if c.isSilent() {
		c.handOn()
		return
	}
	c.raw.Tick()
	c.register()
	for _, n := range slices.Sorted(maps.Keys(c.waits)) {
		if c.ticks-c.sentAt[n] >= retryTicks {
			c.send(n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(c.reads)) {
		if r := c.reads[n]; r.index == 0 && c.ticks-r.asked >= retryTicks {
			c.ask(n)
		}
	}
	c.changeMembers()
	c.giveWay()
	c.adopt()
	c.lookAtPlace()
	c.seekPlace()
}

// Receive takes a message of a member that was admitted.
func (c *Core) Receive(m Message) {
	from := m.From
	if c.isSilent() || m.Raft.GetTo() != c.log.id.Number || c.log.seenOf(from).Incarnation > m.Life {
		return
	}
	if m := c.state.member(from); m == nil && from < c.state.next || m != nil && m.Leaving != Stays {
		return
	}
	s := c.log.seenOf(from)
	s.Batch = m.Batch
	c.log.note(from, s)
	c.noteOrphan(from, m.Raft)
	_ = c.raw.Step(m.Raft) // what makes no sense any more is left out
}

// Unreachable says that messages to a member were lost.
func (c *Core) Unreachable(number uint64) {
	if !c.isSilent() {
		c.raw.ReportUnreachable(number)
	}
}

// SnapshotSent says how the transfer of a snapshot to a member has ended. It is taken in by a silent node, too, for it is not said again, and until it
// is, the member gets nothing.
func (c *Core) SnapshotSent(number uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	c.raw.ReportSnapshot(number, status)
}

// propose begins a change. It ends with an Ended of the number that is returned, unless Forget is called before.
func (c *Core) propose(cmd *command) (uint64, error) {
	if err := cmd.check(); err != nil {
		return 0, err
	}
	if len(c.waits) >= maxWaits {
		return 0, fmt.Errorf("%d changes wait for consensus, and no more may", len(c.waits))
	}
	c.requests++
	cmd.request = request{c.log.id.Number, c.log.id.Nonce, c.requests}
	c.waits[c.requests] = cmd
	c.send(c.requests)
	return c.requests, nil
}

const maxWaits = 1024

func (c *Core) send(n uint64) {
	if c.isSilent() {
		return // handOn does it, with the next tick
	}
	c.sentAt[n] = c.ticks
	_ = c.raw.Propose(c.waits[n].encode()) // without a leader it is lost, and sent again
}

// handOn has other voters take the changes of this node to the leader, when its disk takes nothing. That promises nothing. A node may have to get rid of
// an office just because that disk is full.
func (c *Core) handOn() {
	c.aside = c.aside[:0]
	if c.refused != nil {
		return
	}
	id := &c.log.id
	for _, n := range slices.Sorted(maps.Keys(c.waits)) {
		if c.ticks-c.sentAt[n] < retryTicks {
			continue
		}
		c.sentAt[n] = c.ticks
		data := c.waits[n].encode()
		for _, v := range c.conf.GetVoters() {
			if v != id.Number {
				c.aside = append(c.aside, Message{id.Number, id.Incarnation, c.log.newest(), &raftpb.Message{
					Type: raftpb.MessageType_MsgProp.Enum(), From: new(id.Number), To: new(v), Entries: []*raftpb.Entry{{Data: data}},
				}})
			}
		}
	}
}

// Put begins the change of a record whose version is known, 0 if there never was one.
func (c *Core) Put(k Key, version uint64, value []byte) (uint64, error) {
	return c.propose(&command{op: opPut, key: k, version: version, value: value})
}

// Delete begins the removal of a record.
func (c *Core) Delete(k Key, version uint64) (uint64, error) {
	return c.propose(&command{op: opDelete, key: k, version: version})
}

// AddToken makes a token good for one join.
func (c *Core) AddToken(token []byte) (uint64, error) {
	return c.propose(&command{op: opToken, hash: HashToken(token)})
}

// Join makes a member of the owner of a key, who has a token.
func (c *Core) Join(name string, witness bool, publicKey [32]byte, token []byte) (uint64, error) {
	return c.propose(&command{op: opJoin, name: name, witness: witness, publicKey: publicKey, hash: HashToken(token)})
}

// Leave sends a member away. It goes by its number: sent again it must not meet the one that took its place.
func (c *Core) Leave(number uint64, how Leaving) (uint64, error) {
	return c.propose(&command{op: opLeave, number: number, leaving: how})
}

// Forget gives up waiting for a change, which may take place all the same.
func (c *Core) Forget(n uint64) {
	delete(c.waits, n)
	delete(c.sentAt, n)
}

// Read asks whether what this node has applied is the newest. Output.Reads has the number when all that was answered
// anywhere before Read is in State.
func (c *Core) Read() (uint64, error) {
	if len(c.reads) >= maxWaits {
		return 0, fmt.Errorf("%d reads wait for consensus, and no more may", len(c.reads))
	}
	c.lastRead++
	c.reads[c.lastRead] = &readWait{}
	c.ask(c.lastRead)
	return c.lastRead, nil
}

// ForgetRead gives up waiting for a read.
func (c *Core) ForgetRead(n uint64) { delete(c.reads, n) }

func (c *Core) ask(n uint64) {
	c.reads[n].asked = c.ticks
	if !c.isSilent() {
		c.raw.ReadIndex(appendU64(nil, c.log.id.Number, c.log.id.Nonce, n))
	}
}

// Work saves, sends and applies until nothing is left to do. After an error of the disk nothing has left this node
// that is not on it, and nothing is taken in until another call of Work succeeds. The same goes for a disk that hangs.
func (c *Core) Work(out *Output) error {
	if c.refused != nil {
		return c.refused
	}
	out.Messages, c.aside = append(out.Messages, c.aside...), c.aside[:0]
	if c.renews {
		if err := c.renew(); err != nil {
			return err
		}
	}
	for {
		if c.ready == nil {
			if !c.raw.HasReady() {
				break
			}
			rd := c.raw.Ready()
			c.ready = &rd
		}
		if !c.saved { // else what follows has failed before
			if _, err := c.wait(mustSave(c.ready), func() error { return c.log.Save(c.ready) }); err != nil {
				return fmt.Errorf("the consensus log cannot be written, so this node takes part in nothing until it can: %w", err)
			}
			c.saved = true
			for _, m := range c.ready.Messages {
				out.Messages = append(out.Messages, Message{c.log.id.Number, c.log.id.Incarnation, c.log.newest(), m})
			}
		}
		rd := c.ready
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := c.restore(rd.Snapshot, out); err != nil {
				return err
			}
		}
		for _, e := range rd.CommittedEntries {
			c.applyEntry(e, out)
		}
		c.answerReads(rd.ReadStates, out)
		c.raw.Advance(*rd)
		c.ready, c.saved = nil, false
	}
	if c.log.IsLong() {
		return c.renew()
	}
	return nil
}

// renew has a new file take the place of the log's, which has grown.
func (c *Core) renew() error {
	ended, err := c.wait(true, func() error { return c.log.Compact(c.applied, c.conf, c.state.encode()) })
	if c.renews = !ended; c.renews || err != nil && c.log.broken {
		return fmt.Errorf("the consensus log cannot be replaced, so this node takes part in nothing until it can: %w", err)
	}
	return nil
}

// wait calls f. writes: f waits for the disk.
func (c *Core) wait(writes bool, f func() error) (ended bool, err error) {
	if c.onDisk == nil || !writes {
		return true, f()
	}
	return c.onDisk(f)
}

// restore takes the state of a snapshot, which the leader has sent.
func (c *Core) restore(s *raftpb.Snapshot, out *Output) error {
	state, err := decodeState(s.GetData())
	if err != nil {
		return fmt.Errorf("the leader has sent a state that this version cannot read: %w; bring all nodes to the same version", err)
	}
	out.Changed = append(out.Changed, state.changes(c.state)...)
	out.Members = true
	c.state, c.conf, c.applied = state, s.GetMetadata().GetConfState(), s.GetMetadata().GetIndex()
	c.settled, c.settling = false, 0
	// Among what was jumped over may be changes of this node: sent again they would conflict with themselves.
	for _, n := range slices.Sorted(maps.Keys(c.waits)) {
		if c.waits[n].op != opAlive { // which is sent until it has succeeded: a life is registered once, however often that is asked for
			c.end(n, Result{Err: ErrUnknown}, out)
		}
	}
	return nil
}

func (c *Core) end(n uint64, r Result, out *Output) {
	c.Forget(n)
	out.Ended = append(out.Ended, Ended{n, r})
}

func (c *Core) applyEntry(e *raftpb.Entry, out *Output) {
	switch e.GetType() {
	case raftpb.EntryConfChangeV2:
		cc := new(raftpb.ConfChangeV2)
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			panic(err) // what was committed was proposed by a member
		}
		c.conf = c.raw.ApplyConfChange(cc) // may have a snapshot made, which is of before
		c.settled, c.settling = false, 0
		out.Members = true
	case raftpb.EntryNormal:
		if len(e.GetData()) > 0 {
			c.applyCommand(e.GetData(), out)
		} else if e.GetTerm() == c.settling {
			c.settled = true
		}
	}
	c.applied = e.GetIndex()
}

func (c *Core) applyCommand(data []byte, out *Output) {
	cmd, err := decodeCommand(data)
	if err != nil {
		return // all versions that could do otherwise are refused by the protocol's floor
	}
	var before uint64
	if r := c.state.records[cmd.key]; r != nil {
		before = r.Version
	}
	res := c.state.apply(cmd)
	if cmd.op != opPut && cmd.op != opDelete {
		out.Members = out.Members || res.Err == nil
	} else if r := c.state.records[cmd.key]; r != nil && r.Version != before {
		out.Changed = append(out.Changed, r)
	}
	if id := &c.log.id; cmd.request.Node == id.Number && cmd.request.Nonce == id.Nonce && c.waits[cmd.request.Count] != nil {
		if cmd.op == opAlive {
			c.Refuse(res.Err)
		}
		c.end(cmd.request.Count, res, out)
	}
}

func (c *Core) answerReads(states []raft.ReadState, out *Output) {
	for _, s := range states {
		r := cursor{b: s.RequestCtx}
		number, nonce, n := r.u64(), r.u64(), r.u64()
		if w := c.reads[n]; r.end() == nil && number == c.log.id.Number && nonce == c.log.id.Nonce && w != nil && w.index == 0 {
			w.index = max(s.Index, 1)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(c.reads)) {
		if i := c.reads[n].index; i != 0 && i <= c.applied {
			delete(c.reads, n)
			out.Reads = append(out.Reads, n)
		}
	}
}

// register writes this life into the state, so that a clone finds out.
func (c *Core) register() {
	id := &c.log.id
	m := c.state.member(id.Number)
	if m == nil || m.Incarnation == id.Incarnation && m.Nonce == id.Nonce || c.registered {
		return
	}
	c.registered = true
	cmd := &command{op: opAlive, number: id.Number, incarnation: id.Incarnation, nonce: id.Nonce}
	if _, err := c.propose(cmd); err != nil {
		c.registered = false
	}
}

// changeMembers brings raft's configuration to that of the members. The leader does it, one change at a time.
func (c *Core) changeMembers() {
	s := c.raw.BasicStatus()
	if s.RaftState != raft.StateLeader || len(c.conf.GetVotersOutgoing()) > 0 || c.ticks-c.changingAt < retryTicks {
		return
	}
	level := map[uint64]bool{}
	c.raw.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		level[id] = p.RecentActive && p.State == tracker.StateReplicate && p.Match+maxBehind >= s.GetCommit()
	})
	level[c.log.id.Number] = true
	voters, learners := wantedMembers(c.state.members, c.conf.GetVoters(), level)
	c.settle(s.GetTerm())
	if cc := confChange(c.conf, voters, learners); cc != nil {
		c.changingAt = c.ticks
		_ = c.raw.ProposeConfChange(cc)
		return
	}
	for _, m := range c.state.members {
		if m.Leaving != Stays && !slices.Contains(c.conf.GetVoters(), m.Number) && !slices.Contains(c.conf.GetLearners(), m.Number) &&
			(m.Leaving == Removed || c.hasSuccessor(m.Name)) {
			c.changingAt = c.ticks
			_, _ = c.propose(&command{op: opForget, number: m.Number})
			return
		}
	}
}

func (c *Core) hasSuccessor(name string) bool { return c.state.present(name) != nil }

// maxBehind is the number of entries that a member may lack and be level.
const maxBehind = 16

// wantedMembers says who should vote: one, three or five of the members, as many as there are level ones for. Who
// votes already goes on; witnesses come next, then lower numbers. A member that is replaced keeps its vote until
// another one can have it: its successor, or one that had none.
func wantedMembers(members []Member, votes []uint64, level map[uint64]bool) (voters, learners []uint64) {
	type candidate struct {
		rank   int
		number uint64
	}
	const onPaper = 4 // the last
	var candidates []candidate
	for _, m := range members {
		votes := slices.Contains(votes, m.Number)
		switch {
		case m.Leaving == Removed:
		case m.Leaving == Replaced:
			if votes && !slices.ContainsFunc(members, func(o Member) bool {
				return o.Name == m.Name && o.Leaving == Stays && level[o.Number]
			}) {
				candidates = append(candidates, candidate{onPaper, m.Number})
			}
		case votes:
			candidates = append(candidates, candidate{1, m.Number})
		case level[m.Number]:
			candidates = append(candidates, candidate{3 - int(b2u(m.Witness)), m.Number})
		default:
			learners = append(learners, m.Number)
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.rank - b.rank })
	n := 1
	switch {
	case len(candidates) >= 5:
		n = 5
	case len(candidates) >= 3:
		n = 3
	}
	for i, c := range candidates {
		switch {
		case i < n:
			voters = append(voters, c.number)
		case c.rank != onPaper:
			learners = append(learners, c.number)
		}
	}
	slices.Sort(voters)
	slices.Sort(learners)
	return voters, learners
}

// confChange returns the change from one configuration to another, nil if there is nothing to do.
func confChange(conf *raftpb.ConfState, voters, learners []uint64) *raftpb.ConfChangeV2 {
	cc := new(raftpb.ConfChangeV2)
	add := func(kind raftpb.ConfChangeType, ids []uint64, except ...[]uint64) {
		for _, id := range ids {
			if !slices.ContainsFunc(except, func(in []uint64) bool { return slices.Contains(in, id) }) {
				cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)})
			}
		}
	}
	if len(voters) == 0 {
		return nil
	}
	add(raftpb.ConfChangeType_ConfChangeAddNode, voters, conf.GetVoters())
	add(raftpb.ConfChangeType_ConfChangeAddLearnerNode, learners, conf.GetLearners())
	add(raftpb.ConfChangeType_ConfChangeRemoveNode, conf.GetVoters(), voters, learners)
	add(raftpb.ConfChangeType_ConfChangeRemoveNode, conf.GetLearners(), voters, learners)
	if len(cc.Changes) == 0 {
		return nil
	}
	return cc
}

// Voters returns the numbers of the members that vote. While a change is under way former are those before it: then
// a majority of both is needed.
func (c *Core) Voters() (voters, former []uint64) {
	return slices.Clone(c.conf.GetVoters()), slices.Clone(c.conf.GetVotersOutgoing())
}

// settle has this leader propose an empty entry behind the last change of the voters, once in its term. Members hear with later entries what is
// committed, and go by a change of the voters when they know that it is: if the leader is lost before that nobody votes who did not vote
// already. Who has the empty entry knows of the change, so a majority does when that is committed.
func (c *Core) settle(term uint64) {
	// The first entry of a leader is empty, too, and tells nobody of what is committed with it.
	if last, err := c.log.store.Term(c.applied); err != nil || last != term || c.settled || c.settling == term {
		return
	}
	if c.raw.Propose(nil) == nil {
		c.settling = term
	}
}

// Settling says whether this node leads, and the others may not be able to do without it yet, however many there are: a change of the voters is under
// way, or a majority may not know of the last one.
func (c *Core) Settling() bool {
	return c.raw.BasicStatus().RaftState == raft.StateLeader && (!c.settled || len(c.conf.GetVotersOutgoing()) > 0)
}

// initial is the state of a new cluster of one member, and with these hashes of tokens.
func initial(id *Identity, cluster string, witness bool, publicKey [32]byte, signer []byte, tokens ...[32]byte) *raftpb.Snapshot {
	s := &State{
		cluster: id.Cluster, name: cluster, authority: id.Authority, signer: signer, next: id.Number + 1,
		members: []Member{{Number: id.Number, Name: id.Name, Witness: witness, Key: publicKey}},
	}
	for _, t := range tokens {
		s.addToken(t)
	}
	return &raftpb.Snapshot{Data: s.encode(), Metadata: &raftpb.SnapshotMetadata{
		Index: new(uint64(1)), Term: new(uint64(1)), ConfState: &raftpb.ConfState{Voters: []uint64{id.Number}},
	}}
}

// raftLogger takes what raft logs: of its mistakes all, of what is usual only while debugging.
type raftLogger struct{ l *slog.Logger }

func (r raftLogger) Debug(v ...any)              { r.l.Debug(fmt.Sprint(v...)) }
func (r raftLogger) Debugf(f string, v ...any)   { r.debugf(f, v...) }
func (r raftLogger) Info(v ...any)               { r.l.Debug(fmt.Sprint(v...)) }
func (r raftLogger) Infof(f string, v ...any)    { r.debugf(f, v...) }
func (r raftLogger) Warning(v ...any)            { r.l.Debug(fmt.Sprint(v...)) }
func (r raftLogger) Warningf(f string, v ...any) { r.debugf(f, v...) }
func (r raftLogger) Error(v ...any)              { r.l.Error(fmt.Sprint(v...)) }
func (r raftLogger) Errorf(f string, v ...any)   { r.l.Error(fmt.Sprintf(f, v...)) }
func (r raftLogger) Fatal(v ...any)              { panic(fmt.Sprint(v...)) }
func (r raftLogger) Fatalf(f string, v ...any)   { panic(fmt.Sprintf(f, v...)) }
func (r raftLogger) Panic(v ...any)              { panic(fmt.Sprint(v...)) }
func (r raftLogger) Panicf(f string, v ...any)   { panic(fmt.Sprintf(f, v...)) }

func (r raftLogger) debugf(f string, v ...any) {
	if r.l.Enabled(nil, slog.LevelDebug) { //nolint:staticcheck // no context here
		r.l.Debug(fmt.Sprintf(f, v...))
	}
}
