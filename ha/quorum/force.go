package quorum

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// A node whose others are lost for good can be forced to be a cluster of its own. It has another authority then, so nobody
// of the former cluster is a member of this one, and nothing that they agree on reaches it. Of its own promises to
// them none is left: number, cluster and log are new. All of that is one file, which replaces the old one.

// Examined is what the log of a node holds that does not run.
type Examined struct {
	fsys  FS
	log   *Log
	state *State
}

// Examine reads the log of a node that does not run, and changes nothing. Entries of which the node does not know
// whether they were agreed on count: they may have been.
func Examine(fsys FS) (*Examined, error) {
	l, err := readLog(fsys, random)
	if err != nil {
		return nil, err
	}
	e := &Examined{fsys: fsys, log: l, state: &State{records: map[Key]*Record{}}}
	snapshot, err := l.store.Snapshot()
	if err != nil {
		return nil, err
	}
	if !raft.IsEmptySnap(snapshot) {
		if e.state, err = decodeState(snapshot.GetData()); err != nil {
			return nil, err
		}
	}
	last, _ := l.store.LastIndex()
	for i := snapshot.GetMetadata().GetIndex() + 1; i <= last; i++ {
		entries, err := l.store.Entries(i, i+1, 1<<62)
		if err != nil {
			return nil, err
		}
		if en := entries[0]; en.GetType() == raftpb.EntryNormal && len(en.GetData()) > 0 {
			if cmd, err := decodeCommand(en.GetData()); err == nil {
				e.state.apply(cmd)
			}
		}
	}
	return e, nil
}

// Cluster returns the name of the cluster.
func (e *Examined) Cluster() string { return e.state.name }

// Identity returns who the node is.
func (e *Examined) Identity() *Identity { return &e.log.id }

// Batch returns the number of the newest batch of the log.
func (e *Examined) Batch() uint64 { return e.log.number }

// Members returns all members as the node knows them.
func (e *Examined) Members() []Member { return e.state.Members() }

// IsWitness says whether the node has no disks.
func (e *Examined) IsWitness() bool {
	m := e.state.member(e.log.id.Number)
	return m != nil && m.Witness
}

// Others returns the other members that stay.
func (e *Examined) Others() []Member {
	return slices.DeleteFunc(e.state.Members(), func(m Member) bool { return m.Leaving != Stays || m.Number == e.log.id.Number })
}

// Get returns a record as the node knows it; nil: there is none.
func (e *Examined) Get(k Key) *Record { return e.state.Get(k) }

// Records returns the records of a kind, by name.
func (e *Examined) Records(kind Kind) (all []*Record) {
	for _, k := range e.state.keys() {
		if r := e.state.records[k]; k.Kind == kind && !r.Deleted {
			all = append(all, r)
		}
	}
	return all
}

// Seen returns how far the log of a member had come when it was last heard.
func (e *Examined) Seen(number uint64) Seen { return e.log.seen[number] }

// Force makes the node the only member of a cluster of the same name, with other versions of some records, and tokens for
// so many machines. A crash leaves the former cluster or the new one.
func (e *Examined) Force(records []*Record, tokens int) ([]Token, error) {
	if len(e.Others()) == 0 {
		return nil, errors.New("this node is the only member of the cluster: there is nobody whose loss it has to be forced to bear")
	}
	former := e.log.id
	authority, signer, err := newAuthority(e.state.name)
	if err != nil {
		return nil, err
	}
	private, public, err := newKey()
	if err != nil {
		return nil, err
	}
	id := Identity{
		Cluster: random(), Number: e.state.next, Name: former.Name, Key: private, Authority: authority, Incarnation: 1, Nonce: random(),
		Former: append(slices.Clone(former.Former), Generation{former.Cluster, former.Number, former.Key, former.Cert, former.Authority}),
	}
	if id.Cert, err = sign(authority, signer, id.Number, id.Name, public); err != nil {
		return nil, err
	}
	s := &State{
		cluster: id.Cluster, name: e.state.name, authority: authority, signer: signer, next: id.Number + 1,
		members: []Member{{Number: id.Number, Name: id.Name, Witness: e.IsWitness(), Key: sha256.Sum256(public)}},
		records: maps.Clone(e.state.records),
	}
	for _, r := range records {
		s.records[r.Key] = r
	}
	made := make([]Token, min(tokens, maxTokens))
	for i := range made {
		made[i] = newToken(authority)
		s.addToken(HashToken(made[i].secret[:]))
	}
	hard, _, err := e.log.store.InitialState()
	if err != nil {
		return nil, err
	}
	last, _ := e.log.store.LastIndex()
	lastTerm, err := e.log.store.Term(last)
	if err != nil {
		return nil, err
	}
	index, term := last+1, max(lastTerm, hard.GetTerm())+1
	l := newLog(e.fsys, random)
	l.id, l.number = id, e.log.number
	err = l.store.ApplySnapshot(&raftpb.Snapshot{Data: s.encode(), Metadata: &raftpb.SnapshotMetadata{
		Index: new(index), Term: new(term), ConfState: &raftpb.ConfState{Voters: []uint64{id.Number}},
	}})
	if err == nil {
		err = l.store.SetHardState(&raftpb.HardState{Term: new(term), Vote: new(uint64(0)), Commit: new(index)})
	}
	if err == nil {
		err = l.replace()
	}
	if err != nil {
		return nil, fmt.Errorf("the log of the new cluster cannot be written, and perhaps the former one is in force: %w", err)
	}
	return made, l.Close()
}

// Discard forgets that this machine is a member: it can join as a new one. A crash leaves the former state or none. Without a log the
// machine has asked to join, perhaps: the key with which it did stays, for it may be that of a member by now.
func Discard(fsys FS) error {
	if _, err := fsys.ReadFile(logName); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range []string{joiningName, logName} {
		if err := errors.Join(ignoreMissing(fsys.Remove(name)), fsys.SyncDir()); err != nil {
			return err
		}
	}
	return nil
}
