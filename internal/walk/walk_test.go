package walk

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNext(t *testing.T) {
	w := New(4, 16, 14, nil)
	var got []int64
	for range 7 {
		got = append(got, w.Next())
	}
	if want := []int64{0, 4, 8, 0, 4, 8, 0}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
}

// At random every block has its turn, and none reaches beyond the end.
func TestRandom(t *testing.T) {
	w := New(4, 14, 0, rand.New(rand.NewPCG(1, 2)))
	count := make(map[int64]int)
	for range 300 {
		count[w.Next()]++
	}
	if len(count) != 3 || count[0] < 50 || count[4] < 50 || count[8] < 50 {
		t.Errorf("%v", count)
	}
}

func TestIsEmpty(t *testing.T) {
	for _, c := range []struct {
		all, span int64
		empty     bool
	}{{3, 0, true}, {4, 0, false}, {4, 3, true}, {3, 4, true}, {8, 4, false}} {
		if w := New(4, c.all, c.span, nil); w.IsEmpty() != c.empty {
			t.Errorf("%+v", c)
		}
	}
}
