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
	host string // of those who come
	told []int  // who had to give way
}

func (h *hall) comes(c, most int, want error) {
	h.t.Helper()
	if err := h.Enter(c, h.host, most, func(old int) { h.told = append(h.told, old) }); !errors.Is(err, want) {
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

// Who comes from a host that has opened most connections turns out one of these, so that others have the time to prove themselves.
func TestHallOfHosts(t *testing.T) {
	h := hall{t: t, host: "a"}
	h.comes(1, 6, nil)
	h.host = "b"
	h.comes(2, 6, nil)
	h.comes(3, 6, nil)
	h.comes(4, 6, nil)
	h.have([]int{2}, 1, 2, 3, 4)
	h.Leave(2)
	h.comes(5, 6, nil)
	h.have([]int{2, 3}, 1, 3, 4, 5)
	h.Leave(3)
	h.host = "c"
	h.comes(6, 6, nil)
	h.have([]int{2, 3, 4}, 1, 4, 5, 6)
	h.Leave(4)
	h.host = "a"
	h.comes(7, 6, nil) // one of each: it is his own
	h.have([]int{2, 3, 4, 1}, 1, 5, 6, 7)
}

// Nobody proves himself for more than his share of the places, and who leaves gives his back.
func TestHallOfShares(t *testing.T) {
	h := hall{t: t}
	proves := func(c int, want bool, who ...string) {
		t.Helper()
		h.comes(c, 20, nil)
		err := h.ProveAs(c, 8, who)
		if _, ok := errors.AsType[*ShareError](err); ok == want || err != nil != ok {
			t.Fatalf("%d: %v", c, err)
		}
	}
	for c := range 4 {
		proves(c, true, "x")
	}
	proves(4, false, "x")
	if h.ProveAs(3, 8, []string{"x"}) != nil {
		t.Error("who has proved himself does not do so again")
	}
	proves(5, true, "any", "host 1")
	proves(6, true, "any", "host 1")
	proves(7, false, "any", "host 1")
	proves(8, true, "any", "host 2")
	proves(9, true, "any")
	proves(10, false, "any", "host 3")
	h.Leave(6)
	proves(11, true, "any", "host 1")
	h.Leave(7) // which has none
	proves(12, false, "any", "host 1")
	for _, c := range h.List() {
		h.Leave(c)
	}
	if len(h.shares.taken) != 0 {
		t.Errorf("shares of nobody: %v", h.shares.taken)
	}
}

// Who comes back waits for a connection of his own that is on its way out, and for no other.
func TestParting(t *testing.T) {
	h := hall{t: t}
	for c, who := range []string{"x", "x", "y"} {
		h.comes(c, 20, nil)
		if err := h.ProveAs(c, 8, []string{"any", who}); err != nil {
			t.Fatal(err)
		}
	}
	h.comes(3, 20, nil)
	h.Part(3) // which has no share
	h.Part(2)
	h.Part(9) // which is not there
	if h.Parting("x") != nil {
		t.Error("another's connection is waited for")
	}
	h.Part(1)
	left := h.Parting("x")
	if left == nil || h.Parting("any") == nil {
		t.Fatal("a connection that is on its way out is not waited for")
	}
	select {
	case <-left:
		t.Error("it has left before it leaves")
	default:
	}
	h.Leave(1)
	<-left
	if h.Parting("x") != nil {
		t.Error("it is waited for twice")
	}
}

func TestHost(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:3262": "192.0.2.1", "[::ffff:192.0.2.1]:9": "192.0.2.1", "[2001:db8:1:2:3::4]:9": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:9": "fe80::/64", "pid 9": "pid 9",
	} {
		if got := Host(addr(text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

type addr string

func (a addr) Network() string { return "" }
func (a addr) String() string  { return string(a) }
