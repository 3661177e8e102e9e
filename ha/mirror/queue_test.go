package mirror

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"oneshot/internal/rounds"
)

// TestQueue: frames leave in the order in which they came, whoever takes them and whenever. Two buffers are never shorter together
// than what the owner of the core writes itself, and neither what waits nor what is kept takes more memory than that.
func TestQueue(t *testing.T) {
	var q queue
	var in, out uint64 // frames
	var waits int64
	sizes := [...]int{8, 40, 4 << 10, maxTry, 256 << 10, maxPart - 8, maxPart, maxPart + 8, 1 << 20}
	add := func(n int) {
		b := q.room(n)
		at := len(b)
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, uint32(n)), in)
		b = append(b, make([]byte, n)...)
		q.add(b, len(b)-at)
		in++
		waits += int64(len(b) - at)
	}
	pop := func() {
		b := q.pop()
		waits -= int64(len(b))
		for rest := b; len(rest) > 0; out++ {
			if got := binary.BigEndian.Uint64(rest[4:]); got != out {
				t.Fatalf("frame %d came in place of frame %d", got, out)
			}
			rest = rest[12+binary.BigEndian.Uint32(rest):]
		}
		q.release(b)
	}
	for round := range rounds.Of(40, 4) { // nobody else is here: there is no race to be seen
		for i := range 40 {
			some := sizes[:len(sizes)-round%2*5] // or short ones
			add(some[(round*7+i*i)%len(some)])
			if i%(round%9+1) == 0 {
				pop()
			}
			if q.bytes != waits {
				t.Fatalf("%d bytes wait, and the queue says %d", waits, q.bytes)
			}
			if len(q.full) > 0 && waits <= maxTry {
				t.Fatalf("%d bytes are in %d buffers", waits, len(q.full)+1)
			}
			if q.kept > 2*maxKept {
				t.Fatalf("%d bytes of memory are kept", q.kept)
			}
		}
		for waits > 0 {
			pop()
		}
	}
	if out != in {
		t.Errorf("%d of %d frames came", out, in)
	}
}

// asked is a source that notes how many bytes it was asked for at once.
type asked struct{ n []int }

func (a *asked) Read(b []byte) (int, error) {
	a.n = append(a.n, len(b))
	return len(b), nil
}

// TestReadInto: where there is memory, as for all but the first long frames, a read asks for all bytes, so that they need not pass
// through a buffer. Where there is none, memory grows only with what has come.
func TestReadInto(t *testing.T) {
	const long = 512 << 10
	for _, c := range []struct{ has, most int }{{0, grows}, {long, long}} {
		var a asked
		b, err := readInto(make([]byte, 0, c.has), &a, long)
		if err != nil || len(b) != long || a.n[0] != c.most {
			t.Errorf("with memory for %d bytes %d came, %v, and %d were asked for first", c.has, len(b), err, a.n[0])
		}
	}
	b, err := readInto(nil, io.LimitReader(bytes.NewReader(make([]byte, 10)), 10), 1<<30)
	if err == nil || cap(b) > 2*grows {
		t.Errorf("for 10 of 2³⁰ bytes memory of %d was taken, %v", cap(b), err)
	}
}
