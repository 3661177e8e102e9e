package partition

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"oneshot/backend"
	"oneshot/backend/slice"
)

// Set is a store that is divided. It owns the store. Its methods may be called from any number of
// goroutines; changes are made one at a time. Nobody else writes to the start of the store: the lock
// of the store sees to that.
type Set struct {
	store backend.Store

	changing sync.Mutex // a change is made; taken before mu, held over operations of the store
	slot     int        // which slot has the table in force; guarded by changing
	held     UUID       // of the partition that the change keeps from being opened; guarded by changing

	mu    sync.Mutex // not held over operations
	table *Table     // in force; never changed in place
	other error      // why the other slot has no table; nil: it has the same, an older one, or none yet
	views map[UUID]*View
}

// Any as the generation that a change expects means whatever there is.
const Any = 0

// GenerationError says that a change was meant for another table than the one in force.
type GenerationError struct{ Want, Have uint64 }

func (e *GenerationError) Error() string {
	return fmt.Sprintf("the change is for generation %d of the partition table, and generation %d is in force: look at the table again", e.Want, e.Have)
}

// NoTableError says that a store has no valid partition table, and why each slot has none.
type NoTableError struct{ A, B error }

func (e *NoTableError) Error() string {
	if e.Blank() {
		return "the store has no partition table: both places for one hold zeroes; make one with `partition init`"
	}
	return fmt.Sprintf("the store has no valid partition table, and nothing was written. Slot A, from byte 0 on: %v. Slot B, from byte %d on: %v. "+
		"If the store was never divided and what it holds may go, make a table with `partition init --force`; otherwise copy its first MiB away before anything else", e.A, slotSize, e.B)
}

// Blank reports whether nothing was ever written where tables are.
func (e *NoTableError) Blank() bool {
	return errors.Is(e.A, errBlank) && errors.Is(e.B, errBlank)
}

// UnknownError says that there is no partition of that name.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string { return fmt.Sprintf("there is no partition %q", e.Name) }

// InUseError says that a partition cannot be opened or changed, because it is in use.
type InUseError struct{ Name string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("partition %q is in use: end its endpoints and LUNs first", e.Name)
}

// FitError says that a partition reaches beyond the end of a store that has shrunk, or does not begin and
// end with a block of the store.
type FitError struct {
	Name           string
	End, StoreSize int64 // bytes
	BlockSize      int
}

func (e *FitError) Error() string {
	if e.End > e.StoreSize {
		return fmt.Sprintf("partition %q ends at byte %d, and the store now ends at byte %d: make the store larger again, or resize or delete the partition", e.Name, e.End, e.StoreSize)
	}
	return fmt.Sprintf("partition %q does not begin and end with a block of the store: blocks are now of %d bytes", e.Name, e.BlockSize)
}

// Open reads the table of store, which belongs to the Set from then on; after an error it stays the caller's. A
// store without a table is not written to, and the error is a *NoTableError.
func Open(store backend.Store) (*Set, error) {
	tables, why, err := load(store)
	if err != nil {
		return nil, err
	}
	slot := current(tables)
	if slot < 0 {
		return nil, &NoTableError{why[0], why[1]}
	}
	s := &Set{store: store, slot: slot, table: tables[slot], views: make(map[UUID]*View)}
	if e := why[1-slot]; e != nil && !errors.Is(e, errBlank) {
		s.other = fmt.Errorf("generation %d is in force, of slot %c; slot %c has no valid table: %w", s.table.Generation, 'A'+slot, 'A'+1-slot, e)
	}
	return s, nil
}

// current returns the slot whose table is in force: that with the larger generation, A of equals, or
// -1 if there is none.
func current(tables [2]*Table) int {
	a, b := tables[0], tables[1]
	switch {
	case a == nil && b == nil:
		return -1
	case a == nil, b != nil && b.Generation > a.Generation:
		return 1
	}
	return 0
}

// load reads both slots. why says of each why it has no table. A slot that cannot be read has none: a
// medium may fail to read a block whose write was cut off.
func load(store backend.Store) (tables [2]*Table, why [2]error, err error) {
	if size := store.Info().Size; size <= firstByte {
		return tables, why, fmt.Errorf("the store has %d bytes: a partition table takes the first %d, and partitions come behind", size, firstByte)
	}
	b := make([]byte, slotSize)
	for i := range tables {
		if err := do(store, backend.Op{Kind: backend.Read, Off: int64(i) * slotSize, Len: slotSize, Segs: [][]byte{b}}); err != nil {
			why[i] = fmt.Errorf("it cannot be read: %w", err)
			continue
		}
		tables[i], why[i] = parseSlot(b)
	}
	return tables, why, nil
}

// Init makes an empty table on store, which belongs to the Set from then on; without a Set it stays the caller's. With a Set and an error the
// table is in force, and not all that stood beside it could be overwritten. It refuses if the first MiB holds anything but zeroes (*NotEmptyError), unless forced. Over a valid
// table it is a change of that table: after a crash the old one or the new one is in force.
func Init(store backend.Store, force bool) (*Set, error) {
	tables, _, err := load(store)
	if err != nil {
		return nil, err
	}
	if !force {
		if err := checkZero(store); err != nil {
			return nil, err
		}
	}
	info := store.Info()
	t := &Table{Generation: 1, UUID: newUUID(), Unit: unitOf(info), Size: info.Size}
	slot := 0
	if old := current(tables); old >= 0 {
		if tables[old].Generation == math.MaxUint64 {
			return nil, errLastGeneration
		}
		slot, t.Generation = 1-old, tables[old].Generation+1
	}
	if err := write(store, slot, t); err != nil {
		return nil, notInForce(t, err)
	}
	rest := make([]byte, firstByte-2*slotSize)
	behind := backend.Op{Kind: backend.Write, Flags: backend.Barrier, Off: 2 * slotSize, Len: int64(len(rest)), Segs: [][]byte{rest}}
	s := &Set{store: store, slot: slot, table: t, views: make(map[UUID]*View)}
	s.other = s.writeOther(t)
	if err := errors.Join(s.other, do(store, behind)); err != nil {
		return s, fmt.Errorf("the table is made, but not all that stood beside it could be overwritten: %w", err)
	}
	return s, nil
}

var errLastGeneration = errors.New("the table has the last generation that can be written, 2⁶⁴-1: write zeroes over the first MiB and make a new table")

// unitOf returns what offsets and sizes of partitions are multiples of.
func unitOf(i backend.Info) int64 { return max(int64(i.BlockSize), sector) }

func checkZero(store backend.Store) error {
	b := make([]byte, firstByte)
	if err := do(store, backend.Op{Kind: backend.Read, Len: firstByte, Segs: [][]byte{b}}); err != nil {
		return fmt.Errorf("the first MiB cannot be read: %w", err)
	}
	for first, zeroes := 0, make([]byte, sector); first < len(b); first += sector {
		if s := b[first:][:sector]; !bytes.Equal(s, zeroes) {
			at := first + slices.IndexFunc(s, func(c byte) bool { return c != 0 })
			return &NotEmptyError{at, bytes.Clone(b[at:min(at+40, len(b))])}
		}
	}
	return nil
}

// NotEmptyError says that Init would have to be forced.
type NotEmptyError struct {
	At    int    // byte of the store
	Found []byte // what stands there
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the store is not empty: at byte %d stands %q. The first MiB has to hold zeroes. If what the store holds may go, use --force", e.At, e.Found)
}

// write writes t to a slot, durably and after all that was written before. The first block of the slot is
// zeroed before: the CRC is of the body alone, so a write that is torn behind the generation would otherwise
// leave the new generation before the length, the CRC and the body of the table that stood there.
func write(store backend.Store, slot int, t *Table) error {
	b, err := t.slot()
	if err != nil {
		return err
	}
	head := unitOf(store.Info())
	for _, b := range [][]byte{make([]byte, head), b} {
		op := backend.Op{Kind: backend.Write, Flags: backend.Barrier, Off: int64(slot) * slotSize, Len: int64(len(b)), Segs: [][]byte{b}}
		if err = do(store, op); err != nil {
			break
		}
	}
	if err != nil {
		// All of it may have arrived, and only the flush have failed. A restart must not find it then, so it is spoilt again, without
		// a promise: the store may give none any more.
		_ = do(store, backend.Op{Kind: backend.Write, Off: int64(slot) * slotSize, Len: head, Segs: [][]byte{make([]byte, head)}})
	}
	return err
}

// writeOther writes t, which is in force, to the slot that is not.
func (s *Set) writeOther(t *Table) error {
	err := write(s.store, 1-s.slot, t)
	if err != nil {
		err = fmt.Errorf("generation %d is in force, of slot %c; slot %c cannot be written: %w", t.Generation, 'A'+s.slot, 'A'+1-s.slot, err)
	}
	return err
}

// notInForce is the error of a change whose table could not be written.
func notInForce(t *Table, err error) error {
	return fmt.Errorf("the partition table, generation %d, could not be written; the former one is in force, but a restart may find the new one: %w", t.Generation, err)
}

type signal chan struct{}

func (c signal) OpDone(*backend.Op) { c <- struct{}{} }

// do does an operation and waits for it.
func do(store backend.Store, op backend.Op) error {
	c := make(signal, 1)
	op.Done = c
	if !store.Submit(&op) {
		<-c
	}
	return op.Err
}

// erase makes a range read as zeroes.
func (s *Set) erase(off, n int64) error {
	const piece = 1 << 30
	for end := off + n; off < end; off += piece {
		if err := do(s.store, backend.Op{Kind: backend.Discard, Off: off, Len: min(piece, end-off)}); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the store. No view is open.
func (s *Set) Close() error { return s.store.Close() }

// Table returns the table in force, which the caller does not change.
func (s *Set) Table() *Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table
}

// Other says why Open could not use the slot that is not in force, unless that holds zeroes. If it is not nil,
// the table in force may be older than the administrator expects. After a change it says why that could be written to one slot only.
func (s *Set) Other() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.other
}

// Free returns the ranges that no partition has.
func (s *Set) Free() []Range { return s.Table().free(s.store.Info().Size) }

// Fits returns a *FitError if the store has shrunk below the end of p, or has blocks of another size now. Other
// partitions can be used nevertheless.
func (s *Set) Fits(p *Partition) error {
	i := s.store.Info()
	if b := int64(i.BlockSize); p.end() > i.Size || p.Offset%b != 0 || p.Size%b != 0 {
		return &FitError{p.Name, p.end(), i.Size, i.BlockSize}
	}
	return nil
}

// change puts a changed table in force: f changes a copy of the one that is. mu is not held.
func (s *Set) change(match uint64, f func(t *Table, storeSize int64) error) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	defer s.unreserve()
	old, info := s.Table(), s.store.Info()
	switch {
	case match != Any && match != old.Generation:
		return &GenerationError{match, old.Generation}
	case old.Generation == math.MaxUint64:
		return errLastGeneration
	}
	t := old.clone()
	t.Generation++
	t.Unit = max(t.Unit, unitOf(info))
	for i := range t.Partitions {
		if p := &t.Partitions[i]; p.Offset%t.Unit != 0 || p.Size%t.Unit != 0 {
			t.Unit = old.Unit // one that no longer suits the store: it is refused by itself
		}
	}
	if err := f(t, info.Size); err != nil {
		return err
	}
	t.Size = t.bound(info.Size)
	if err := t.check(); err != nil {
		return err
	}
	if err := write(s.store, 1-s.slot, t); err != nil {
		return notInForce(t, err)
	}
	s.slot = 1 - s.slot
	// Then the former one's, or it would be in force again when the medium cannot read this one.
	other := s.writeOther(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table, s.other = t, other
	var errs []error
	for i := range t.Partitions {
		p := &t.Partitions[i]
		if v := s.views[p.UUID]; v != nil {
			if err, was := v.follow(p), old.FindUUID(p.UUID); was == nil || was.Size != p.Size { // else a former change was told
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// New describes a partition that is to be made.
type New struct {
	Name   string
	Size   int64 // bytes
	Offset int64 // bytes; 0: the first multiple of 1 MiB where it fits
	Cache  *Cache
	Access []Access
}

// Create makes partitions, all of them or none, and returns the new entries. It does not touch their
// octets: what a deleted partition left there can be read, unless it was erased. match is the
// generation of the table that the caller has seen, or Any.
func (s *Set) Create(match uint64, news ...New) (made []Partition, err error) {
	err = s.change(match, func(t *Table, storeSize int64) (err error) {
		made, err = t.add(storeSize, news)
		return err
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// add gives each partition its place.
func (t *Table) add(storeSize int64, news []New) (made []Partition, err error) {
	for _, n := range news {
		p := Partition{UUID: newUUID(), Name: n.Name, Offset: n.Offset, Size: n.Size, Access: slices.Clone(n.Access)}
		if n.Cache != nil {
			p.Cache = &Cache{WriteMS: n.Cache.WriteMS, Through: n.Cache.Through}
		}
		if slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.Name == n.Name }) {
			return nil, fmt.Errorf("there is a partition %q already: choose another name", n.Name)
		}
		if n.Size <= 0 || n.Size%t.Unit != 0 {
			return nil, fmt.Errorf("partition %q: the size of %d bytes is not a multiple of %d above 0", n.Name, n.Size, t.Unit)
		}
		if n.Offset == 0 {
			var ok bool
			if p.Offset, ok = t.place(n.Size, storeSize); !ok {
				return nil, fmt.Errorf("partition %q: there is no free range of %d bytes that begins at a multiple of 1 MiB", n.Name, n.Size)
			}
		} else if n.Offset < 0 || n.Size > storeSize-n.Offset {
			return nil, fmt.Errorf("partition %q: %d bytes at byte %d are not within the store of %d bytes", n.Name, n.Size, n.Offset, storeSize)
		}
		t.Partitions = append(t.Partitions, p)
		made = append(made, p)
	}
	return made, nil
}

// Plan returns why an empty store of that many bytes, in memory, could not be divided into news, or nil.
func Plan(storeSize int64, news ...New) error {
	if storeSize <= firstByte {
		return fmt.Errorf("the store has %d bytes: a partition table takes the first %d, and partitions come behind", storeSize, firstByte)
	}
	t := &Table{UUID: newUUID(), Unit: sector, Size: storeSize}
	if _, err := t.add(storeSize, news); err != nil {
		return err
	}
	return t.check()
}

// Change says what is to be another with a partition. What is nil stays.
type Change struct {
	Name   *string // no view is open
	Size   *int64  // bytes; smaller only while no view is open
	Cache  *Cache  // WriteMS and Through
	Grant  []Access
	Revoke []Who // their lines go, before those of Grant come
}

// Alter makes all of a change or nothing of it. If the partition becomes larger, its new octets are zeroes, and
// its view grows. A grant replaces the lines of the same Who. match is as in Create.
func (s *Set) Alter(match uint64, name string, c Change) error {
	return s.change(match, func(t *Table, storeSize int64) error {
		p := t.Find(name)
		if p == nil {
			return &UnknownError{name}
		}
		if c.Name != nil && *c.Name != name || c.Size != nil && *c.Size < p.Size {
			if err := s.reserve(p); err != nil {
				return err
			}
		}
		p.alter(c)
		if c.Size == nil {
			return nil
		}
		return s.resize(t, p, *c.Size, storeSize)
	})
}

// Try returns why Alter would refuse a change that does not make the partition larger, as far as the table tells,
// or nil. Callers ask before they end the endpoints that are in the way of the change.
func (t *Table) Try(name string, c Change) error {
	t = t.clone()
	p := t.Find(name)
	if p == nil {
		return &UnknownError{name}
	}
	p.alter(c)
	if c.Size != nil {
		p.Size = *c.Size
	}
	return t.check()
}

func (p *Partition) alter(c Change) {
	if c.Name != nil {
		p.Name = *c.Name
	}
	if c.Cache != nil {
		cache := Cache{WriteMS: c.Cache.WriteMS, Through: c.Cache.Through}
		if p.Cache != nil {
			cache.unknown = p.Cache.unknown
		}
		p.Cache = &cache
	}
	for _, who := range c.Revoke {
		p.Access = slices.DeleteFunc(p.Access, func(a Access) bool { return a.Who == who })
	}
	for _, a := range c.Grant {
		if i := slices.IndexFunc(p.Access, func(o Access) bool { return o.Who == a.Who }); i >= 0 {
			a.unknown = p.Access[i].unknown
		}
		p.Access = append(slices.DeleteFunc(p.Access, func(o Access) bool { return o.Who == a.Who }), a)
	}
}

// resize gives p, of t, another size, and erases what it gains.
func (s *Set) resize(t *Table, p *Partition, size, storeSize int64) error {
	old := p.Size
	room := storeSize
	for i := range t.Partitions {
		if o := &t.Partitions[i]; o.Offset > p.Offset {
			room = min(room, o.Offset)
		}
	}
	switch {
	case size <= 0 || size%t.Unit != 0:
		return fmt.Errorf("partition %q: the size of %d bytes is not a multiple of %d above 0", p.Name, size, t.Unit)
	case size > room-p.Offset:
		return fmt.Errorf("partition %q: it can have at most %d bytes: what follows is not free", p.Name, room-p.Offset)
	}
	p.Size = size
	if size <= old {
		return nil
	}
	t.Size = t.bound(storeSize)
	if err := t.check(); err != nil { // nothing is erased for a change that will be refused
		return err
	}
	if err := s.erase(p.Offset+old, size-old); err != nil {
		return fmt.Errorf("partition %q: its new octets could not be made zeroes: %w", p.Name, err)
	}
	return nil
}

// Delete takes the entry of a partition out of the table. Its octets stay, unless erase is set: then they are
// discarded first, so that a Delete that a crash has interrupted can be repeated. No view is open.
func (s *Set) Delete(match uint64, name string, erase bool) error {
	return s.change(match, func(t *Table, storeSize int64) error {
		p := t.Find(name)
		if p == nil {
			return &UnknownError{name}
		}
		if err := s.reserve(p); err != nil {
			return err
		}
		u := p.UUID
		if n := min(p.end(), storeSize) - p.Offset; erase && n > 0 {
			if err := s.erase(p.Offset, n); err != nil {
				return fmt.Errorf("partition %q could not be erased, and is not deleted: %w", name, err)
			}
		}
		t.Partitions = slices.DeleteFunc(t.Partitions, func(o Partition) bool { return o.UUID == u })
		return nil
	})
}

// reserved stands in views for a partition that a change keeps from being opened.
var reserved = new(View)

// reserve keeps a partition that is not in use from being opened until the change is over. It is called by a change.
func (s *Set) reserve(p *Partition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views[p.UUID] != nil {
		return &InUseError{p.Name}
	}
	s.views[p.UUID] = reserved
	s.held = p.UUID
	return nil
}

// unreserve ends what reserve began, if it was called.
func (s *Set) unreserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views[s.held] == reserved {
		delete(s.views, s.held)
	}
}

// View opens a partition, which is in use until the caller closes the view. A partition has one view at a
// time, because what belongs to its bytes, such as range locks, lives in the one volume above it. Errors are
// *UnknownError, *InUseError and *FitError.
func (s *Set) View(name string) (backend.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.table.Find(name)
	switch {
	case p == nil:
		return nil, &UnknownError{name}
	case s.views[p.UUID] != nil:
		return nil, &InUseError{name}
	}
	if err := s.Fits(p); err != nil {
		return nil, err
	}
	part, err := slice.New(s.store, p.Offset, p.Size)
	if err != nil {
		return nil, fmt.Errorf("partition %q: %w", name, err)
	}
	v := &View{set: s, part: part, uuid: p.UUID}
	v.grow, _ = backend.As[backend.Resizer](part)
	s.views[p.UUID] = v
	if l, ok := backend.As[backend.Lender](part); ok {
		return &lendingView{v, l}, nil
	}
	return v, nil
}
