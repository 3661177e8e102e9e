package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// SliceStore is a part of the store below.
type SliceStore struct {
	Offset int64 // bytes
}

// ThrottleStore is the store below with limits; 0: none.
type ThrottleStore struct {
	Operations int64 // a second
	Bandwidth  int64 // bytes a second
}

func (d *decoder) sliceStore(o *object, s *Store) {
	s.Slice = &SliceStore{}
	d.below(o, s)
	o.size("offset", &s.Slice.Offset)
	d.storeSize(o, s)
}

func (d *decoder) throttleStore(o *object, s *Store) {
	t := &ThrottleStore{}
	s.Throttle = t
	d.below(o, s)
	positive := func(n int64, err error) (int64, error) {
		if err == nil && n <= 0 {
			err = errors.New("a limit is at least 1: leave it out if there is none")
		}
		return n, err
	}
	set(o.take("operations"), &t.Operations, "a number of operations a second", func(text string) (int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number that fits: write decimal digits", text)
		}
		return positive(n, nil)
	})
	set(o.take("bandwidth"), &t.Bandwidth, "a number of bytes a second, such as 100MiB", func(text string) (int64, error) { return positive(ParseSize(text)) })
	if !o.has("operations") && !o.has("bandwidth") {
		d.errorf(s.Pos, "the throttle store %q has no limit: add operations, bandwidth, or both, such as bandwidth: 100MiB", s.Name)
	}
}

// stand says which store another one stands on, and where the configuration says so.
type stand struct {
	on  string
	pos Position
}

// below reads which store s stands on. It is looked up when all are known.
func (d *decoder) below(o *object, s *Store) {
	v := o.take("on")
	on := stand{pos: v.at}
	switch {
	case set(v, &on.on, "the name of a store", func(text string) (string, error) { return text, nil }):
		if d.stands == nil {
			d.stands = make(map[string]stand)
		}
		d.stands[s.Name] = on
	case !o.has("on"):
		d.errorf(s.Pos, "the %s store %q stands on no other: add on: NAME", s.Type, s.Name)
	}
}

// stack finds for each store the one that it stands on.
func (d *decoder) stack(stores []Store) {
	for i := range stores {
		s := &stores[i]
		on, ok := d.stands[s.Name]
		if !ok {
			continue
		}
		at := slices.IndexFunc(stores, func(o Store) bool { return o.Name == on.on })
		if at < 0 {
			d.errorf(on.pos, "there is no store %q: %s", on.on, suggestStore(on.on, stores))
			continue
		}
		s.On = &stores[at]
	}
	for i := range stores {
		if s := &stores[i]; s.circular(len(stores)) {
			d.errorf(d.stands[s.Name].pos, "the store %q stands on itself, by way of others or directly: name another one", s.Name)
			s.On = nil // such that nobody goes round in circles
		}
	}
	for i := range stores {
		for o := stores[i].On; o != nil; o = o.On {
			stores[i].ReadOnly = stores[i].ReadOnly || o.ReadOnly
		}
	}
	d.checkSlices(stores)
	d.checkBelow(stores)
}

func (s *Store) circular(most int) bool {
	o := s.On
	for ; o != nil && most > 0; o = o.On {
		most--
	}
	return o != nil
}

// end is where a slice ends, as far as the configuration tells.
func (s *Store) end() int64 {
	switch {
	case s.Size > 0:
		return s.Slice.Offset + min(s.Size, math.MaxInt64-s.Slice.Offset)
	case s.On.Size > 0:
		return s.On.Size
	}
	return math.MaxInt64
}

// checkSlices refuses slices that have bytes in common, and those that the store below is too small
// for.
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
	for i, s := range list {
		for _, before := range list[:i] {
			if before.On == s.On && before.end() > s.Slice.Offset {
				d.errorf(s.Pos, "the slices %q and %q have bytes in common: %q ends at %s and %q begins at %d: give it another offset, or the other a smaller size", before.Name, s.Name, before.Name, endText(before), s.Name, s.Slice.Offset)
				break
			}
		}
	}
}

func endText(s *Store) string {
	if s.end() == math.MaxInt64 {
		return "the end of " + s.On.Name
	}
	return strconv.FormatInt(s.end(), 10)
}

// checkBelow refuses two stores on one, unless both are slices: each would believe that it is alone.
func (d *decoder) checkBelow(stores []Store) {
	first := make(map[*Store]*Store)
	for i := range stores {
		s := &stores[i]
		if s.On == nil {
			continue
		}
		before := first[s.On]
		switch {
		case before == nil:
			first[s.On] = s
		case before.Slice == nil || s.Slice == nil:
			d.errorf(d.stands[s.Name].pos, "the stores %q and %q both stand on %q: only slices share a store", before.Name, s.Name, s.On.Name)
		}
	}
}
