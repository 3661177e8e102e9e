package config

import (
	"errors"
	"fmt"
	"strconv"
)

var throttleStore = storeType{
	name: StoreThrottle, read: (*decoder).throttleStore, whole: true,
	details: func(s *Store) (words []string) {
		if n := s.Throttle.Operations; n > 0 {
			words = append(words, fmt.Sprintf("%d operations/s", n))
		}
		if n := s.Throttle.Bandwidth; n > 0 {
			words = append(words, FormatSize(n)+"/s")
		}
		return words
	},
}

// ThrottleStore holds the limits of a throttle; 0: no limit.
type ThrottleStore struct {
	Operations int64 // a second
	Bandwidth  int64 // bytes a second
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
