package backend

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// The watermark goes on with writes that are durable by themselves, as long as none before them needs a flush, and one flush is enough for
// all that had their numbers by its end.
func TestSequence(t *testing.T) {
	var s Sequence
	s.Begin(3)
	want := func(count, durable uint64) {
		t.Helper()
		if count, durable = 3<<48+count, 3<<48+durable; s.Count() != count || s.Durable() != durable {
			t.Fatalf("the count is %#x, want %#x; the watermark is %#x, want %#x", s.Count(), count, s.Durable(), durable)
		}
	}
	s.WrittenDurably()
	s.WrittenDurably()
	want(2, 2)
	s.Written()
	s.WrittenDurably()
	want(4, 2)
	upTo := s.Count()
	s.WrittenDurably() // while the flush is under way
	s.Flushed(upTo)
	want(5, 5)
	s.Written()
	upTo = s.Count()
	s.Written()
	s.WrittenDurably()
	s.Flushed(upTo)
	want(8, 6)
	s.Flushed(s.Count())
	s.Lose()
	s.WrittenDurably()
	s.Flushed(s.Count())
	want(9, 8)
}

// If all are durable by themselves, the watermark is the last number, whoever has become so first.
func TestSequenceOfDurable(t *testing.T) {
	var s Sequence
	for range 100 {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for range 20 {
					if n := s.WrittenDurably(); s.Durable() < n {
						t.Errorf("the watermark is %d after %d", s.Durable(), n)
					}
				}
			})
		}
		if wg.Wait(); s.Durable() != s.Count() {
			t.Fatalf("the watermark is %d of %d", s.Durable(), s.Count())
		}
	}
}

// No write that needs a flush is at or below the watermark before one has covered it, whoever writes beside it. In the end one flush covers
// all.
func TestSequenceAtATime(t *testing.T) {
	const users, each = 3, 3000
	var s Sequence
	var flushed atomic.Uint64 // the largest number that a flush has covered
	type sight struct{ flushed, durable uint64 }
	var sights [users][]sight
	var volatile [users][]uint64
	var wg sync.WaitGroup
	for user := range users {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(user), 1))
			for range each {
				switch r.IntN(8) {
				case 0:
					upTo := s.Count()
					raise(&flushed, upTo)
					s.Flushed(upTo)
				case 1:
					volatile[user] = append(volatile[user], s.Written())
				default:
					s.WrittenDurably()
				}
				d := s.Durable()
				sights[user] = append(sights[user], sight{flushed.Load(), d})
			}
		})
	}
	wg.Wait()
	need := make([]bool, s.Count()+1)
	for _, n := range slices.Concat(volatile[:]...) {
		need[n] = true
	}
	beyond := 0
	for _, x := range slices.Concat(sights[:]...) {
		if x.flushed >= x.durable {
			continue
		}
		beyond++
		if i := slices.Index(need[x.flushed+1:x.durable+1], true); i >= 0 {
			t.Fatalf("the watermark is %d, number %d needs a flush, and they have covered %d", x.durable, x.flushed+1+uint64(i), x.flushed)
		}
	}
	if beyond == 0 {
		t.Error("no write has gone on with the watermark by itself")
	}
	s.Flushed(s.Count())
	if s.Durable() != s.Count() || s.Count() < each {
		t.Errorf("after all the watermark is %d of %d", s.Durable(), s.Count())
	}
}
