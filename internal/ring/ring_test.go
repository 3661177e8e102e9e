package ring

import (
	"testing"

	"pgregory.net/rapid"
)

// A ring is a list, wherever its positions begin.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint32{0, 5, 1<<32 - 3, 1<<31 - 2}).Draw(t, "start")
		r := Ring[int]{Head: start, Tail: start}
		var list []int
		for i := range 120 {
			switch rapid.SampledFrom([]string{"push", "push", "next", "back", "pop"}).Draw(t, "op") {
			case "push":
				r.Push(i)
				list = append(list, i)
			case "next":
				*r.Next() = i // and not an element
			case "back":
				*r.Back() = i
				list = append([]int{i}, list...)
			case "pop":
				if len(list) == 0 {
					continue
				}
				if got := *r.At(r.Head); got != list[0] {
					t.Fatalf("popped %d, want %d", got, list[0])
				}
				r.Head++
				list = list[1:]
			}
			if r.Len() != len(list) {
				t.Fatalf("%d elements, want %d", r.Len(), len(list))
			}
			for k, want := range list {
				if got := *r.At(r.Head + uint32(k)); got != want {
					t.Fatalf("element %d is %d, want %d", k, got, want)
				}
			}
		}
	})
}

// What is in a slot is there again when its turn comes, so that owners need not allocate anew.
func TestSlotsKeep(t *testing.T) {
	var r Ring[[]byte]
	for range first {
		r.Push(make([]byte, 0, 8))
	}
	r.Head = r.Tail
	if n := testing.AllocsPerRun(100, func() {
		s := r.Next()
		if *s = append((*s)[:0], 1, 2, 3); cap(*s) != 8 {
			t.Fatal("another slice")
		}
		r.Tail++
		r.Head++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
