package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"oneshot/backend"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// A mirror's copies belong to a lineage (quorum.Set): another one begins with one copy when the administrator forces that
// one to go on without others. Beside the metadata of a copy are
//
//	lineage  the one that the copy belongs to; no file: 0, the first one
//	order    what the administrator has ordered for this copy while the node did not run
//
// What an order means is found out when the copy is opened, by the record of the set, and only then the order goes. So
// a crash at any time leaves an order that is done again, and no order is done that consensus does not know of. A copy that was forced
// needs none if it has metadata of the lineage before. One without metadata, and without an order, is of whichever lineage is in force.
const (
	lineageFile = "lineage"
	orderFile   = "order"
)

// order is what the administrator has ordered for a copy.
type order struct {
	Forced bool // this copy may be the one with which a lineage begins: a majority has to say so
	Other  bool // and that on another disk than the one of its metadata
	GiveUp bool // the bytes of a former lineage may be overwritten

	// Who the node was, if its membership was given up with GiveUp; else zeroes.
	Cluster, Number, Incarnation, Nonce, Batch uint64
}

// readNumbers reads numbers and their CRC32C; ok: there is such a file.
func readNumbers(dir quorum.FS, name string, into ...*uint64) (ok bool, err error) {
	b, err := dir.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && (len(b) != 8*len(into)+4 || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:])) {
		err = errors.New("its checksum is wrong")
	}
	if err != nil {
		return false, fmt.Errorf("the file %s cannot be read: %w", name, err)
	}
	for i, p := range into {
		*p = binary.BigEndian.Uint64(b[8*i:])
	}
	return true, nil
}

// writeNumbers makes a file of numbers durable, in place of an older one.
func writeNumbers(dir quorum.FS, name string, numbers ...uint64) error {
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return writeDurably(dir, name, binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

func writeDurably(dir quorum.FS, name string, b []byte) error {
	f, err := dir.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(name+".new", name)
	}
	if err == nil {
		err = dir.SyncDir()
	}
	return err
}

func readLineage(dir quorum.FS) (n uint64, err error) {
	_, err = readNumbers(dir, lineageFile, &n)
	return n, err
}

func (o *order) read(dir quorum.FS) (ok bool, err error) {
	var flags uint64
	ok, err = readNumbers(dir, orderFile, &flags, &o.Cluster, &o.Number, &o.Incarnation, &o.Nonce, &o.Batch)
	o.Forced, o.GiveUp, o.Other = flags&1 != 0, flags&2 != 0, flags&4 != 0
	return ok, err
}

func (o *order) write(dir quorum.FS) error {
	var flags uint64
	if o.Forced {
		flags |= 1
	}
	if o.GiveUp {
		flags |= 2
	}
	if o.Other {
		flags |= 4
	}
	return writeNumbers(dir, orderFile, flags, o.Cluster, o.Number, o.Incarnation, o.Nonce, o.Batch)
}

// setRecord returns the record of a set; nil: there is none.
func setRecord(r *quorum.Record) (*quorum.Set, error) {
	if r == nil || r.Deleted {
		return nil, nil
	}
	s, err := quorum.DecodeSet(r.Value)
	return &s, err
}

// lineageOf brings a copy that nobody uses yet to the lineage that is in force, if it may, and returns the lineage of the
// copy then. Without an order it goes by what this node knows.
func (m *member) lineageOf(name string, dir *quorum.Dir, record *quorum.Store, copied backend.Store, log *slog.Logger) (uint64, error) {
	own, err := readLineage(dir)
	if err != nil {
		return 0, err
	}
	var o order
	isOrdered, err := o.read(dir)
	if err != nil {
		return 0, err
	}
	key := quorum.Key{Kind: quorum.KindSet, Name: record.SetName(name)}
	var r *quorum.Record
	if isOrdered {
		ctx, cancel := context.WithTimeout(context.Background(), firstRecord)
		defer cancel()
		if r, err = m.node.Get(ctx, key); err != nil {
			return 0, fmt.Errorf("the mirror %s waits for what target ha force or rejoin has ordered, and no majority of the voters has told of it: start more nodes of the cluster, and then this one", name)
		}
	} else {
		for _, known := range m.node.Records(quorum.KindSet) {
			if known.Key == key {
				r = known
			}
		}
	}
	set, err := setRecord(r)
	if err != nil {
		return 0, err
	}
	if set != nil {
		if own, err = m.joinLineage(name, dir, record, copied, own, set, &o, log); err != nil {
			return 0, err
		}
	}
	if isOrdered {
		err = errors.Join(dir.Remove(orderFile), dir.SyncDir())
	}
	return own, err
}

func (m *member) joinLineage(name string, dir *quorum.Dir, record *quorum.Store, copied backend.Store, own uint64, set *quorum.Set, o *order, log *slog.Logger) (uint64, error) {
	self := idIn(record, m.name)
	cfg := mirror.Usual(record.Size)
	isNew := set.Lineage != own
	kept, err := mirror.Inspect(dir)
	isEmpty := err == nil && kept == nil
	switch {
	case isNew && set.Forced == self && (o.Forced || set.Former == own && !isEmpty):
		if err != nil {
			return own, err
		}
		disk := string(backend.IdentityOf(copied))
		if kept != nil && backend.Is(copied, backend.Identity(kept.Disk)) {
			disk = kept.Disk // mirror.Open renames it, and completes what its journal has under this name
		}
		if kept != nil && kept.Disk != disk && !o.Other {
			return own, fmt.Errorf("the disk of this copy, %s, is not the one with which target ha force has had the mirror go on, %s: start with that one; if it is lost, run target ha force %s for the one that is here", disk, kept.Disk, name)
		}
		// Views that the copy knows, and what was forced from, are of one line: the newer one tells whether it was in sync. A copy of another
		// lineage than that was not.
		wasInSync := set.Former == own && kept != nil && !kept.Unknown && kept.View.InSync.Has(self) && set.WasInSync
		if err := mirror.Force(dir, set.View, wasInSync, disk, cfg); err != nil {
			return own, err
		}
		log.Warn("the copy of this node was forced to go on without the others", "mirror", name, "in sync", wasInSync)
	case o.GiveUp && (isNew || o.Cluster != 0):
		whole := !isNew || set.Former != own || !m.isNewest(o)
		partly, err := mirror.GiveUp(dir, self, whole, cfg)
		if err != nil {
			return own, err
		}
		log.Warn("the copy of this node gives up what it has written by itself, and is brought level by others", "mirror", name, "only where it may differ", partly)
	case isNew && isEmpty: // the copy is new here, or its metadata are lost: all of it is brought level
	default:
		return own, nil
	}
	return set.Lineage, writeNumbers(dir, lineageFile, set.Lineage)
}

// isNewest says whether the state of a node that has given its membership up was the newest that it ever had, as far as the
// node knew that was forced.
func (m *member) isNewest(o *order) bool {
	for _, r := range m.node.Records(quorum.KindCluster) {
		if r.Key == formerKey {
			f, err := decodeFormer(r.Value)
			seen, ok := f.seen[o.Number]
			return err == nil && f.cluster == o.Cluster && (!ok || o.Batch >= seen.Batch && (o.Incarnation > seen.Incarnation || o.Incarnation == seen.Incarnation && o.Nonce == seen.Nonce))
		}
	}
	return false
}

// formerKey is the record of what was known of the members of a cluster before one of them was forced: a former.
var formerKey = quorum.Key{Kind: quorum.KindCluster, Name: "former"}

// former is how far the logs of members had come.
type former struct {
	cluster uint64
	seen    map[uint64]quorum.Seen // by number
}

// encode returns the value: the cluster, and of each member four numbers, in the order of members.
func (f *former) encode(members []quorum.Member) []byte {
	b := binary.BigEndian.AppendUint64(nil, f.cluster)
	for _, m := range members {
		s := f.seen[m.Number]
		for _, n := range []uint64{m.Number, s.Incarnation, s.Nonce, s.Batch} {
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	return b
}

func decodeFormer(b []byte) (f former, err error) {
	if len(b) < 8 || len(b)%32 != 8 {
		return f, errors.New("the record of former members has a length that this version does not know")
	}
	f.cluster, f.seen = binary.BigEndian.Uint64(b), map[uint64]quorum.Seen{}
	for b = b[8:]; len(b) > 0; b = b[32:] {
		n := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
		f.seen[n(0)] = quorum.Seen{Incarnation: n(1), Nonce: n(2), Batch: n(3)}
	}
	return f, nil
}

// isOf compares the lineage of the copy with the one in force.
func (s *mirrored) isOf(set *quorum.Set) {
	if set.Lineage == s.lineage {
		return
	}
	text := fmt.Sprintf("the administrator has had the mirror go on with the copy of node %s alone (target ha force), and the copy of this node is of the former lineage: what it has written since is in no other copy. To give that up, end this node, run `target ha rejoin --discard-mine` on it, and start it", s.nodeName(set.Forced))
	if set.Forced == s.self && set.Former == s.lineage {
		text = "target ha force has taken place for the copy of this node: start the node again"
	}
	if s.trouble.Swap(&text) == nil {
		s.log.Error("this node takes no part in its mirror", "reason", text)
	}
}

// mirrorDirs lists the directories of the mirrors of which this node has had a copy.
func mirrorDirs(state string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(state, mirrorsDir, "*", recordFile))
	for i := range all {
		all[i] = filepath.Dir(all[i])
	}
	return all, err
}

// idIn returns the number of a node's copy, 0 if it has none.
func idIn(s *quorum.Store, node string) replica.ID {
	return replica.ID(slices.Index(s.Copies, node) + 1)
}
