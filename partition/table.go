// Package partition divides a store into partitions: ranges with a name, a UUID and rights.
// The table that says so is at the start of the store:
//
//	0        slot A, 256 KiB        line, body, zeroes
//	256 KiB  slot B, 256 KiB        the same
//	512 KiB  reserved, zero
//	1 MiB    the first partition may begin here
//
// The line is text, and the body one JSON object:
//
//	oneshot partitions 1 7 256 5eb717a1     ← version, generation, length of the body, its CRC32C
//
// A change writes the slot that is not in force, after it has zeroed the line there, and then the other slot. So a crash at any
// octet leaves the old table or the new one, and a slot that the medium cannot read any more leaves the newest.
package partition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

const (
	slotSize   = 256 << 10
	firstByte  = 1 << 20 // where partitions may begin
	maxLine    = 80      // octets, with the newline
	maxBody    = slotSize - maxLine
	lineFormat = "oneshot partitions 1 %d %d %08x\n"
	sector     = 4096 // what every offset and size is a multiple of

	maxPartitions = 256
	maxAccess     = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Table is what a slot holds. Values are not changed once a Set has shown them.
type Table struct {
	Generation uint64 // of the line; a change adds one
	UUID       UUID   // of the table, and so of the store
	Unit       int64  // bytes; offsets and sizes are multiples of it; a multiple of 4096
	Size       int64  // bytes of the store when the table was written
	Partitions []Partition
	unknown    fields
}

// Partition is one entry of a table.
type Partition struct {
	UUID         UUID
	Name         string
	Offset, Size int64  // bytes; in the store
	Cache        *Cache // nil: nothing is said of it
	Access       []Access
	unknown      fields
}

// Cache says how a partition may be cached.
type Cache struct {
	WriteMS uint32 // milliseconds that a write may wait before it is made durable; 0: until somebody flushes
	Through bool   // "write": "none": each write is durable before it completes
	unknown fields
}

// Access is one line of the rights of a partition.
type Access struct {
	Who     Who
	Rights  Rights
	unknown fields
}

// cacheNone is the value of "write" of a cache in which no write waits.
const cacheNone = "none"

func (p *Partition) end() int64 { return p.Offset + p.Size }

// clone returns a table that can be changed. What it shares with t is never changed in place.
func (t *Table) clone() *Table {
	c := *t
	c.Partitions = slices.Clone(t.Partitions)
	for i := range c.Partitions {
		c.Partitions[i].Access = slices.Clone(c.Partitions[i].Access)
	}
	return &c
}

// bound returns the size to be written for a store of storeSize bytes: larger if a partition fits no more.
func (t *Table) bound(storeSize int64) int64 {
	for i := range t.Partitions {
		storeSize = max(storeSize, t.Partitions[i].end())
	}
	return storeSize
}

// Find returns the partition of a name, or nil.
func (t *Table) Find(name string) *Partition {
	return t.first(func(p *Partition) bool { return p.Name == name })
}

// FindUUID returns the partition with a UUID, or nil.
func (t *Table) FindUUID(u UUID) *Partition {
	return t.first(func(p *Partition) bool { return p.UUID == u })
}

func (t *Table) first(is func(*Partition) bool) *Partition {
	for i := range t.Partitions {
		if p := &t.Partitions[i]; is(p) {
			return p
		}
	}
	return nil
}

// slot returns the whole slot of t: line, body, zeroes.
func (t *Table) slot() ([]byte, error) {
	body := t.body()
	if len(body) > maxBody {
		return nil, fmt.Errorf("the table has %d octets, and a slot holds %d: delete partitions or access lines", len(body), maxBody)
	}
	b := fmt.Appendf(nil, lineFormat, t.Generation, len(body), crc32.Checksum(body, castagnoli))
	b = append(b, body...)
	return append(b, make([]byte, slotSize-len(b))...), nil
}

// errBlank says that a slot begins with zeroes: nothing was ever written there.
var errBlank = errors.New("zeroes, so no table was ever written there")

// parseSlot reads a slot. Its error says what stands there.
func parseSlot(slot []byte) (*Table, error) {
	line, _, ok := bytes.Cut(slot[:min(len(slot), maxLine)], []byte("\n"))
	var generation uint64
	var length int
	var sum uint32
	_, err := fmt.Sscanf(string(line)+"\n", lineFormat, &generation, &length, &sum)
	switch line = append(slices.Clip(line), '\n'); {
	case len(bytes.Trim(slot[:min(len(slot), maxLine)], "\x00")) == 0:
		return nil, errBlank
	case !ok, err != nil, string(line) != fmt.Sprintf(lineFormat, generation, length, sum):
		return nil, fmt.Errorf("no line of a partition table of version 1: it begins with %.40q", slot)
	case length < 0 || length > maxBody || length > len(slot)-len(line):
		return nil, fmt.Errorf("generation %d says that its body has %d octets, and a slot holds %d", generation, length, maxBody)
	}
	body := slot[len(line):][:length]
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("generation %d is damaged or was not written to its end: its CRC32C is %08x, the line says %08x", generation, got, sum)
	}
	t, err := parseBody(body)
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return nil, fmt.Errorf("generation %d is not valid: %w", generation, err)
	}
	t.Generation = generation
	return t, nil
}

// fields are members of a JSON object.
type fields map[string]json.RawMessage

// take decodes a member into v and removes it. A missing one leaves v as it is, unless it is needed.
func (f fields) take(err *error, key string, v any, needed bool) {
	raw, ok := f[key]
	delete(f, key)
	switch {
	case *err != nil:
	case !ok && needed:
		*err = fmt.Errorf("%q is missing", key)
	case ok:
		if e := json.Unmarshal(raw, v); e != nil || string(raw) == "null" {
			*err = fmt.Errorf("%q has the value %.40s, which is not valid", key, raw)
		}
	}
}

func parseBody(body []byte) (*Table, error) {
	var f fields
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not UTF-8")
	}
	if err := json.Unmarshal(body, &f); err != nil || f == nil {
		return nil, errors.Join(errors.New("the body is not one JSON object"), err)
	}
	var err error
	var partitions []fields
	t := new(Table)
	f.take(&err, "uuid", &t.UUID, true)
	f.take(&err, "unit", &t.Unit, true)
	f.take(&err, "size", &t.Size, true)
	f.take(&err, "partitions", &partitions, true)
	t.unknown = f
	if err == nil && len(partitions) > maxPartitions {
		err = fmt.Errorf("there are %d partitions, and %d is the most", len(partitions), maxPartitions)
	}
	for i := 0; i < len(partitions) && err == nil; i++ {
		var p Partition
		if p, err = parsePartition(partitions[i]); err != nil {
			err = fmt.Errorf("partition %d: %w", i, err)
		}
		t.Partitions = append(t.Partitions, p)
	}
	return t, err
}

func parsePartition(f fields) (p Partition, err error) {
	var cache fields
	var access []fields
	f.take(&err, "uuid", &p.UUID, true)
	f.take(&err, "name", &p.Name, true)
	f.take(&err, "offset", &p.Offset, true)
	f.take(&err, "size", &p.Size, true)
	f.take(&err, "cache", &cache, false)
	f.take(&err, "access", &access, false)
	p.unknown = f
	if cache != nil {
		p.Cache = new(Cache)
		cache.take(&err, "write_ms", &p.Cache.WriteMS, false)
		if _, ok := cache["write"]; ok {
			var write string
			if cache.take(&err, "write", &write, true); err == nil && write != cacheNone {
				err = fmt.Errorf("%q of the cache is %.40q, and %q is known", "write", write, cacheNone)
			}
			p.Cache.Through = true
		}
		p.Cache.unknown = cache
	}
	for _, line := range access {
		var who, rights string
		line.take(&err, "who", &who, true)
		line.take(&err, "rights", &rights, true)
		if err != nil {
			return p, err
		}
		a := Access{unknown: line}
		if a.Who, err = ParseWho(who); err == nil {
			a.Rights, err = ParseRights(rights)
		}
		p.Access = append(p.Access, a)
	}
	return p, err
}

// object prints members in the order given, then unknown ones sorted by name.
type object struct {
	b    []byte
	open bool // a member has been printed
}

func (o *object) key(k string) {
	sep := byte('{')
	if o.open {
		sep = ','
	}
	o.open = true
	o.b = append(appendJSON(append(o.b, sep), k), ':')
}

func (o *object) field(k string, v any) {
	o.key(k)
	o.b = appendJSON(o.b, v)
}

// list prints n elements.
func (o *object) list(k string, n int, element func(b []byte, i int) []byte) {
	o.key(k)
	o.b = append(o.b, '[')
	for i := range n {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = element(o.b, i)
	}
	o.b = append(o.b, ']')
}

func (o *object) end(unknown fields) []byte {
	for _, k := range slices.Sorted(maps.Keys(unknown)) {
		o.field(k, unknown[k])
	}
	if !o.open {
		o.b = append(o.b, '{')
	}
	return append(o.b, '}')
}

// appendJSON appends v as it is: characters that only HTML minds are not escaped.
func appendJSON(b []byte, v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("partition: " + err.Error()) // strings, numbers, and JSON that was parsed
	}
	return append(b, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...)
}

func (t *Table) body() []byte {
	var o object
	o.field("uuid", t.UUID)
	o.field("unit", t.Unit)
	o.field("size", t.Size)
	o.list("partitions", len(t.Partitions), func(b []byte, i int) []byte { return t.Partitions[i].appendTo(b) })
	return append(o.end(t.unknown), '\n')
}

func (p *Partition) appendTo(b []byte) []byte {
	o := object{b: b}
	o.field("uuid", p.UUID)
	o.field("name", p.Name)
	o.field("offset", p.Offset)
	o.field("size", p.Size)
	if p.Cache != nil {
		o.key("cache")
		c := object{b: o.b}
		c.field("write_ms", p.Cache.WriteMS)
		if p.Cache.Through {
			c.field("write", cacheNone)
		}
		o.b = c.end(p.Cache.unknown)
	}
	o.list("access", len(p.Access), func(b []byte, i int) []byte {
		a := &p.Access[i]
		line := object{b: b}
		line.field("who", a.Who.String())
		line.field("rights", a.Rights.String())
		return line.end(a.unknown)
	})
	return o.end(p.unknown)
}

// check says what makes the table one that nobody may use.
func (t *Table) check() error {
	switch {
	case t.Unit < sector || t.Unit&(t.Unit-1) != 0:
		return fmt.Errorf("the unit of %d bytes is not a power of two of %d or more", t.Unit, sector)
	case t.Size < 0:
		return fmt.Errorf("the size of the store is %d", t.Size)
	case len(t.Partitions) > maxPartitions:
		return fmt.Errorf("there would be %d partitions, and %d is the most", len(t.Partitions), maxPartitions)
	}
	names, uuids := make(map[string]bool), map[UUID]bool{t.UUID: true}
	for i := range t.Partitions {
		p := &t.Partitions[i]
		if err := p.check(t); err != nil {
			return fmt.Errorf("partition %q: %w", p.Name, err)
		}
		if names[p.Name] {
			return fmt.Errorf("there are two partitions of the name %q", p.Name)
		}
		if uuids[p.UUID] {
			return fmt.Errorf("partition %q: its UUID %s is in the table twice", p.Name, p.UUID)
		}
		names[p.Name], uuids[p.UUID] = true, true
	}
	sorted := t.byOffset()
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.end() > b.Offset {
			return fmt.Errorf("partition %q, up to byte %d, and partition %q, from byte %d on, overlap", a.Name, a.end(), b.Name, b.Offset)
		}
	}
	return nil
}

func (p *Partition) check(t *Table) error {
	switch {
	case !validName(p.Name):
		return errors.New("a name has 1 to 63 of the characters a-z, 0-9, dot, underscore and dash, and begins with a letter or digit")
	case p.Offset < firstByte:
		return fmt.Errorf("it begins at byte %d, and the first %d bytes are the table's", p.Offset, firstByte)
	case p.Size <= 0 || p.Offset > math.MaxInt64-p.Size:
		return fmt.Errorf("%d bytes at byte %d are no range", p.Size, p.Offset)
	case p.Offset%t.Unit != 0 || p.Size%t.Unit != 0:
		return fmt.Errorf("its offset %d and its size %d have to be multiples of %d", p.Offset, p.Size, t.Unit)
	case p.end() > t.Size:
		return fmt.Errorf("it ends at byte %d, and the store at byte %d", p.end(), t.Size)
	case len(p.Access) > maxAccess:
		return fmt.Errorf("it has %d access lines, and %d is the most", len(p.Access), maxAccess)
	}
	return nil
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'; !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 63
}

func (t *Table) byOffset() []*Partition {
	sorted := make([]*Partition, len(t.Partitions))
	for i := range t.Partitions {
		sorted[i] = &t.Partitions[i]
	}
	slices.SortFunc(sorted, func(a, b *Partition) int {
		if a.Offset < b.Offset {
			return -1
		}
		return 1
	})
	return sorted
}

// Range is a part of a store; bytes.
type Range struct{ Offset, Size int64 }

// free returns what no partition has, up to size bytes, in order.
func (t *Table) free(size int64) (free []Range) {
	at, size := int64(firstByte), size/t.Unit*t.Unit
	for _, p := range t.byOffset() {
		if n := min(p.Offset, size) - at; n > 0 {
			free = append(free, Range{at, n})
		}
		at = p.end()
	}
	if size > at {
		free = append(free, Range{at, size - at})
	}
	return free
}

// place returns the first offset, a multiple of 1 MiB, where n bytes are free.
func (t *Table) place(n, size int64) (int64, bool) {
	step := max(t.Unit, firstByte)
	for _, r := range t.free(size) {
		skip := (step - r.Offset%step) % step
		if n <= r.Size-skip {
			return r.Offset + skip, true
		}
	}
	return 0, false
}
