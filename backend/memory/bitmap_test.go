package memory

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBitmapAgainstModel(t *testing.T) {
	const n = 300
	rapid.Check(t, func(t *rapid.T) {
		b, err := newBitmap(n)
		if err != nil {
			t.Fatal(err)
		}
		defer b.close()
		var model [n]bool
		fill := func(v bool) func(*rapid.T) {
			return func(t *rapid.T) {
				first := rapid.Int64Range(0, n).Draw(t, "first")
				end := rapid.Int64Range(first, n).Draw(t, "end")
				if v {
					b.set(first, end)
				} else {
					b.clear(first, end)
				}
				for i := first; i < end; i++ {
					model[i] = v
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set":   fill(true),
			"clear": fill(false),
			"": func(t *rapid.T) {
				end := int64(n)
				for i := int64(n - 1); i >= 0; i-- {
					if b.get(i) != model[i] {
						t.Fatalf("member %d is %v", i, b.get(i))
					}
					if i+1 < n && model[i] != model[i+1] {
						end = i + 1
					}
					if member, until := b.run(i, n); member != model[i] || until != end {
						t.Fatalf("run from %d: %v until %d, want %v until %d", i, member, until, model[i], end)
					}
				}
			},
		})
	})
}
