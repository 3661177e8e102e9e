package owed

import (
	"slices"
	"testing"
)

// What is silent is the oldest of which nothing comes: those behind it wait as long as it gets anything, those before it do not.
func TestOrder(t *testing.T) {
	var l List
	var first, second, third Item
	all := []*Item{&first, &second, &third}
	for _, x := range all {
		l.Ask(x)
	}
	for i, s := range []struct {
		came []*Item
		want [3]uint32
	}{
		{nil, [3]uint32{1, 1, 1}},
		{[]*Item{&second}, [3]uint32{2, 0, 0}},
		{[]*Item{&third, &second}, [3]uint32{3, 0, 0}},
		{[]*Item{&third}, [3]uint32{4, 1, 0}},
		{[]*Item{&third, &first}, [3]uint32{0, 0, 0}},
		{nil, [3]uint32{1, 1, 1}},
	} {
		for _, x := range s.came {
			l.Came(x)
		}
		worst, seconds := Longest(&l, all, func(x *Item) *Item { return x })
		if got := [3]uint32{first.silent, second.silent, third.silent}; got != s.want || seconds != slices.Max(s.want[:]) || seconds > 0 && worst.silent != seconds {
			t.Errorf("second %d: %v, and the most is %d; want %v", i, got, seconds, s.want)
		}
	}
	l.Ask(&first) // the next command's
	l.Came(&first)
	worst, got := Longest(&l, all, func(x *Item) *Item {
		if x == &second {
			return nil // its data have come
		}
		return x
	})
	if worst != &third || got != 2 {
		t.Errorf("%d s, though only what was asked for later has come", got)
	}
}
