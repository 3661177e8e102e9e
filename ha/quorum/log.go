package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Log is what a node has promised, on its disk: entries, term and vote, snapshots, who it is, and how far the logs
// of others had come. It is one file of batches, each written and synced as a whole before the next begins:
//
//	batch │ header │ items │ zeroes up to 512 │
//	      header: magic 8 │ salt of the file 8 │ number 8 │ length of the items 4 │ their CRC32C 4 │ CRC32C of the header 4
//	      item:   type 1 │ length 4 │ bytes
//
// Numbers of batches go on from file to file, so the number says how old a state is. A batch that is not whole ends
// the log: a crash has torn it, and nobody was told of it. If a batch with a higher number follows, the log is
// damaged: then something was promised that is not there any more.
//
// An entry replaces the one with its index, and all behind. What is not needed any more goes when a new file
// replaces the old one: at each start, so no torn batch is ever followed by one, and when the file has grown.
type Log struct {
	fs   FS
	file File // nil: the next batch needs a new one

	salt    uint64
	size    int64
	limit   int64  // growth of the file after which it is replaced
	keep    uint64 // entries before a snapshot, for members that are a little behind
	kept    int64  // size of the file when it was new
	start   uint64 // of the first batch of this life
	random  func() uint64
	broken  bool  // the file may lack what was synced
	retryAt int64 // size at which a new file is tried again
	failed  int   // how often Save has failed since it has not

	id    Identity
	store *raft.MemoryStorage

	mu     sync.Mutex      // for these may be asked for, and noted, while another goroutine saves; not held over the disk
	number uint64          // of the last batch that is durable; guarded by mu
	seen   map[uint64]Seen // by member; guarded by mu
	news   map[uint64]bool // members whose seen is not on the disk yet, nor on its way there; guarded by mu
}

// Identity is who a node is. It begins with Init or a join, and never changes but for its lives.
type Identity struct {
	Cluster     uint64 // drawn at Init
	Number      uint64 // of the member; never used for another one
	Name        string
	Key         []byte // private, PKCS #8
	Cert        []byte // of the cluster's authority, DER
	Authority   []byte // its certificate, DER
	Incarnation uint64 // counts lives
	Nonce       uint64 // drawn for each life: two with the same count are clones

	// Former are those that the node had before it was forced to be a cluster of its own, oldest first.
	Former []Generation
}

// Generation is who a node was in a cluster that has ended for it. It proves to others of that cluster that they are refused.
type Generation struct {
	Cluster, Number      uint64
	Key, Cert, Authority []byte // as in Identity
}

// Seen is how far the log of a member had come when it was last heard.
type Seen struct{ Incarnation, Nonce, Batch uint64 }

const (
	logName    = "consensus"
	tempName   = "consensus.new"
	logMagic   = "OSquorm1"
	headerSize = 36
	sector     = 512
	usualLimit = 4 << 20 // a file that has grown by more is replaced
	usualKeep  = 64
)

// Types of items.
const (
	itemIdentity = iota + 1
	itemSeen
	itemSnapshot
	itemHardState
	itemEntry
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrNoLog says that the directory holds no state.
var ErrNoLog = errors.New("this node has no state of a cluster: if it is the first one of a new cluster, run `target ha init`; if it never was a member, run `target ha join` with a token; if it was, its state directory is lost: run `target ha replace` with its name on another node first, and join with the token that it prints")

// ErrMember says that the directory holds a state already.
var ErrMember = errors.New("this node is a member of a cluster already")

// DamagedError says that a log lacks what it once held. The node cannot vote any more.
type DamagedError struct {
	At   int64 // octets from the start of the file
	What string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the consensus log of this node is damaged at octet %d (%s): it may lack what the node has promised, so the node must not vote under its number again: run `target ha replace` with its name on another node, and join anew", e.At, e.What)
}

// CreateLog makes the log of a new member. snapshot is nil but for the first of a cluster. It is durable when
// CreateLog returns; the log that it returns is open.
func CreateLog(fsys FS, id Identity, snapshot *raftpb.Snapshot, random func() uint64) (*Log, error) {
	if _, err := fsys.ReadFile(logName); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			return nil, ErrMember
		}
		return nil, fmt.Errorf("the consensus log cannot be made: %w", err)
	}
	l := newLog(fsys, random)
	l.id = id
	l.id.Incarnation, l.id.Nonce = 1, random()
	l.start = 1
	if snapshot != nil {
		if err := l.store.ApplySnapshot(snapshot); err != nil {
			return nil, err
		}
		meta := snapshot.GetMetadata()
		if err := l.store.SetHardState(&raftpb.HardState{Term: new(meta.GetTerm()), Vote: new(uint64(0)), Commit: new(meta.GetIndex())}); err != nil {
			return nil, err
		}
	}
	if err := l.replace(); err != nil {
		return nil, fmt.Errorf("the consensus log cannot be made: %w", err)
	}
	return l, nil
}

// OpenLog begins a new life of the node. ErrNoLog: there is none. *DamagedError: it may not vote any more.
func OpenLog(fsys FS, random func() uint64) (*Log, error) {
	l, err := readLog(fsys, random)
	if err != nil {
		return nil, err
	}
	l.id.Incarnation++
	l.id.Nonce = random()
	l.start = l.number + 1
	if err := l.replace(); err != nil {
		return nil, fmt.Errorf("the consensus log cannot be written: %w", err)
	}
	return l, nil
}

// readLog returns what the file holds, and changes nothing.
func readLog(fsys FS, random func() uint64) (*Log, error) {
	data, err := fsys.ReadFile(logName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoLog
	case err != nil:
		return nil, fmt.Errorf("the consensus log cannot be read: %w", err)
	}
	l := newLog(fsys, random)
	return l, l.replay(data)
}

func newLog(fsys FS, random func() uint64) *Log {
	return &Log{fs: fsys, random: random, limit: usualLimit, keep: usualKeep, seen: map[uint64]Seen{}, news: map[uint64]bool{}, store: raft.NewMemoryStorage()}
}

// Close closes the file. What was saved stays.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// replay takes all whole batches of a file.
func (l *Log) replay(data []byte) error {
	at := int64(0)
	for at < int64(len(data)) {
		salt, number, items, ok := parseBatch(data[at:])
		if !ok || at > 0 && (salt != l.salt || number != l.number+1) {
			break
		}
		l.salt, l.number = salt, number
		if err := l.replayItems(items); err != nil {
			return &DamagedError{at, err.Error()}
		}
		at += padded(headerSize + len(items))
	}
	if at == 0 {
		return &DamagedError{0, "its first batch is not whole"}
	}
	if l.id.Number == 0 {
		return &DamagedError{0, "it does not say whose it is"}
	}
	for later := at; later < int64(len(data)); later += sector {
		if salt, number, _, ok := parseHeader(data[later:]); ok && salt == l.salt && number > l.number+1 {
			return &DamagedError{at, fmt.Sprintf("batch %d is not whole, and batch %d follows", l.number+1, number)}
		}
	}
	return nil
}

func (l *Log) replayItems(items []byte) error {
	c := cursor{b: items}
	for c.err == nil && len(c.b) > 0 {
		kind, p := c.u8(), c.bytes()
		if c.err != nil {
			break
		}
		if err := l.replayItem(kind, p); err != nil {
			return err
		}
	}
	return c.end()
}

func (l *Log) replayItem(kind uint8, p []byte) error {
	switch kind {
	case itemIdentity:
		return l.id.decode(p)
	case itemSeen:
		c := cursor{b: p}
		l.seen[c.u64()] = Seen{c.u64(), c.u64(), c.u64()}
		return c.end()
	case itemSnapshot:
		s := new(raftpb.Snapshot)
		if err := proto.Unmarshal(p, s); err != nil {
			return err
		}
		return l.store.ApplySnapshot(s)
	case itemHardState:
		h := new(raftpb.HardState)
		if err := proto.Unmarshal(p, h); err != nil {
			return err
		}
		return l.store.SetHardState(h)
	case itemEntry:
		e := new(raftpb.Entry)
		if err := proto.Unmarshal(p, e); err != nil {
			return err
		}
		if last, _ := l.store.LastIndex(); e.GetIndex() > last+1 {
			return fmt.Errorf("entry %d follows entry %d", e.GetIndex(), last)
		}
		return l.store.Append([]*raftpb.Entry{e})
	}
	return fmt.Errorf("it has an item of type %d, which this version does not know", kind)
}

func (id *Identity) appendTo(b []byte) []byte {
	b = appendU64(b, id.Cluster, id.Number, id.Incarnation, id.Nonce)
	b = appendBytes(b, id.Name)
	b = appendBytes(b, id.Key)
	b = appendBytes(b, id.Cert)
	b = appendBytes(b, id.Authority)
	for _, g := range id.Former {
		b = appendU64(b, g.Cluster, g.Number)
		b = appendBytes(b, g.Key)
		b = appendBytes(b, g.Cert)
		b = appendBytes(b, g.Authority)
	}
	return b
}

func (id *Identity) decode(b []byte) error {
	c := cursor{b: slices.Clone(b)}
	*id = Identity{Cluster: c.u64(), Number: c.u64(), Incarnation: c.u64(), Nonce: c.u64(), Name: c.string(), Key: c.bytes(), Cert: c.bytes(), Authority: c.bytes()}
	for c.err == nil && len(c.b) > 0 {
		id.Former = append(id.Former, Generation{c.u64(), c.u64(), c.bytes(), c.bytes(), c.bytes()})
	}
	return c.end()
}

func padded(n int) int64 { return (int64(n) + sector - 1) / sector * sector }

// parseHeader checks a header.
func parseHeader(b []byte) (salt, number uint64, length uint32, ok bool) {
	if len(b) < headerSize || string(b[:8]) != logMagic || crc32.Checksum(b[:32], castagnoli) != binary.BigEndian.Uint32(b[32:]) {
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:]), true
}

// parseBatch returns the items of a whole batch. They alias b.
func parseBatch(b []byte) (salt, number uint64, items []byte, ok bool) {
	salt, number, n, ok := parseHeader(b)
	if !ok || int64(n) > int64(len(b)-headerSize) {
		return 0, 0, nil, false
	}
	items = b[headerSize : headerSize+int(n)]
	return salt, number, items, crc32.Checksum(items, castagnoli) == binary.BigEndian.Uint32(b[28:])
}

// encodeBatch returns a batch, padded, with these items.
func encodeBatch(salt, number uint64, items []byte) []byte {
	b := make([]byte, 0, padded(headerSize+len(items)))
	b = append(b, logMagic...)
	b = appendU64(b, salt, number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(items, castagnoli))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = append(b, items...)
	return b[:cap(b)]
}

func appendItem(b []byte, kind uint8, p []byte) []byte {
	return appendBytes(append(b, kind), p)
}

func appendProto(b []byte, kind uint8, m proto.Message) []byte {
	p, err := proto.Marshal(m)
	if err != nil {
		panic(err) // raft's own messages can be encoded
	}
	return appendItem(b, kind, p)
}

// appendSeen appends what was seen of members: of all, or only what is not on the disk yet. If it does not get there, lost is to be called.
func (l *Log) appendSeen(b []byte, all bool) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(l.seen)) {
		if s := l.seen[id]; all || l.news[id] {
			b = appendItem(b, itemSeen, appendU64(nil, id, s.Incarnation, s.Nonce, s.Batch))
		}
	}
	clear(l.news)
	return b
}

// lost has the next batch hold all that was seen.
func (l *Log) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.seen {
		l.news[id] = true
	}
}

// durable counts a batch.
func (l *Log) durable() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
}

// newest is the number of the last batch that is durable.
func (l *Log) newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number
}

// seenOf returns how far the log of a member had come.
func (l *Log) seenOf(number uint64) Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[number]
}

// remember puts into memory what raft wants to have saved.
func (l *Log) remember(rd *raft.Ready) error {
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := l.store.ApplySnapshot(rd.Snapshot); err != nil && !errors.Is(err, raft.ErrSnapOutOfDate) {
			return err
		}
	}
	if len(rd.Entries) > 0 {
		if err := l.store.Append(rd.Entries); err != nil {
			return err
		}
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		return l.store.SetHardState(rd.HardState)
	}
	return nil
}

// note remembers how far the log of a member has come. The next batch saves it.
func (l *Log) note(number uint64, s Seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.seen[number]; s.Incarnation > old.Incarnation || s.Incarnation == old.Incarnation && s.Batch > old.Batch {
		l.seen[number], l.news[number] = s, true
	}
}

// Save makes durable what raft wants to have saved. After an error nothing of it may be told to anybody, and Save is
// called again with the same.
func (l *Log) Save(rd *raft.Ready) error {
	if err := l.remember(rd); err != nil {
		return err
	}
	if !mustSave(rd) {
		return nil
	}
	err := l.save(rd)
	if l.failed++; err == nil {
		l.failed = 0
	}
	return err
}

// save is Save of what was remembered.
func (l *Log) save(rd *raft.Ready) error {
	if l.broken || l.file == nil || l.failed%elsewhereEach == 2 {
		return l.replace()
	}
	var items []byte
	if !raft.IsEmptySnap(rd.Snapshot) {
		items = appendProto(items, itemSnapshot, rd.Snapshot)
	}
	for _, e := range rd.Entries {
		items = appendProto(items, itemEntry, e)
	}
	// With entries that it may not know to be committed yet a node has to keep the commit index of those before:
	// it has to be in the configuration that came before the last change when it begins anew.
	hard, _, _ := l.store.InitialState()
	items = appendProto(items, itemHardState, hard)
	return l.append(l.appendSeen(items, false))
}

// elsewhereEach is how many attempts in a row that fail have one new file among them, the third one first: a block below the old file may be bad
// for good. A new one takes more room, and writes more, so if the disk is full the old one is the likelier to go on.
const elsewhereEach = 16

// mustSave says whether Save writes. Raft can do without what it knows to be committed: the next batch has it.
func mustSave(rd *raft.Ready) bool { return rd.MustSync || !raft.IsEmptySnap(rd.Snapshot) }

func (l *Log) append(items []byte) (err error) {
	defer func() {
		if err != nil {
			l.lost()
		}
	}()
	b := encodeBatch(l.salt, l.number+1, items)
	// After an error the next attempt writes all of it again, at the same place: what a sync could not write the
	// kernel may have forgotten, and another sync alone would succeed.
	if _, err := l.file.WriteAt(b, l.size); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	l.durable()
	l.size += int64(len(b))
	return nil
}

// Compact forgets entries up to index, keeping some for members that are behind, in favour of a snapshot. If there
// is no room for a new file the old one goes on.
func (l *Log) Compact(index uint64, conf *raftpb.ConfState, data []byte) error {
	if _, err := l.store.CreateSnapshot(index, conf, data); err != nil {
		return err
	}
	if first, _ := l.store.FirstIndex(); index >= first+l.keep {
		if err := l.store.Compact(index - l.keep); err != nil {
			return err
		}
	}
	l.retryAt = l.size + l.limit/4
	return l.replace()
}

// IsLong says whether it is time for Compact.
func (l *Log) IsLong() bool {
	return l.file != nil && l.size-l.kept > l.limit && l.size >= l.retryAt
}

// replace writes all that is kept into a new file.
func (l *Log) replace() (err error) {
	defer func() {
		if err != nil {
			l.lost()
		}
	}()
	salt := l.random()
	b := encodeBatch(salt, l.number+1, l.contents())
	f, err := l.fs.Create(tempName)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.Close(), ignoreMissing(l.fs.Remove(tempName))) // a full disk needs the room
	}
	if err := l.fs.Rename(tempName, logName); err != nil {
		return errors.Join(err, f.Close())
	}
	if l.file != nil {
		_ = l.file.Close() // nothing can be lost with it
	}
	l.file, l.salt, l.size, l.kept = f, salt, int64(len(b)), int64(len(b))
	l.broken = true // until the name is durable
	if err := l.fs.SyncDir(); err != nil {
		return err
	}
	l.broken = false
	l.durable()
	return nil
}

// contents are the items of a new file.
func (l *Log) contents() []byte {
	items := appendItem(nil, itemIdentity, l.id.appendTo(nil))
	items = l.appendSeen(items, true)
	if s, err := l.store.Snapshot(); err == nil && !raft.IsEmptySnap(s) {
		items = appendProto(items, itemSnapshot, s)
	}
	hard, _, _ := l.store.InitialState()
	if !raft.IsEmptyHardState(hard) {
		items = appendProto(items, itemHardState, hard)
	}
	first, _ := l.store.FirstIndex()
	last, _ := l.store.LastIndex()
	if s, err := l.store.Snapshot(); err == nil {
		first = max(first, s.GetMetadata().GetIndex()+1)
	}
	if last >= first {
		entries, err := l.store.Entries(first, last+1, 1<<62)
		if err != nil {
			panic(err) // they are in memory
		}
		for _, e := range entries {
			items = appendProto(items, itemEntry, e)
		}
	}
	return items
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
