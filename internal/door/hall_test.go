package door

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// hall is one whose connections are numbers, and of which so many may be there.
type hall struct {
	Hall[int]
	t    *testing.T
	told []int // who had to give way
}

func (h *hall) comes(c, most int, want error) {
	h.t.Helper()
	if err := h.Enter(c, most, func(old int) { h.told = append(h.told, old) }); !errors.Is(err, want) {
		h.t.Fatalf("%d: %v", c, err)
	}
}

func (h *hall) have(told []int, there ...int) {
	h.t.Helper()
	all := h.List()
	slices.Sort(all)
	if !slices.Equal(h.told, told) || !slices.Equal(all, there) || h.Len() != len(there) {
		h.t.Fatalf("told to go: %v, and not %v; there are %v (%d), and not %v", h.told, told, all, h.Len(), there)
	}
}

// Who has proved nothing gives way, once, the oldest first; who has proved itself never does.
func TestHall(t *testing.T) {
	h := hall{t: t}
	h.comes(1, 6, nil)
	h.comes(2, 6, nil)
	h.comes(3, 6, nil)
	h.Prove(1)
	h.Prove(1)
	h.comes(4, 6, nil)
	h.have(nil, 1, 2, 3, 4)
	h.comes(5, 6, nil)
	h.have([]int{2}, 1, 2, 3, 4, 5) // which is there until it leaves
	h.comes(6, 6, nil)
	h.have([]int{2, 3}, 1, 2, 3, 4, 5, 6)
	h.Leave(2)
	h.Leave(3)
	if h.Has(2) || !h.Has(4) {
		t.Error("it does not know who has left")
	}
	for _, c := range []int{4, 5, 6} {
		h.Prove(c)
	}
	h.comes(7, 6, nil)
	h.Prove(7)
	h.comes(8, 6, nil)
	h.comes(9, 6, ErrFull) // the one without proof is not too many
	h.have([]int{2, 3}, 1, 4, 5, 6, 7, 8)
	h.Leave(8)
	h.comes(9, 6, nil)
	h.have([]int{2, 3}, 1, 4, 5, 6, 7, 9)

	one := hall{t: t}
	one.comes(1, 1, nil)
	one.comes(2, 1, nil) // which is how one gets in at all
	one.have([]int{1}, 1, 2)
}

// Nobody comes when it is closed, and who waits does so until the last has left.
func TestHallCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hall{t: t}
		h.comes(1, 4, nil)
		h.comes(2, 4, nil)
		h.Close()
		h.comes(3, 4, ErrClosed)
		over := false
		go func() {
			h.Wait()
			over = true
		}()
		for _, c := range []int{1, 2} {
			synctest.Wait()
			if over {
				t.Fatal("it does not wait")
			}
			h.Leave(c)
		}
		synctest.Wait()
		if !over {
			t.Fatal("it waits for nobody")
		}
	})
}
