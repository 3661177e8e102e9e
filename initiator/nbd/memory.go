package nbd

import (
	"math/bits"
	"os"

	"oneshot/initiator"
)

// piece is memory of the session.
type piece struct {
	m     *initiator.Memory // nil in tests
	b     []byte
	class int
}

// Classes of pieces. Those up to slabClass have 2^class bytes, come in slabs of 2^slabClass, and are not given
// back before the end; larger ones have room for a header besides.
const (
	minClass  = 12
	slabClass = 18
	maxClass  = 25
	spare     = 4096
)

// maxIdle is how much memory of large pieces lies ready, in bytes.
const maxIdle = 32 << 20

// pool has memory for requests. It has no lock of its own.
type pool struct {
	alloc func(n int) (*initiator.Memory, []byte, error)
	free  [maxClass + 1][]piece
	idle  int                 // bytes of large pieces in free
	all   []*initiator.Memory // the slabs
}

func classOf(n int) int {
	if n > 1<<slabClass {
		return max(bits.Len(uint(n-spare-1)), slabClass+1)
	}
	return max(bits.Len(uint(n-1)), minClass)
}

// sizeOf is how much is asked for to have pieces of a class.
func sizeOf(class int) int {
	if class > slabClass {
		return 1<<class + spare
	}
	return 1 << slabClass
}

// get returns a piece of n bytes or more; 0 < n <= 1<<maxClass + spare.
func (p *pool) get(n int) (piece, error) {
	class := classOf(n)
	if k := len(p.free[class]); k > 0 {
		x := p.free[class][k-1]
		p.free[class] = p.free[class][:k-1]
		if class > slabClass {
			p.idle -= len(x.b)
		}
		return x, nil
	}
	m, b, err := p.alloc(sizeOf(class))
	if err != nil {
		return piece{}, err
	}
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 0 // has the kernel provide the page now: requests must not fail when the machine runs out of memory
	}
	if class > slabClass {
		return piece{m, b, class}, nil
	}
	if m != nil {
		p.all = append(p.all, m)
	}
	for len(b) > 1<<class {
		p.free[class] = append(p.free[class], piece{m, b[: 1<<class : 1<<class], class})
		b = b[1<<class:]
	}
	return piece{m, b, class}, nil
}

// put takes a piece back.
func (p *pool) put(x piece) {
	if x.b == nil {
		return
	}
	if x.class > slabClass {
		if p.idle+len(x.b) > maxIdle {
			if x.m != nil {
				_ = x.m.Free()
			}
			return
		}
		p.idle += len(x.b)
	}
	p.free[x.class] = append(p.free[x.class], x)
}

// close gives all back. All pieces are in free.
func (p *pool) close() {
	for class, list := range p.free {
		for _, x := range list {
			if class > slabClass && x.m != nil {
				_ = x.m.Free()
			}
		}
		p.free[class] = nil
	}
	for _, m := range p.all {
		_ = m.Free()
	}
	p.all = nil
}
