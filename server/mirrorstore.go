package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/ha/reservations"
	"oneshot/volume"
	"oneshot/volume/access"
)

var mirrorStore = storeType{
	open: func(c *config.Store, o opening) (backend.Store, error) { return opened(o.member.openMirror(c, o)) },
}

// mirrored is a mirror of which this node has a copy.
//
// What its copies have in common, a quorum.Store, is made once, by the node whose copy the mirror begins with. Each node
// keeps it beside the metadata of its copy, so that it can start before a majority of the voters has.
type mirrored struct {
	*mirror.Mirror
	name    string
	record  *quorum.Store
	dir     *quorum.Dir
	self    replica.ID
	lineage uint64 // that the copy is of
	node    string // the name of this one
	quorum  *quorum.Node
	held    *reservations.Reservations // nil until serve
	others  func() []config.Portal     // through which other nodes are reached
	member  *member
	front   *moving // its addresses
	log     *slog.Logger
	trouble atomic.Pointer[string] // nil: none
	unread  atomic.Pointer[string] // why this node does not know which reservations are in force, and serves nothing; nil: it does
	read    chan struct{}          // a token: unread has changed
	least   int                    // copies in sync with which something is written
	telling sync.Mutex             // held while table is told
	table   *access.Table          // of the volume; nil until serve; guarded by telling
	sizing
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // checks that end with cancel
}

var _ backend.Termed = (*mirrored)(nil)

const (
	mirrorsDir  = "mirrors"        // in the directory of the cluster's state: a directory for each mirror, by name
	recordFile  = "store"          // the record, the identity of the copy, and the CRC32C of both
	firstRecord = 10 * time.Second // for the first start of a mirror on a node
)

func (m *member) openMirror(c *config.Store, o opening) (*mirrored, error) {
	path := filepath.Join(m.state, mirrorsDir, c.Name)
	dir, err := quorum.OpenDir(path)
	if err != nil {
		return nil, err
	}
	s, err := m.openMirrorIn(c, dir, path, o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return s, nil
}

func (m *member) openMirrorIn(c *config.Store, dir *quorum.Dir, path string, o opening) (*mirrored, error) {
	log := o.log
	record, noted, err := readRecord(dir)
	isKnown := err == nil
	switch {
	case isKnown:
		err = m.fitsNow(record, c) // before the file takes another size
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	default:
		err = fmt.Errorf("what this node knows of the mirror cannot be read: %w; to have its copy brought level by another node, remove %s", err, path)
	}
	if err != nil {
		return nil, err
	}
	own, short := new(*c.Mirror.Copy(m.name)), false
	if isKnown { // it may have grown, and the file not say so yet
		own.Size = record.Size
		if own.Type == config.StoreFile { // longer than that after an attempt to grow that was given up
			short = isShort(own, record)
			if st, err := os.Stat(own.File.Path); err == nil {
				own.Size = max(own.Size, st.Size()/int64(record.BlockSize)*int64(record.BlockSize))
			}
		}
	}
	openCopy := deviceStore.open
	if own.Type == config.StoreFile {
		openCopy = fileStore.open
	}
	store, err := openCopy(own, opening{resized: func() {}, log: log})
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*mirrored, error) {
		if u, ok := store.(heldFile); ok {
			err = errors.Join(append([]error{err}, undo([]heldFile{u})...)...)
		}
		return nil, errors.Join(err, store.Close())
	}
	if !backend.IdentityOf(store).Lasts() {
		return fail(errors.New("the copy has no name by which it is known after a restart: use a file on a local file system, or a device with a WWID, such as one of device-mapper or md"))
	}
	if identity := backend.IdentityOf(store); isKnown && noted != identity && backend.Is(store, noted) { // by an older kernel
		if err := writeRecord(dir, record, identity); err != nil {
			return fail(err)
		}
	}
	if !isKnown {
		had, err := o.inherit(store)
		if err == nil {
			record, err = m.recordOf(c, dir, store, had)
		}
		if err != nil {
			return fail(err)
		}
	}
	lineage, err := m.lineageOf(c.Name, dir, record, store, log)
	if err != nil {
		return fail(err)
	}
	err = lengthen(store, record.Size) // a mirror that has grown, whose others bring all of this copy level
	if err == nil {
		err = doNow(store, backend.Op{Kind: backend.Flush}) // a file that is shorter in the next life has lost something
	}
	if err != nil {
		return fail(err)
	}
	stream := fmt.Sprintf("mirror %s %x", c.Name, record.UUID)
	if lineage != 0 { // copies of another lineage do not hear of this one
		stream += fmt.Sprintf(" %x", lineage)
	}
	listener, err := m.node.Listen(stream)
	if err != nil {
		return fail(err)
	}
	var nodes replica.Nodes
	for i := range record.Copies {
		nodes = nodes.With(replica.ID(i + 1))
	}
	self := idIn(record, m.name)
	news := make(chan struct{}, 1)
	resized := func() {
		o.resized()
		select {
		case news <- struct{}{}:
		default:
		}
	}
	_, err = dir.ReadFile(mirror.MetadataFile)
	isNew := errors.Is(err, fs.ErrNotExist)
	core, err := mirror.Open(mirror.Options{
		Name: c.Name, Node: self, Nodes: nodes, Size: record.Size, Began: slices.Concat(record.Sizes, []int64{record.Size})[0], Found: self == 1 && isNew, Copy: store, Short: short, FS: dir,
		Views:    mirror.ConsensusOn(m.node, record.SetName(c.Name), lineage),
		Listener: listener, Fabric: m.fabric,
		Dial: func(ctx context.Context, to replica.ID) (net.Conn, error) {
			return m.node.Dial(ctx, record.Copies[to-1], stream)
		},
		Info: &backend.Info{
			BlockSize: record.BlockSize, PhysicalBlockSize: record.PhysicalBlockSize,
			DiscardGranularity: record.DiscardGranularity, OptimalIO: record.OptimalIO,
		},
		Tune: func(r *replica.Config) {
			r.MinCopies = c.Mirror.MinCopies
			r.Stores[0].Through = c.Mirror.Cache == config.CacheWritethrough
			r.Confirm = c.Mirror.Reads == config.ReadsConfirmed || c.Mirror.Reads == config.ReadsAuto && !mirror.ClocksGoOn()
		},
		Resized: resized, Pace: paceOf(c.Mirror), Log: log,
	})
	if err != nil {
		return fail(errors.Join(err, listener.Close()))
	}
	s := &mirrored{Mirror: core, name: c.Name, record: record, dir: dir, self: self, lineage: lineage, node: m.name, quorum: m.node, others: m.others, member: m, log: log, least: c.Mirror.MinCopies, read: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.copied, s.room, s.size, s.news = store, record.Size, record.Size, news
	s.noted.Store(record)
	s.front = newMoving(s)
	m.opened(s)
	s.wg.Go(s.confirm)
	return s, nil
}

// isShort says whether the copy is in a file that is shorter than the mirror, as the node has noted it: it was as long once, durably, and has lost its end.
func isShort(c *config.Store, noted *quorum.Store) bool {
	if c.Type != config.StoreFile {
		return false
	}
	st, err := os.Stat(c.File.Path)
	return err == nil && st.Size() < noted.Size
}

// paceOf is how fast the copies of a mirror are brought level, and compared.
func paceOf(c *config.MirrorStore) replica.Pace {
	return replica.Pace{Rate: c.Resync.Rate, Min: c.Resync.Min}
}

// Close ends the life of the copy. Another node takes over at once, if one can.
func (s *mirrored) Close() error {
	s.member.mu.Lock()
	s.cancel() // no work of the kind that learnStore begins comes after it
	s.member.mu.Unlock()
	s.wg.Wait()
	s.sizing.mu.Lock()   // who makes room in the copy stops
	s.sizing.mu.Unlock() //nolint:staticcheck // the lock itself is what is waited for
	s.member.closed(s)
	if s.held != nil {
		s.held.Close()
	}
	if s.Term() != 0 {
		s.HandOver()
	}
	s.front.drop()
	return errors.Join(s.Mirror.Close(), s.dir.Close())
}

// nodeName returns the name of a node of the mirror; empty: it has no such node.
func (s *mirrored) nodeName(id replica.ID) string {
	if id < 1 || int(id) > len(s.record.Copies) {
		return ""
	}
	return s.record.Copies[id-1]
}

// serve says in the volume's table which node serves the volume, from now on and whenever that changes, until Close; and
// joins the table with those of the other nodes.
func (s *mirrored) serve(t *access.Table, log *slog.Logger) {
	s.held = reservations.Begin(t, reservations.Options{Consensus: s.quorum, Set: s.record.SetName(s.name), Node: s.node, Term: s.Term, Prove: s.prove, Unreadable: s.cannotRead, Log: log})
	told := s.State()
	s.telling.Lock()
	s.table = t
	s.telling.Unlock()
	s.tell()
	s.front.begin()
	s.wg.Go(s.tellTrouble)
	s.wg.Go(func() {
		for {
			select {
			case <-s.read:
				s.tell()
				s.member.tellUnfit()
			case <-s.ctx.Done():
				return
			}
		}
	})
	s.wg.Go(func() {
		past := successions{self: s.self}
		past.lost(told)
		for s.Await(s.ctx, func(now replica.State) bool { return rolesOf(now) != rolesOf(told) }) == nil {
			told = s.State()
			s.tell()
			s.held.Served()
			if lost := past.lost(told); lost != 0 {
				s.member.fence(s.nodeName(lost), s.name)
			}
		}
	})
}

// cannotRead notes why the reservations cannot be read here; nil: they can. Hosts are told to come back until another node serves the mirror, to which this
// one hands over.
func (s *mirrored) cannotRead(why error) {
	if why == nil {
		s.unread.Store(nil)
	} else {
		s.unread.Store(new("this node serves nothing, for it does not know which reservations are in force: " + why.Error()))
	}
	select {
	case s.read <- struct{}{}:
	default:
	}
}

// letOthers has the mirror know which nodes are to serve nothing.
func (s *mirrored) letOthers(unfit []string) {
	n := s.numbers(unfit)
	if s.unread.Load() != nil {
		n = n.With(s.self)
	}
	s.Drain(n)
}

// prove says whether this node served the mirror in a term when it was called.
func (s *mirrored) prove(term uint64) error { return backend.Prove(s, term) }

// rolesOf returns what of a state says who serves.
func rolesOf(s replica.State) replica.State { return replica.State{Role: s.Role, View: s.View} }

// tell says it once, and again when a reload has changed through which portals other nodes are reached. Other nodes' target ports are told
// of to initiators, and refuse by themselves.
func (s *mirrored) tell() {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.table == nil {
		return
	}
	st := s.State()
	primary := s.nodeName(st.View.Primary)
	here := access.Transitioning
	switch {
	case s.unread.Load() != nil: // there is a state before it, which others have changed
	case st.Role == replica.Primary:
		here = access.ActiveOptimized
	case st.Role == replica.Follower && st.View.Primary != s.self:
		here = access.Standby
	}
	var elsewhere []access.Group
	for _, g := range s.others() {
		there := access.Group{ID: g.Group, State: access.Standby, Cause: access.ByTarget}
		if g.Node == primary && here == access.Standby {
			there.State = access.ActiveOptimized
		}
		if slices.Contains(s.record.Copies, g.Node) {
			elsewhere = append(elsewhere, there)
		}
	}
	if here == access.Standby && primary != "" {
		for _, p := range *s.member.moving.Load() {
			if p.Mirror == s.name && !slices.ContainsFunc(elsewhere, func(g access.Group) bool { return g.ID == p.Group }) {
				elsewhere = append(elsewhere, access.Group{ID: p.Group, State: access.ActiveOptimized, Cause: access.ByTarget})
			}
		}
	}
	s.table.Serve(here, elsewhere)
}

// inherited is what this node has kept of a disk that was an ordinary store, and becomes a copy.
type inherited struct {
	reservations access.State
	forget       func() error // nil: there is nothing
}

func (o *opening) inherit(copied backend.Store) (had inherited, err error) {
	if o.state == nil {
		return had, nil
	}
	name, err := stateName(o.state, "", copied)
	if err != nil {
		return had, err
	}
	file := o.state.File(name)
	had.reservations, had.forget, err = volume.Inherit(copied, file, o.state.Journal(name), o.log)
	if errors.Is(err, volume.ErrSanitize) {
		err = fmt.Errorf("%w on the disk of this copy: serve it as an ordinary store until hosts see that it has; or, if the disk may be as it is, remove %s", err, file.Path())
	}
	return had, err
}

// keepReservations has a mirror begin with the reservations of the disk with which it begins: hosts rely on those that outlive a restart.
func (m *member) keepReservations(ctx context.Context, set string, s access.State) error {
	if len(s.Registrations) == 0 {
		return nil
	}
	first, err := reservations.First(s)
	if err != nil {
		return err
	}
	return m.node.Update(ctx, reservations.RecordKey(set), func([]byte) ([]byte, error) { return first, nil })
}

// recordOf asks consensus what the copies of a mirror have in common, and keeps it. The node of the first copy makes it.
func (m *member) recordOf(c *config.Store, dir *quorum.Dir, copied backend.Store, had inherited) (s *quorum.Store, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstRecord)
	defer cancel()
	key := quorum.Key{Kind: quorum.KindStore, Name: c.Name}
	info, first := copied.Info(), c.Mirror.Copies[0].Node
	for s == nil {
		r, err := m.node.Get(ctx, key)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the mirror %s is new to this node, and no majority of the voters has told of it: start more nodes of the cluster, and then this one", c.Name)
		case r != nil && !r.Deleted:
			if s, err = quorum.DecodeStore(r.Value); err != nil {
				return nil, err
			}
		case first == m.name:
			if c.Size > info.Size || c.Size%int64(info.BlockSize) != 0 { // the size that is agreed on stays
				return nil, fmt.Errorf("the mirror %s is to have %s, and the copy of this node, with which it begins, has %s in blocks of %d bytes: write a size that it has, or use a larger disk",
					c.Name, config.FormatSize(c.Size), config.FormatSize(info.Size), info.BlockSize)
			}
			if err := m.isFree(c.Name, copied); err != nil {
				return nil, err
			}
			made := &quorum.Store{
				Size: c.Size, BlockSize: info.BlockSize, PhysicalBlockSize: info.PhysicalBlockSize,
				DiscardGranularity: info.DiscardGranularity, OptimalIO: info.OptimalIO, Copies: c.Mirror.Nodes(),
			}
			_, _ = rand.Read(made.UUID[:]) // never fails
			err := m.keepReservations(ctx, made.SetName(c.Name), had.reservations)
			if err == nil {
				err = m.node.Update(ctx, key, func(old []byte) ([]byte, error) {
					if old != nil {
						return old, nil
					}
					return made.Encode(), nil
				})
			}
			if err != nil {
				return nil, fmt.Errorf("the mirror %s cannot be made: %w", c.Name, noMajority(err))
			}
		default:
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("there is no mirror %s yet: it begins with the copy of node %s, so start that one with this configuration, or run target reload there, and then this one", c.Name, first)
			case <-time.After(recordAgain):
			}
		}
	}
	if err := fits(s, c); err != nil {
		return nil, err
	}
	if had.forget != nil { // what the node has kept is of a disk that this one is not any more
		if err := had.forget(); err != nil {
			return nil, err
		}
	}
	return s, writeRecord(dir, s, backend.IdentityOf(copied))
}

const recordAgain = 200 * time.Millisecond

// fits compares what the copies have in common with the configuration.
func fits(s *quorum.Store, c *config.Store) error {
	switch {
	case s.Size != c.Size && !slices.Contains(s.Sizes, c.Size):
		return fmt.Errorf("the mirror has %s, and the configuration says %s: correct it there; target ha grow makes a mirror larger", config.FormatSize(s.Size), config.FormatSize(c.Size))
	case !slices.Equal(slices.Sorted(slices.Values(s.Copies)), slices.Sorted(slices.Values(c.Mirror.Nodes()))):
		return fmt.Errorf("the mirror has copies on %v, and the configuration says %v: a mirror keeps its nodes; another machine can take the name of one (target ha replace)", s.Copies, c.Mirror.Nodes())
	}
	return nil
}

// fitsNow is fits of a mirror that may have grown since this node has noted its record.
func (m *member) fitsNow(noted *quorum.Store, c *config.Store) error {
	err := fits(noted, c)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), firstRecord)
	defer cancel()
	r, getErr := m.node.Get(ctx, quorum.Key{Kind: quorum.KindStore, Name: c.Name})
	if getErr != nil || r == nil || r.Deleted {
		return err
	}
	if now, decodeErr := quorum.DecodeStore(r.Value); decodeErr == nil && now.UUID == noted.UUID {
		return fits(now, c)
	}
	return err
}

// isFree refuses to begin a mirror with the copy of another one: that copy may lack what others have.
func (m *member) isFree(name string, copied backend.Store) error {
	list, err := os.ReadDir(filepath.Join(m.state, mirrorsDir))
	if err != nil {
		return err
	}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(m.state, mirrorsDir, e.Name(), recordFile))
		if err != nil || e.Name() == name {
			continue
		}
		if _, other, err := decodeRecord(b); err == nil && backend.Is(copied, other) {
			return fmt.Errorf("the copy belongs to the mirror %s: call the mirror so again; or, if this node has all of its bytes, remove %s to begin another mirror with them",
				e.Name(), filepath.Join(m.state, mirrorsDir, e.Name()))
		}
	}
	return nil
}

// isNoCopy refuses a disk that others may write to past the mirror whose copy it is: the mirror would not notice, and show one node's bytes or
// another's when it is in the configuration again.
func (m *member) isNoCopy(s backend.Store) error {
	if !backend.IdentityOf(s).Lasts() { // no copy has such a one
		return nil
	}
	dirs, err := mirrorDirs(m.state)
	if err != nil {
		return err
	}
	for _, path := range dirs {
		kept, err := mirror.Inspect(quorum.LookInto(path)) // of mirrors that are open, too
		if err == nil && kept != nil && backend.Is(s, backend.Identity(kept.Disk)) {
			return fmt.Errorf("it is the copy of the mirror %s on this node, and what is written to it alone makes the copies differ: set readonly to true; or, if the mirror is given up, remove %s",
				filepath.Base(path), path)
		}
	}
	return nil
}

// confirm asks consensus whether it knows the mirror, which may have been of a former cluster, or is forgotten.
func (s *mirrored) confirm() {
	r, err := ask(s.ctx, s.quorum.Get, quorum.Key{Kind: quorum.KindStore, Name: s.name})
	if err != nil {
		return // the store or the node ends
	}
	if r != nil && !r.Deleted {
		if now, err := quorum.DecodeStore(r.Value); err == nil && now.UUID == s.record.UUID {
			s.enlarge(now)
			r, err := ask(s.ctx, s.quorum.Get, quorum.Key{Kind: quorum.KindSet, Name: s.record.SetName(s.name)})
			if err != nil {
				return
			}
			if set, err := setRecord(r); err == nil && set != nil {
				s.isOf(set)
			}
			return
		}
	}
	s.Retire() // it may have been a primary that asks nobody, having the only copy in sync
	path := filepath.Join(s.member.state, mirrorsDir, s.name)
	text := fmt.Sprintf("the copy is of a mirror %s that the cluster does not know: the mirror was forgotten (target ha forget), or the cluster was made anew. If another node has newer bytes, begin with that one: name it first in copies. Then remove %s on each node that is in the same state", s.name, path)
	s.trouble.Store(&text)
	s.log.Error("this node takes no part in its mirror", "reason", text)
}

func readRecord(dir *quorum.Dir) (*quorum.Store, backend.Identity, error) {
	b, err := dir.ReadFile(recordFile)
	if err != nil {
		return nil, "", err
	}
	return decodeRecord(b)
}

// decodeRecord reads the length of the record (4 bytes, big-endian), the record, the identity and the checksum.
func decodeRecord(b []byte) (*quorum.Store, backend.Identity, error) {
	if len(b) < 8 || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, "", errors.New("its checksum is wrong")
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4 : len(b)-4]
	if uint64(n) > uint64(len(b)) {
		return nil, "", errors.New("it ends in the middle")
	}
	s, err := quorum.DecodeStore(b[:n])
	return s, backend.Identity(b[n:]), err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func writeRecord(dir *quorum.Dir, s *quorum.Store, identity backend.Identity) error {
	value := s.Encode()
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(value))), value...)
	b = append(b, identity...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return writeDurably(dir, recordFile, b)
}
