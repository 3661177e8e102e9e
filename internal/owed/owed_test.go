package owed

import "testing"

// What is silent is the oldest of which nothing comes: those behind it wait as long as it gets anything, those before it do not.
func TestOrder(t *testing.T) {
	var l List
	var first, second, third Item
	for _, x := range []*Item{&first, &second, &third} {
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
		if got := [3]uint32{l.Silent(&first), l.Silent(&second), l.Silent(&third)}; got != s.want {
			t.Errorf("second %d: %v, want %v", i, got, s.want)
		}
		l.Tick()
	}
	l.Ask(&first) // the next command's
	l.Came(&first)
	if got := l.Silent(&third); got != 2 {
		t.Errorf("%d s, though only what was asked for later has come", got)
	}
}
