package config

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

var sliceStore = storeType{
	name: StoreSlice, read: (*decoder).sliceStore,
	unsized: func(s *Store) string { return "the rest of " + s.On.Name },
	details: func(s *Store) []string { return []string{"from " + FormatSize(s.Slice.Offset) + " on"} },
}

// SliceStore holds the options of a slice, which is a part of the store below.
type SliceStore struct {
	Offset int64 // bytes
}

func (d *decoder) sliceStore(o *object, s *Store) {
	s.Slice = &SliceStore{}
	d.below(o, s)
	o.size("offset", &s.Slice.Offset)
	d.storeSize(o, s)
}

// end returns the end of a slice in the store below, as far as the configuration says.
func (s *Store) end() int64 {
	switch {
	case s.Size > 0:
		return s.Slice.Offset + min(s.Size, math.MaxInt64-s.Slice.Offset)
	case s.On.Size > 0:
		return s.On.Size
	}
	return math.MaxInt64
}

// checkSlices refuses slices that have bytes in common, and slices that reach beyond the end of the
// store below.
func (d *decoder) checkSlices(stores []Store) {
	var list []*Store
	for i := range stores {
		if s := &stores[i]; s.Slice != nil && s.On != nil {
			list = append(list, s)
			if size := s.On.Size; size > 0 && (s.Slice.Offset >= size || s.Size > 0 && s.end() > size) {
				d.errorf(s.Pos, "the slice %q ends at %d bytes, and the store %q has %d: make one of them fit", s.Name, max(s.end(), s.Slice.Offset), s.On.Name, size)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *Store) int { return cmp.Compare(a.Slice.Offset, b.Slice.Offset) })
	furthest := make(map[*Store]*Store) // by the store below: of the slices up to here the one that ends last
	for _, s := range list {
		before := furthest[s.On]
		if before != nil && before.end() > s.Slice.Offset {
			d.errorf(s.Pos, "the slices %q and %q have bytes in common: %q ends at %s and %q begins at %d: give it another offset, or the other a smaller size", before.Name, s.Name, before.Name, endText(before), s.Name, s.Slice.Offset)
		}
		if before == nil || s.end() > before.end() {
			furthest[s.On] = s
		}
	}
}

func endText(s *Store) string {
	if s.end() == math.MaxInt64 {
		return "the end of " + s.On.Name
	}
	return strconv.FormatInt(s.end(), 10)
}
