package quorum

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"oneshot/ha/replica"
)

// Kind says what a record is about.
type Kind uint8

const (
	KindSet   Kind = iota + 1 // by name: view, lineage, history; a Set
	KindUnit                  // by name of the set: registrations, reservations, what else must hold on each node
	KindStore                 // by name: identity, size, copies
	_
	_
	KindCluster // by name: protocol floor, heartbeat
	KindNode    // by name of the node: what it says of itself; a NodeInfo
)

// Key names a record.
type Key struct {
	Kind Kind
	Name string
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Record is a value on which the nodes agree. Its bytes are shared: nobody writes to them.
type Record struct {
	Key
	Version uint64 // counts changes, from 1
	Deleted bool   // the name is kept with its version, so that a change that comes late finds out
	Value   []byte
}

// request names a change, so that who has made it hears of its end. Sent again, by a node that does not know whether
// it was lost, it changes nothing more: its version is gone.
type request struct{ Node, Nonce, Count uint64 }

// Member is a node of the cluster.
type Member struct {
	Number      uint64
	Name        string
	Witness     bool
	Key         [32]byte // SHA-256 of its public key, PKIX
	Incarnation uint64   // the life that has registered; 0: none yet
	Nonce       uint64
	Leaving     Leaving
}

// Leaving says whether a member is on its way out. It is refused from then on.
type Leaving uint8

const (
	Stays    Leaving = iota
	Replaced         // it votes on paper, until its successor, or another one that had no vote, is level
	Removed
)

// Bounds of the state. A snapshot is sent as a whole, so it has to be small.
const (
	MaxValue   = 1 << 20
	maxName    = 255
	maxRecords = 4096
	maxState   = 16 << 20
	maxMembers = 15 // replica.ID has 16 values, and 0 names nobody here
	maxTokens  = 16
)

// State is what all members have in common after the same entries. It has no clock and no random number.
type State struct {
	cluster   uint64
	name      string
	authority []byte // certificate and private key that sign members
	signer    []byte
	next      uint64 // number of the next member
	members   []Member
	tokens    []token // oldest first
	records   map[Key]*Record
	size      int // of all names and values
}

// token lets one machine join. A used one is kept for a while, so that it is not made good again by a change that
// comes twice.
type token struct {
	hash [32]byte
	used bool
}

// Result is how a change ended.
type Result struct {
	// Err is nil, ErrConflict, ErrUnknown or a *RefusedError.
	Err error
	// Record is the newest one of a record's change, also after ErrConflict; nil: there is none.
	Record *Record
	// Member is that of a join.
	Member *Member
}

var (
	// ErrConflict: the record has another version than the change names.
	ErrConflict = errors.New("the record was changed by somebody else")
	// ErrUnknown: it is not known whether the change has taken effect. Read the record.
	ErrUnknown = errors.New("it is not known whether the change took place")
)

// RefusedError says why a change makes no sense, and what does.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

func refused(format string, args ...any) Result {
	return Result{Err: &RefusedError{fmt.Sprintf(format, args...)}}
}

// op is what a command does.
type op uint8

const (
	opPut op = iota + 1
	opDelete
	opToken
	opJoin
	opAlive
	opLeave
	opForget
)

// command is an entry of raft's log.
type command struct {
	request request
	op      op

	key     Key    // of opPut and opDelete
	version uint64 // that is replaced; 0: there is none
	value   []byte

	name        string // of opJoin
	witness     bool
	publicKey   [32]byte
	hash        [32]byte // of the token of opToken and opJoin
	number      uint64   // of opAlive, opLeave and opForget
	incarnation uint64
	nonce       uint64
	leaving     Leaving
}

func (c *command) encode() []byte {
	b := appendU64([]byte{1, uint8(c.op)}, c.request.Node, c.request.Nonce, c.request.Count)
	b = append(b, uint8(c.key.Kind))
	b = appendBytes(b, c.key.Name)
	b = appendU64(b, c.version)
	b = appendBytes(b, c.value)
	b = appendBytes(b, c.name)
	b = append(b, b2u(c.witness))
	b = append(b, c.hash[:]...)
	b = append(b, c.publicKey[:]...)
	b = appendU64(b, c.number, c.incarnation, c.nonce)
	return append(b, uint8(c.leaving))
}

func decodeCommand(b []byte) (*command, error) {
	r := cursor{b: b}
	if v := r.u8(); r.err == nil && v != 1 {
		return nil, fmt.Errorf("a command has format %d, which this version does not know", v)
	}
	c := &command{op: op(r.u8())}
	c.request = request{r.u64(), r.u64(), r.u64()}
	c.key = Key{Kind(r.u8()), r.string()}
	c.version, c.value = r.u64(), r.bytes()
	c.name, c.witness = r.string(), r.u8() != 0
	copy(c.hash[:], r.take(32))
	copy(c.publicKey[:], r.take(32))
	c.number, c.incarnation, c.nonce = r.u64(), r.u64(), r.u64()
	c.leaving = Leaving(r.u8())
	return c, r.end()
}

func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// check says what is wrong with a command wherever it arrives.
func (c *command) check() error {
	switch {
	case len(c.value) > MaxValue:
		return &RefusedError{fmt.Sprintf("the value has %d bytes, and a record holds %d", len(c.value), MaxValue)}
	case len(c.key.Name) > maxName || len(c.name) > maxName:
		return &RefusedError{fmt.Sprintf("a name is longer than %d bytes", maxName)}
	}
	return nil
}

// apply does a command. It changes nothing unless it succeeds.
func (s *State) apply(c *command) Result {
	if err := c.check(); err != nil {
		return Result{Err: err}
	}
	switch c.op {
	case opPut, opDelete:
		return s.put(c)
	case opToken:
		s.addToken(c.hash)
		return Result{}
	case opJoin:
		return s.join(c)
	case opAlive:
		return s.alive(c)
	case opLeave:
		return s.leave(c)
	case opForget:
		s.members = slices.DeleteFunc(s.members, func(m Member) bool { return m.Number == c.number && m.Leaving != Stays })
		return Result{}
	}
	return refused("this version does not know command %d: bring all nodes to the same version", c.op)
}

// put is the compare-and-swap of a record.
func (s *State) put(c *command) Result {
	old := s.records[c.key]
	var version uint64
	if old != nil {
		version = old.Version
	}
	if version != c.version {
		return Result{Err: ErrConflict, Record: old}
	}
	r := &Record{Key: c.key, Version: version + 1, Deleted: c.op == opDelete, Value: c.value}
	size := s.size + len(c.value)
	if old == nil {
		size += len(c.key.Name)
		if len(s.records) >= maxRecords {
			return refused("consensus holds %d records, and no more", maxRecords)
		}
	} else {
		size -= len(old.Value)
	}
	if size > maxState && size > s.size {
		return refused("consensus holds %d MiB of records, and no more", maxState>>20)
	}
	if c.key.Kind == KindSet && !r.Deleted {
		if err := checkSet(old, r); err != nil {
			return Result{Err: err, Record: old}
		}
	}
	s.records[c.key], s.size = r, size
	return Result{Record: r}
}

// checkSet refuses views that no node may propose, whatever it believes.
func checkSet(old, r *Record) error {
	next, err := DecodeSet(r.Value)
	if err != nil {
		return &RefusedError{"the record of the set cannot be read: " + err.Error()}
	}
	if next.View.Version != r.Version {
		return &RefusedError{fmt.Sprintf("the view has version %d, and its record %d", next.View.Version, r.Version)}
	}
	if !next.View.InSync.Has(next.View.Primary) {
		return &RefusedError{"the primary of a view has to be in sync"}
	}
	if old == nil || old.Deleted {
		return nil
	}
	was, err := DecodeSet(old.Value)
	if err != nil {
		return nil
	}
	switch v := &next.View; {
	case was.Lineage != next.Lineage && (next.Former != was.Lineage || v.InSync != replica.NodesOf(next.Forced) || v.Term <= was.View.Term):
		return &RefusedError{"a new lineage begins with one copy, in place of the lineage that is in force"}
	case was.Lineage != next.Lineage:
		return nil // what an administrator has decided
	case v.Term < was.View.Term, v.Term == was.View.Term && (v.Primary != was.View.Primary || v.Life != was.View.Life || v.First != was.View.First):
		return &RefusedError{fmt.Sprintf("term %d of primary %d cannot follow term %d of primary %d", v.Term, v.Primary, was.View.Term, was.View.Primary)}
	case v.Primary != was.View.Primary && !was.View.InSync.Has(v.Primary):
		return &RefusedError{fmt.Sprintf("copy %d is not in sync, and cannot become primary", v.Primary)}
	}
	return nil
}

func (s *State) addToken(hash [32]byte) {
	if slices.ContainsFunc(s.tokens, func(t token) bool { return t.hash == hash }) {
		return
	}
	s.tokens = append(s.tokens, token{hash: hash})
	if len(s.tokens) > maxTokens {
		s.tokens = s.tokens[1:]
	}
}

// join makes a member of somebody who has a token. The same key gets the same answer again.
func (s *State) join(c *command) Result {
	if i := slices.IndexFunc(s.members, func(m Member) bool { return m.Key == c.publicKey }); i >= 0 {
		switch m := s.members[i]; {
		case m.Leaving != Stays:
			return Result{Err: replacedError(m.Name)}
		case m.Name != c.name:
			return refused("this machine has joined as %s already, and cannot join as %s: empty its state directory first", m.Name, c.name)
		default:
			return Result{Member: &m}
		}
	}
	if !isName(c.name) {
		return Result{Err: errName}
	}
	i := slices.Index(s.tokens, token{hash: c.hash})
	if i < 0 {
		return Result{Err: errToken}
	}
	if m := s.present(c.name); m != nil {
		return refused("%s is a member already: if its machine or its state directory is lost, run `target ha replace %s` on another node, and use the token that it prints", c.name, c.name)
	}
	if len(s.members) >= maxMembers {
		return refused("the cluster has %d members, and no room for more", len(s.members))
	}
	s.tokens[i].used = true
	m := Member{Number: s.next, Name: c.name, Witness: c.witness, Key: c.publicKey}
	s.members = append(s.members, m)
	s.next++
	return Result{Member: &m}
}

// mayJoin reports whether a join with that key and token may succeed, or did.
func (s *State) mayJoin(publicKey, hash [32]byte) bool {
	return slices.Contains(s.tokens, token{hash: hash}) || slices.ContainsFunc(s.members, func(m Member) bool { return m.Key == publicKey })
}

var errToken = &RefusedError{"the token is not known, or was used: make a new one with `target ha token`"}

var errName = &RefusedError{"a node's name has letters, digits, dots and hyphens"}

func isName(s string) bool {
	for _, x := range []byte(s) {
		if x != '.' && x != '-' && (x < '0' || x > '9') && (x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return s != ""
}

// present returns the member of that name that stays.
func (s *State) present(name string) *Member {
	for i := range s.members {
		if m := &s.members[i]; m.Name == name && m.Leaving == Stays {
			return m
		}
	}
	return nil
}

func (s *State) member(number uint64) *Member {
	for i := range s.members {
		if s.members[i].Number == number {
			return &s.members[i]
		}
	}
	return nil
}

// alive registers a life of a member. Of two with the same count the first one stays.
func (s *State) alive(c *command) Result {
	m := s.member(c.number)
	switch {
	case m == nil:
		return refused("this node is not a member any more: if it is to be one again, run `target ha join` with a new token and an empty state directory")
	case m.Leaving != Stays:
		return Result{Err: replacedError(m.Name)}
	case m.Incarnation == c.incarnation && m.Nonce == c.nonce:
		return Result{}
	case m.Incarnation >= c.incarnation:
		return Result{Err: cloneError(m.Name)}
	}
	m.Incarnation, m.Nonce = c.incarnation, c.nonce
	return Result{}
}

// leave sends a member away, now or when another one of its name is level.
func (s *State) leave(c *command) Result {
	m := s.member(c.number)
	switch {
	case m == nil, m.Leaving >= c.leaving:
		return Result{} // sent twice
	case c.leaving > Removed:
		return refused("this version does not know how member %s is to leave: bring all nodes to the same version", m.Name)
	case m.Leaving == Stays && !slices.ContainsFunc(s.members, func(o Member) bool { return o.Leaving == Stays && o.Number != m.Number }):
		return refused("%s is the only member: the cluster cannot go on without it", m.Name)
	}
	m.Leaving = c.leaving
	for i := range s.members {
		if o := &s.members[i]; c.leaving == Removed && o.Name == m.Name && o.Leaving == Replaced {
			o.Leaving = Removed // the one that it would give way to does not come
		}
	}
	return Result{}
}

// HashToken is what consensus knows of a token.
func HashToken(token []byte) [32]byte {
	return sha256.Sum256(append([]byte("oneshot join token\x00"), token...))
}

// Get returns a record, nil if there is none or it was deleted.
func (s *State) Get(k Key) *Record {
	if r := s.records[k]; r != nil && !r.Deleted {
		return r
	}
	return nil
}

// Newest returns a record though it was deleted: the next change names its version.
func (s *State) Newest(k Key) *Record { return s.records[k] }

// Members returns all, in the order of their numbers.
func (s *State) Members() []Member { return slices.Clone(s.members) }

// Name returns the cluster's.
func (s *State) Name() string { return s.name }

func (s *State) keys() []Key { return slices.SortedFunc(maps.Keys(s.records), compareKeys) }

// encode encodes the state: equal states have equal bytes.
func (s *State) encode() []byte {
	b := []byte{1}
	b = appendU64(b, s.cluster, s.next)
	b = appendBytes(b, s.name)
	b = appendBytes(b, s.authority)
	b = appendBytes(b, s.signer)
	b = appendU64(b, uint64(len(s.members)))
	for _, m := range s.members {
		b = appendU64(b, m.Number, m.Incarnation, m.Nonce)
		b = appendBytes(b, m.Name)
		b = append(append(b, b2u(m.Witness), uint8(m.Leaving)), m.Key[:]...)
	}
	b = appendU64(b, uint64(len(s.tokens)))
	for _, t := range s.tokens {
		b = append(append(b, b2u(t.used)), t.hash[:]...)
	}
	for _, k := range s.keys() {
		r := s.records[k]
		b = append(b, uint8(k.Kind), b2u(r.Deleted))
		b = appendBytes(b, k.Name)
		b = appendU64(b, r.Version)
		b = appendBytes(b, r.Value)
	}
	return b
}

// decodeState reads a snapshot. It keeps nothing of b.
func decodeState(b []byte) (*State, error) {
	c := cursor{b: slices.Clone(b)}
	if v := c.u8(); c.err == nil && v != 1 {
		return nil, fmt.Errorf("a snapshot has format %d, which this version does not know", v)
	}
	s := &State{cluster: c.u64(), next: c.u64(), name: c.string(), authority: c.bytes(), signer: c.bytes(), records: map[Key]*Record{}}
	for n := c.u64(); n > 0 && c.err == nil; n-- {
		m := Member{Number: c.u64(), Incarnation: c.u64(), Nonce: c.u64(), Name: c.string(), Witness: c.u8() != 0, Leaving: Leaving(c.u8())}
		copy(m.Key[:], c.take(32))
		s.members = append(s.members, m)
	}
	for n := c.u64(); n > 0 && c.err == nil; n-- {
		s.tokens = append(s.tokens, token{used: c.u8() != 0, hash: [32]byte(c.fixed(32))})
	}
	for c.err == nil && len(c.b) > 0 {
		r := &Record{Key: Key{Kind: Kind(c.u8())}, Deleted: c.u8() != 0}
		r.Name = c.string()
		r.Version = c.u64()
		r.Value = c.bytes()
		s.records[r.Key] = r
		s.size += len(r.Name) + len(r.Value)
	}
	return s, c.end()
}

// changes are the records that differ from those of an older state, in the order of their keys.
func (s *State) changes(old *State) (all []*Record) {
	for _, k := range s.keys() {
		if o := old.records[k]; o == nil || o.Version != s.records[k].Version {
			all = append(all, s.records[k])
		}
	}
	return all
}

// Set is the record of a mirrored set.
type Set struct {
	Lineage uint64     // another one after each `force`; 0: there was none
	Former  uint64     // the lineage before
	Forced  replica.ID // the copy with which Lineage began,
	// WasInSync: and which was in sync then, as far as its node knew.
	WasInSync bool
	View      replica.View
}

// Encode returns the value of the record.
func (s *Set) Encode() []byte {
	v := &s.View
	format := uint8(1)
	if s.Lineage != 0 {
		format = 2
	}
	b := appendU64([]byte{format}, s.Lineage, v.Version, v.Term, v.First, uint64(v.Primary), uint64(v.InSync), uint64(v.Life))
	if b = append(b, b2u(v.Planned)); format == 2 {
		b = append(appendU64(b, s.Former, uint64(s.Forced)), b2u(s.WasInSync))
	}
	return b
}

// DecodeSet reads the value of a record.
func DecodeSet(b []byte) (Set, error) {
	c := cursor{b: b}
	format := c.u8()
	if c.err == nil && format != 1 && format != 2 {
		return Set{}, fmt.Errorf("a set has format %d, which this version does not know", format)
	}
	s := Set{Lineage: c.u64(), View: replica.View{Version: c.u64(), Term: c.u64(), First: c.u64()}}
	s.View.Primary, s.View.InSync = replica.ID(c.u64()), replica.Nodes(c.u64())
	s.View.Life = uint32(c.u64())
	s.View.Planned = c.u8() != 0
	if format == 2 {
		s.Former, s.Forced, s.WasInSync = c.u64(), replica.ID(c.u64()), c.u8() != 0
	}
	return s, c.end()
}
