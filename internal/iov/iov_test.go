package iov

import (
	"bytes"
	"io"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func piecesOf(t *rapid.T) (segs [][]byte, whole []byte) {
	lens := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 8).Draw(t, "lens")
	for i, n := range lens {
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(16*i + j)
		}
		segs, whole = append(segs, b), append(whole, b...)
	}
	return segs, whole
}

func content(v []unix.Iovec) (b []byte) {
	for _, x := range v {
		b = append(b, unsafe.Slice(x.Base, x.Len)...)
	}
	return b
}

// A cursor is where a plain index into the joined bytes is, whatever moves it.
func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segs, whole := piecesOf(t)
		at := rapid.IntRange(0, len(whole)).Draw(t, "at")
		c := At(segs, at)
		for range 20 {
			v := make([]unix.Iovec, rapid.IntRange(0, 4).Draw(t, "room"))
			n := rapid.IntRange(0, len(whole)+3).Draw(t, "n")
			k, filled := c.Fill(v, n)
			if got := content(v[:k]); len(got) != filled || !bytes.HasPrefix(whole[at:], got) || filled > n {
				t.Fatalf("Fill: %v of %v at %d, %d", got, whole, at, filled)
			}
			if k < len(v) && filled != min(n, len(whole)-at) {
				t.Fatalf("Fill has room and stops at %d of %d", filled, n)
			}
			if fit := c.Fit(n, len(segs)); fit != min(n, len(whole)-at) {
				t.Fatalf("Fit %d of %d, %d are left", fit, n, len(whole)-at)
			}
			switch rapid.SampledFrom([]string{"next", "advance", "in", "out"}).Draw(t, "op") {
			case "next":
				if at == len(whole) || n == 0 {
					continue
				}
				b := c.Next(n)
				if len(b) == 0 || len(b) > n || !bytes.HasPrefix(whole[at:], b) {
					t.Fatalf("Next(%d): %v of %v at %d", n, b, whole, at)
				}
				at += len(b)
			case "advance":
				n = min(n, len(whole)-at)
				c.Advance(n)
				at += n
			case "in":
				b := bytes.Repeat([]byte{0xee}, n)
				k := c.CopyIn(b)
				if k != min(n, len(whole)-at) {
					t.Fatalf("CopyIn(%d): %d, %d are left", n, k, len(whole)-at)
				}
				copy(whole[at:], b)
				at += k
			case "out":
				b := make([]byte, n)
				k := c.CopyOut(b)
				if k != min(n, len(whole)-at) || !bytes.Equal(b[:k], whole[at:at+k]) {
					t.Fatalf("CopyOut(%d): %d, %v", n, k, b)
				}
				at += k
			}
		}
		if !bytes.Equal(bytes.Join(segs, nil), whole) {
			t.Fatalf("%v, want %v", segs, whole)
		}
	})
}

// Fit counts pieces, as a vector of that many elements would hold them.
func TestFit(t *testing.T) {
	c := At([][]byte{make([]byte, 4), make([]byte, 3), make([]byte, 2)}, 1)
	for pieces, want := range []int{0, 3, 6, 8, 8} {
		if got := c.Fit(100, pieces); got != want {
			t.Errorf("in %d pieces: %d, want %d", pieces, got, want)
		}
	}
}

// A batch writes the bytes that were added, in order and once, whatever the peer takes at a time.
func TestBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Batch
		memory := make([]byte, 0, 4096)
		var want, got []byte
		for range 30 {
			switch rapid.SampledFrom([]string{"add", "join", "advance", "compact"}).Draw(t, "op") {
			case "add":
				p := rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "p")
				b.Add(p)
				want = append(want, p...)
			case "join":
				start := len(memory)
				memory = append(memory, rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "own")...)
				own := memory[start:]
				if b.Continues(own) {
					b.Extend(len(own))
				} else {
					b.Add(own)
				}
				want = append(want, own...)
			case "advance":
				all := content(b.Pending())
				n := rapid.IntRange(0, len(all)).Draw(t, "n")
				got = append(got, all[:n]...)
				b.Advance(n)
			case "compact":
				b.Compact()
			}
			if b.Queued != uint64(len(want)) || b.Written != uint64(len(got)) || b.Empty() != (len(got) == len(want)) {
				t.Fatalf("queued %d, written %d, empty %v; want %d, %d", b.Queued, b.Written, b.Empty(), len(want), len(got))
			}
		}
		if all := append(got, content(b.Pending())...); !bytes.Equal(all, want) {
			t.Fatalf("%x, want %x", all, want)
		}
		if b.Abandon(); !b.Empty() || b.Written != b.Queued || b.Written != uint64(len(got)) {
			t.Fatal("something is left")
		}
	})
}

func TestSystemCalls(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	in, out := int(r.Fd()), int(w.Fd())
	if err := unix.SetNonblock(in, true); err != nil {
		t.Fatal(err)
	}
	var into [2][3]byte
	v := []unix.Iovec{Of(into[0][:]), Of(into[1][:])}
	if n, err := Readv(in, v); n != 0 || err != nil {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	if n, e := Writev(out, []unix.Iovec{Of([]byte("ab")), Of([]byte("cde"))}); n != 5 || e != 0 {
		t.Errorf("write: %d, %v", n, e)
	}
	if n, err := Readv(in, v); n != 5 || err != nil || string(into[0][:])+string(into[1][:2]) != "abcde" {
		t.Errorf("read: %d, %v, %q", n, err, into)
	}
	w.Close()
	if n, err := Readv(in, v); n != 0 || err != io.EOF {
		t.Errorf("the end: %d, %v", n, err)
	}
	if n, e := Writev(out, v); n != 0 || e != unix.EBADF {
		t.Errorf("write to nothing: %d, %v", n, e)
	}
}

func TestSplice(t *testing.T) {
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		for _, f := range []*os.File{r, w} {
			if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
				t.Fatal(err)
			}
		}
		return r, w
	}
	r, w := pipe()
	r2, w2 := pipe()
	from, to := int(r.Fd()), int(w2.Fd())
	if n, err := Splice(from, to, 10); n != 0 || err != nil {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	unix.Write(int(w.Fd()), []byte("abcde"))
	if n, err := Splice(from, to, 3); n != 3 || err != nil {
		t.Errorf("3 of 5 bytes: %d, %v", n, err)
	}
	w.Close()
	if n, err := Splice(from, to, 10); n != 2 || err != nil {
		t.Errorf("what is left: %d, %v", n, err)
	}
	if n, err := Splice(from, to, 10); n != 0 || err != io.EOF {
		t.Errorf("the end: %d, %v", n, err)
	}
	b := make([]byte, 9)
	if n, err := unix.Read(int(r2.Fd()), b); n != 5 || string(b[:5]) != "abcde" || err != nil {
		t.Errorf("arrived: %q, %v", b[:max(n, 0)], err)
	}
	if n, err := Splice(from, -1, 1); n != 0 || err != unix.EBADF {
		t.Errorf("to nothing: %d, %v", n, err)
	}
}

func TestAllocs(t *testing.T) {
	segs := [][]byte{make([]byte, 100), make([]byte, 100)}
	var b Batch
	var v [4]unix.Iovec
	if n := testing.AllocsPerRun(100, func() {
		c := At(segs, 50)
		c.Fill(v[:], 150)
		for left := 150; left > 0; {
			p := c.Next(left)
			left -= len(p)
			b.Add(p)
		}
		b.Advance(70)
		b.Advance(80)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
