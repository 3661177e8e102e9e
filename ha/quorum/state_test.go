package quorum

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand" //nolint:depguard // testing/quick takes no other
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"go.etcd.io/raft/v3/raftpb"

	"oneshot/ha/replica"
)

func newState() *State {
	s, err := decodeState(initial(&Identity{Cluster: 7, Number: 1, Name: "a", Authority: []byte("authority")}, "lab", false, [32]byte{1}, []byte("signer")).GetData())
	if err != nil {
		panic(err)
	}
	return s
}

var counts uint64

// do applies a command as raft's log has it.
func (s *State) do(c command) Result {
	counts++
	if c.request == (request{}) {
		c.request = request{1, 1, counts}
	}
	d, err := decodeCommand(c.encode())
	if err != nil {
		panic(err)
	}
	if !reflect.DeepEqual(*d, c) && len(c.value) > 0 {
		panic(fmt.Sprintf("%+v became %+v", c, *d))
	}
	return s.apply(d)
}

func isRefused(err error, text string) bool {
	_, ok := errors.AsType[*RefusedError](err)
	return ok && strings.Contains(err.Error(), text)
}

func TestRecords(t *testing.T) {
	s := newState()
	key := Key{KindUnit, "serial"}
	first := command{op: opPut, key: key, value: []byte("one"), request: request{1, 2, 3}}
	if r := s.do(first); r.Err != nil || r.Record.Version != 1 {
		t.Fatal(r)
	}
	if r := s.do(first); r.Err != ErrConflict || r.Record.Version != 1 {
		t.Errorf("sent twice: %+v", r)
	}
	if r := s.do(command{op: opPut, key: key, value: []byte("other")}); r.Err != ErrConflict || string(r.Record.Value) != "one" {
		t.Errorf("a second creation: %+v", r)
	}
	if r := s.do(command{op: opDelete, key: key, version: 1}); r.Err != nil || s.Get(key) != nil || s.Newest(key).Version != 2 {
		t.Errorf("delete: %+v", r)
	}
	if r := s.do(first); r.Err != ErrConflict {
		t.Errorf("a creation that comes once more after the deletion: %+v", r)
	}
	if r := s.do(command{op: opPut, key: key, version: 2, value: []byte("again")}); r.Err != nil || string(s.Get(key).Value) != "again" {
		t.Errorf("after the deletion: %+v", r)
	}
}

// TestBounds: what would make the state too big to send is refused, and changes nothing.
func TestBounds(t *testing.T) {
	s := newState()
	if r := s.do(command{op: opPut, key: Key{KindUnit, "x"}, value: make([]byte, MaxValue+1)}); !isRefused(r.Err, "holds 1048576") {
		t.Error(r.Err)
	}
	if r := s.do(command{op: opPut, key: Key{KindUnit, strings.Repeat("x", 256)}, value: []byte("1")}); !isRefused(r.Err, "name") {
		t.Error(r.Err)
	}
	big := make([]byte, MaxValue)
	n := 0
	for ; ; n++ {
		r := s.do(command{op: opPut, key: Key{KindUnit, fmt.Sprint(n)}, value: big})
		if r.Err != nil {
			if !isRefused(r.Err, "16 MiB") {
				t.Error(r.Err)
			}
			break
		}
	}
	if n != maxState/MaxValue-1 { // the names take room, too
		t.Errorf("%d records of 1 MiB", n)
	}
	if r := s.do(command{op: opDelete, key: Key{KindUnit, "0"}, version: 1}); r.Err != nil {
		t.Errorf("a full state refuses a deletion: %v", r.Err)
	}
	if r := s.do(command{op: opPut, key: Key{KindUnit, "again"}, value: big}); r.Err != nil {
		t.Errorf("after a deletion: %v", r.Err)
	}
	for i := range maxRecords {
		s.do(command{op: opPut, key: Key{KindStore, fmt.Sprint(i)}, value: []byte("1")})
	}
	if len(s.records) != maxRecords {
		t.Errorf("%d records", len(s.records))
	}
}

func TestSets(t *testing.T) {
	s := newState()
	key := Key{KindSet, "main"}
	put := func(lineage uint64, v replica.View) error {
		return s.do(command{op: opPut, key: key, version: v.Version - 1, value: (&Set{Lineage: lineage, View: v}).Encode()}).Err
	}
	v := replica.View{Version: 1, Term: 1, Primary: 0, Life: 7, InSync: replica.NodesOf(0, 1), First: 1}
	if err := put(1, v); err != nil {
		t.Fatal(err)
	}
	got, err := DecodeSet(s.Get(key).Value)
	if err != nil || got != (Set{Lineage: 1, View: v}) {
		t.Errorf("%+v, %v", got, err)
	}
	all := func(s Set) bool { // whatever fields a view has
		if s.Lineage == 0 {
			s = Set{View: s.View} // the first lineage follows none
		}
		got, err := DecodeSet(s.Encode())
		return err == nil && got == s
	}
	if err := quick.Check(all, &quick.Config{Rand: mathrand.New(mathrand.NewSource(1))}); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		why  string
		text string
		v    replica.View
	}{
		{"a primary that changes without a term", "cannot follow", replica.View{Version: 2, Term: 1, Primary: 1, InSync: replica.NodesOf(0, 1), First: 1}},
		{"a term that goes back", "cannot follow", replica.View{Version: 2, Term: 0, Primary: 0, InSync: replica.NodesOf(0, 1)}},
		{"a primary that is not in sync", "has to be in sync", replica.View{Version: 2, Term: 2, Primary: 2, InSync: replica.NodesOf(0, 1), First: 9}},
		{"a primary that was not in sync", "is not in sync", replica.View{Version: 2, Term: 2, Primary: 2, InSync: replica.NodesOf(1, 2), First: 9}},
	} {
		if err := put(1, c.v); !isRefused(err, c.text) {
			t.Errorf("%s: %v", c.why, err)
		}
	}
	if r := s.do(command{op: opPut, key: key, version: 1, value: (&Set{Lineage: 1, View: v}).Encode()}); !isRefused(r.Err, "version 1") {
		t.Errorf("a view under another version: %v", r.Err)
	}
	if r := s.do(command{op: opPut, key: key, version: 1, value: []byte{1, 2}}); !isRefused(r.Err, "read") {
		t.Errorf("no view: %v", r.Err)
	}
	if err := put(1, replica.View{Version: 2, Term: 2, Primary: 1, InSync: replica.NodesOf(1), First: 9}); err != nil {
		t.Error(err)
	}
	forced := Set{Lineage: 2, Former: 1, Forced: 0, View: replica.View{Version: 3, Term: 3, Primary: 0, InSync: replica.NodesOf(0), First: 1}}
	for what, spoil := range map[string]func(*Set){
		"of another one":      func(s *Set) { s.Former = 3 },
		"with two copies":     func(s *Set) { s.View.InSync = replica.NodesOf(0, 1) },
		"with another copy":   func(s *Set) { s.Forced = 1 },
		"with a term of old":  func(s *Set) { s.View.Term = 2 },
		"that nobody ordered": func(s *Set) { s.Former, s.Lineage, s.Forced, s.View.InSync = 0, 2, 0, replica.NodesOf(0) },
	} {
		s2 := forced
		spoil(&s2)
		if r := s.do(command{op: opPut, key: key, version: 2, value: s2.Encode()}); !isRefused(r.Err, "a new lineage begins with one copy") {
			t.Errorf("a lineage %s: %v", what, r.Err)
		}
	}
	if r := s.do(command{op: opPut, key: key, version: 2, value: forced.Encode()}); r.Err != nil {
		t.Errorf("a new lineage: %v", r.Err)
	}
}

func TestMembers(t *testing.T) {
	s := newState()
	token, other := HashToken([]byte("token")), HashToken([]byte("other"))
	join := func(name string, key byte, hash [32]byte) Result {
		return s.do(command{op: opJoin, name: name, publicKey: [32]byte{key}, hash: hash})
	}
	if r := join("b", 2, token); !isRefused(r.Err, "target ha token") {
		t.Errorf("without a token: %+v", r)
	}
	s.do(command{op: opToken, hash: token})
	if r := join("a", 2, token); !isRefused(r.Err, "target ha replace a") {
		t.Errorf("the name of a member: %+v", r)
	}
	if r := join("b", 2, token); r.Err != nil || r.Member.Number != 2 {
		t.Fatalf("%+v", r)
	}
	if r := join("b", 2, token); r.Err != nil || r.Member.Number != 2 {
		t.Errorf("sent twice: %+v", r)
	}
	s.do(command{op: opToken, hash: token}) // comes once more, too
	if r := join("c", 3, token); r.Err == nil {
		t.Error("a token is good twice")
	}
	if r := s.do(command{op: opAlive, number: 2, incarnation: 3, nonce: 5}); r.Err != nil {
		t.Error(r.Err)
	}
	if r := s.do(command{op: opAlive, number: 2, incarnation: 3, nonce: 6}); r.Err == nil || !strings.Contains(r.Err.Error(), "clone") {
		t.Errorf("a clone: %v", r.Err)
	}
	s.do(command{op: opLeave, number: 2, leaving: Replaced})
	if r := s.do(command{op: opAlive, number: 2, incarnation: 4, nonce: 7}); r.Err == nil || !strings.Contains(r.Err.Error(), "replaced") {
		t.Errorf("the former one: %v", r.Err)
	}
	if r := s.do(command{op: opLeave, number: 1, leaving: Removed}); !isRefused(r.Err, "only member") {
		t.Errorf("the last one leaves: %v", r.Err)
	}
	s.do(command{op: opToken, hash: other})
	if r := join("b", 4, other); r.Err != nil || r.Member.Number != 3 {
		t.Errorf("the new one: %+v", r)
	}
	s.do(command{op: opLeave, number: 2, leaving: Replaced})
	if s.member(3).Leaving != Stays {
		t.Error("a repeated request has met the new one")
	}
	s.do(command{op: opForget, number: 3})
	if s.do(command{op: opForget, number: 2}); len(s.members) != 2 {
		t.Errorf("%+v", s.members)
	}
}

// TestSnapshot: equal states have equal bytes, which give the state again; bytes that are cut or changed give an error
// or a state, and never a panic.
func TestSnapshot(t *testing.T) {
	s := newState()
	s.do(command{op: opToken, hash: HashToken([]byte("used"))})
	s.do(command{op: opJoin, name: "b", witness: true, publicKey: [32]byte{2}, hash: HashToken([]byte("used"))})
	s.do(command{op: opToken, hash: HashToken([]byte("good"))})
	s.do(command{op: opLeave, number: 2, leaving: Replaced})
	s.do(command{op: opPut, key: Key{KindUnit, "x"}, value: []byte("value")})
	s.do(command{op: opPut, key: Key{KindUnit, "y"}, value: []byte("value")})
	s.do(command{op: opDelete, key: Key{KindUnit, "y"}, version: 1})
	b := s.encode()
	again, err := decodeState(b)
	if err != nil {
		t.Fatal(err)
	}
	again.Newest(Key{KindUnit, "y"}).Value = s.Newest(Key{KindUnit, "y"}).Value // nil and empty are the same
	if !reflect.DeepEqual(again, s) || !bytes.Equal(again.encode(), b) {
		t.Errorf("%+v\nbecame\n%+v", s, again)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		x := slices.Clone(b)
		x[r.IntN(len(x))] ^= 1 << r.IntN(8)
		_, _ = decodeState(x[:r.IntN(len(x)+1)])
		_, _ = decodeState(x)
		_, _ = decodeCommand(x)
		_, _ = DecodeSet(x)
	}
	for n := range b {
		if x, err := decodeState(b[:n]); err == nil && bytes.Equal(x.encode(), b) {
			t.Errorf("%d of %d bytes are enough", n, len(b))
		}
	}
}

func TestWhoVotes(t *testing.T) {
	m := func(number uint64, name string, witness bool, l Leaving) Member {
		return Member{Number: number, Name: name, Witness: witness, Leaving: l}
	}
	a, b, w, c, d := m(1, "a", false, Stays), m(2, "b", false, Stays), m(3, "w", true, Stays), m(4, "c", false, Stays), m(5, "d", false, Stays)
	oldB, goneB, newB := m(2, "b", false, Replaced), m(2, "b", false, Removed), m(6, "b", false, Stays)
	for _, x := range []struct {
		why              string
		members          []Member
		votes, level     []uint64
		voters, learners []uint64
	}{
		{"alone", []Member{a}, []uint64{1}, []uint64{1}, []uint64{1}, nil},
		{"two: one votes", []Member{a, b}, []uint64{1}, []uint64{1, 2}, []uint64{1}, []uint64{2}},
		{"three, one is not level", []Member{a, b, w}, []uint64{1}, []uint64{1, 3}, []uint64{1}, []uint64{2, 3}},
		{"three", []Member{a, b, w}, []uint64{1}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, nil},
		{"three, and one is down", []Member{a, b, w}, []uint64{1, 2, 3}, []uint64{1, 3}, []uint64{1, 2, 3}, nil},
		{"four: the witness votes", []Member{a, b, w, c}, []uint64{1}, []uint64{1, 2, 3, 4}, []uint64{1, 2, 3}, []uint64{4}},
		{"five", []Member{a, b, w, c, d}, []uint64{1, 2, 3}, []uint64{1, 2, 3, 4, 5}, []uint64{1, 2, 3, 4, 5}, nil},
		{"replaced, the new one is not there", []Member{a, oldB, w}, []uint64{1, 2, 3}, []uint64{1, 3}, []uint64{1, 2, 3}, nil},
		{"replaced, the new one is not level", []Member{a, oldB, w, newB}, []uint64{1, 2, 3}, []uint64{1, 3}, []uint64{1, 2, 3}, []uint64{6}},
		{"replaced, and another one is level", []Member{a, oldB, w, c, newB}, []uint64{1, 2, 3}, []uint64{1, 3, 4}, []uint64{1, 3, 4}, []uint64{6}},
		{"replaced, another one has the vote, and the new one is level", []Member{a, oldB, w, c, newB}, []uint64{1, 3, 4}, []uint64{1, 3, 4, 6}, []uint64{1, 3, 4}, []uint64{6}},
		{"replaced of five", []Member{a, oldB, w, c, d, newB}, []uint64{1, 2, 3, 4, 5}, []uint64{1, 3, 4, 5}, []uint64{1, 2, 3, 4, 5}, []uint64{6}},
		{"replaced, and with the new one there are four", []Member{a, oldB, w, c, newB}, []uint64{1, 2, 3}, []uint64{1, 3, 4, 6}, []uint64{1, 3, 4}, []uint64{6}},
		{"replaced of five, and the new one is level", []Member{a, oldB, w, c, d, newB}, []uint64{1, 2, 3, 4, 5}, []uint64{1, 3, 4, 5, 6}, []uint64{1, 3, 4, 5, 6}, nil},
		{"replaced", []Member{a, oldB, w, newB}, []uint64{1, 2, 3}, []uint64{1, 3, 6}, []uint64{1, 3, 6}, nil},
		{"removed", []Member{a, goneB, w}, []uint64{1, 2, 3}, []uint64{1, 3}, []uint64{1}, []uint64{3}},
	} {
		level := map[uint64]bool{}
		for _, n := range x.level {
			level[n] = true
		}
		voters, learners := wantedMembers(x.members, x.votes, level)
		if !slices.Equal(voters, x.voters) || !slices.Equal(learners, x.learners) {
			t.Errorf("%s: %v vote and %v do not, and should be %v and %v", x.why, voters, learners, x.voters, x.learners)
		}
	}
}

// TestJumpedOver: the end of a change is not known when this node was brought level by a snapshot. Sent again, the
// change would conflict with itself.
func TestJumpedOver(t *testing.T) {
	id := testIdentity
	s := initial(&id, "lab", false, [32]byte{1}, nil)
	l, err := CreateLog(newDisk(), id, s, counter())
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Put(Key{KindUnit, "x"}, 0, []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	var out Output
	if err := c.restore(s, &out); err != nil || len(out.Ended) != 1 || out.Ended[0].Count != n || out.Ended[0].Err != ErrUnknown || len(c.waits) != 0 {
		t.Errorf("%v: %+v", err, out.Ended)
	}
}

// TestRegisteredAfterSnapshot: a node that was far behind asks to be registered before the leader sends it a snapshot. Its life is
// registered all the same, or else a clone of it would not be found out.
func TestRegisteredAfterSnapshot(t *testing.T) {
	id := testIdentity
	s := initial(&id, "lab", false, [32]byte{1}, nil)
	l, err := CreateLog(newDisk(), id, s, counter())
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.Tick() // there is no leader, and what it asks for is lost
	var out Output
	if err := c.restore(s, &out); err != nil || len(out.Ended) != 0 {
		t.Fatalf("%v: %+v", err, out.Ended)
	}
	for range 50 {
		c.Tick()
		if err := c.Work(&out); err != nil {
			t.Fatal(err)
		}
	}
	if m := c.state.member(id.Number); m.Incarnation != c.log.id.Incarnation || m.Nonce != c.log.id.Nonce || len(c.waits) != 0 {
		t.Errorf("life %d of the node is registered, and it is in life %d", m.Incarnation, c.log.id.Incarnation)
	}
}

// TestSnapshotNamesItsMembers: a member that is far behind is sent a snapshot just when a change of the members takes place. That one does not have the
// change and leave out who has come with it: whoever takes it would never learn of that member, and panic at the end of a joint change.
func TestSnapshotNamesItsMembers(t *testing.T) {
	id, token := testIdentity, []byte("token")
	first := initial(&id, "lab", false, [32]byte{1}, nil, HashToken(token))
	state, err := decodeState(first.GetData())
	if err != nil {
		t.Fatal(err)
	}
	state.members, state.next = append(state.members, Member{Number: 2, Name: "b"}, Member{Number: 3, Name: "c"}), 4
	first.Data, first.Metadata.ConfState.Voters = state.encode(), []uint64{1, 2, 3}
	l, err := CreateLog(newDisk(), id, first, counter())
	if err != nil {
		t.Fatal(err)
	}
	l.limit = 1 // a new file each time: what is older than a few entries is forgotten
	c, err := Start(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var out Output
	work := func() {
		t.Helper()
		if err := c.Work(&out); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(from uint64, kind raftpb.MessageType, term uint64) {
		last, _ := l.store.LastIndex()
		c.Receive(Message{From: from, Raft: &raftpb.Message{Type: kind.Enum(), From: new(from), To: new(id.Number), Term: new(term), Index: new(last)}})
	}
	agree := func() { // c has it, too
		t.Helper()
		work()
		_, term := c.Leader()
		hear(3, raftpb.MsgAppResp, term)
		work()
	}
	for leader := uint64(0); leader != id.Number; leader, _ = c.Leader() {
		c.Tick()
		work()
		_, term := c.Leader()
		hear(3, raftpb.MsgPreVoteResp, term+1)
		work()
		_, term = c.Leader()
		hear(3, raftpb.MsgVoteResp, term)
		work()
	}
	agree()
	for c.ticks-c.changingAt < retryTicks {
		c.Tick()
		agree()
	}
	_, term := c.Leader()
	hear(2, raftpb.MsgAppResp, term) // b is level, and then takes nothing more
	for i := range uint64(200) {
		if _, err := c.Put(Key{KindUnit, "x"}, i, nil); err != nil {
			t.Fatal(err)
		}
		agree()
	}
	if _, err := c.Join("d", false, [32]byte{4}, token); err != nil {
		t.Fatal(err)
	}
	agree()
	c.Tick()
	if work(); c.changingAt != c.ticks {
		t.Fatal("no change of the members was proposed")
	}
	out = Output{}
	hear(3, raftpb.MsgAppResp, term) // it is agreed on
	c.Unreachable(2)
	work()
	if !slices.Contains(c.conf.GetLearners(), 4) {
		t.Fatalf("the members are %v", c.conf)
	}
	sent := false
	for _, m := range out.Messages {
		if m.Raft.GetType() == raftpb.MsgSnap {
			sent = true
			if meta := m.Raft.GetSnapshot().GetMetadata(); meta.GetIndex() >= c.applied && !slices.Contains(meta.GetConfState().GetLearners(), 4) {
				t.Errorf("after entry %d the members are %v, and a snapshot of %d has %v", c.applied, c.conf, meta.GetIndex(), meta.GetConfState())
			}
		}
	}
	if !sent {
		t.Error("no snapshot was sent")
	}
}

// TestUnreadableSnapshot: the leader, of a later version, sends a state that this node cannot read. It takes no part, and its log does not grow by that state
// each time that it tries.
func TestUnreadableSnapshot(t *testing.T) {
	id := testIdentity
	d := newDisk()
	l, err := CreateLog(d, id, initial(&id, "lab", false, [32]byte{1}, nil), counter())
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.Receive(Message{From: 2, Raft: &raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: new(uint64(2)), To: new(id.Number), Term: new(uint64(9)), Snapshot: &raftpb.Snapshot{
		Data: []byte{99}, Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(50)), Term: new(uint64(9)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}}},
	}}})
	var sizes []int
	for range 3 {
		var out Output
		if err := c.Work(&out); err == nil || !strings.Contains(err.Error(), "bring all nodes to the same version") {
			t.Errorf("%v", err)
		}
		sizes = append(sizes, len(d.names[logName].data))
		c.Tick()
	}
	if sizes[0] != sizes[2] {
		t.Errorf("the log has %d bytes", sizes)
	}
}

// TestViews: a view that is proposed again and again is agreed on once; a late one, and one that no node may propose,
// change nothing.
func TestViews(t *testing.T) {
	id := testIdentity
	l, err := CreateLog(newDisk(), id, initial(&id, "lab", false, [32]byte{1}, nil), counter())
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	v, err := ViewsOf(c, "main", 0)
	if err != nil {
		t.Fatal(err)
	}
	var agreed []replica.View
	work := func() {
		t.Helper()
		var out Output
		c.Tick()
		if err := c.Work(&out); err != nil {
			t.Fatal(err)
		}
		agreed = append(agreed, v.Agreed(&out)...)
	}
	propose := func(view replica.View) {
		t.Helper()
		if err := v.Propose(view); err != nil {
			t.Fatal(err)
		}
	}
	first := replica.View{Version: 1, Term: 1, InSync: replica.NodesOf(0, 1), First: 1}
	if _, ok := v.Now(); ok {
		t.Error("there is a view")
	}
	for range 50 { // there is no leader at first
		propose(first)
		work()
	}
	alone := replica.View{Version: 2, Term: 1, InSync: replica.NodesOf(0), First: 1}
	late := replica.View{Version: 2, Term: 2, Primary: 1, InSync: replica.NodesOf(1), First: 5}
	stolen := replica.View{Version: 3, Term: 2, Primary: 1, InSync: replica.NodesOf(1), First: 5}
	for _, view := range []replica.View{alone, late, stolen} {
		propose(view)
		work()
	}
	if now, ok := v.Now(); !ok || now != alone || !slices.Equal(agreed, []replica.View{first, alone}) {
		t.Errorf("%+v, at last %+v", agreed, now)
	}
	if len(c.waits) > 0 {
		t.Errorf("%d changes wait", len(c.waits))
	}
	// In a new life nothing is told before it is known to be the newest.
	if l, err = OpenLog(l.fs, counter()); err != nil {
		t.Fatal(err)
	}
	if c, err = Start(l, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if v, err = ViewsOf(c, "main", 0); err != nil {
		t.Fatal(err)
	}
	agreed = nil
	for range 50 {
		work()
	}
	if !slices.Equal(agreed, []replica.View{alone}) {
		t.Errorf("a new life is told %+v", agreed)
	}
}

// TestNodeInfo: what a node says of itself is read as it was written, and nothing else is.
func TestNodeInfo(t *testing.T) {
	info := &NodeInfo{"v1.2", []Part{{"stores.disk1", [16]byte{1, 2}}, {"portals", [16]byte{3}}}}
	b := info.Encode()
	if got, err := DecodeNodeInfo(b); err != nil || !reflect.DeepEqual(got, info) {
		t.Errorf("%+v %v", got, err)
	}
	for i := range b {
		if got, err := DecodeNodeInfo(b[:i]); err == nil && len(got.Parts) == 2 {
			t.Errorf("%d of %d bytes are %+v", i, len(b), got)
		}
	}
	if _, err := DecodeNodeInfo(append([]byte{9}, b[1:]...)); err == nil {
		t.Error("another format is read")
	}
}
