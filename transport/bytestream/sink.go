package bytestream

import (
	"sync"

	"oneshot/internal/crc32c"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/volume"
)

// Sink is where the data of one command go: memory in pieces, or, a whole block at a time, the memory of a store. They come in
// the order of their offsets, so that one cursor is enough. The zero value is for nothing.
type Sink struct {
	// Got is how many bytes have come.
	Got int

	dst   iov.Cursor // the rest of the memory to fill
	store Placer     // not nil: the data go to it in whole blocks of unit bytes, not to dst
	unit  int
	part  *block // the beginning of such a block, whose rest is to come; nil: there was none yet
	partN int    // bytes of it that are there: Got modulo unit
}

// Placer is a command whose data go to the memory of a store; see volume.Request.
type Placer interface {
	// Place copies b to where the data from at on belong.
	Place(at int, b []byte)
	// BeginPlace lends the memory for the n bytes of data from at on.
	BeginPlace(at, n int) volume.Placing
}

// block is as large as blocks get (scsi.LUConfig.BlockSize, nvmf.NamespaceConfig.BlockSize).
type block [4096]byte

// blocks are those that no command has. A command has at most one, so all together take no more than a block for each command
// outstanding.
var blocks = sync.Pool{New: func() any { return new(block) }}

// Fill has the data go to the memory segs.
func (s *Sink) Fill(segs [][]byte) {
	s.dst, s.store, s.unit, s.Got = iov.At(segs, 0), nil, 0, 0
}

// Place has the data go to p, in whole blocks of unit bytes. There must be no digest of them: they are there before it is
// checked.
func (s *Sink) Place(p Placer, unit int) {
	s.dst, s.store, s.unit, s.Got = iov.Cursor{}, p, unit, 0
}

// Reset gives back what s has.
func (s *Sink) Reset() {
	if s.part != nil {
		blocks.Put(s.part)
	}
	*s = Sink{}
}

// IsReset reports whether s has nothing.
func (s *Sink) IsReset() bool { return s.part == nil && s.Got == 0 }

// Put copies the next bytes of the data.
func (s *Sink) Put(b []byte) {
	if s.store == nil {
		n := s.dst.CopyIn(b)
		invariant.Check(n == len(b), "a command takes data and has memory for them")
		s.Got += n
		return
	}
	if s.partN > 0 {
		n := copy(s.part[s.partN:s.unit], b)
		s.gathered(n)
		b = b[n:]
	}
	if n := len(b) / s.unit * s.unit; n > 0 {
		s.store.Place(s.Got, b[:n])
		s.Got += n
		b = b[n:]
	}
	if len(b) > 0 {
		s.gather(b)
	}
}

// gather keeps b, the first bytes of a block.
func (s *Sink) gather(b []byte) {
	if s.part == nil {
		s.part = blocks.Get().(*block)
	}
	s.partN = copy(s.part[:], b)
	s.Got += s.partN
}

// gathered notes that n more bytes of the block in part are there, which goes to the store when all are.
func (s *Sink) gathered(n int) {
	s.partN += n
	s.Got += n
	if n > 0 && s.partN == s.unit {
		s.store.Place(s.Got-s.unit, s.part[:s.unit])
		s.partN = 0
	}
}

// digest adds the next n bytes of memory to d.
func (s *Sink) digest(d crc32c.Digest, n int) crc32c.Digest {
	for c := s.dst; n > 0; {
		b := c.Next(n)
		d = d.Update(b)
		n -= len(b)
	}
	return d
}

// placed notes that n bytes were read to where a says.
func (s *Sink) placed(a *aim, n int) {
	if s.store == nil {
		s.Got += n
		s.dst.Advance(n)
		return
	}
	part := min(n, a.part)
	s.gathered(part)
	n -= part
	rest := n % s.unit // none: the socket had as much as it had said
	s.Got += n - rest
	if rest > 0 {
		c := iov.At(a.placing.Segs, n-rest)
		s.gather(c.Next(rest)) // in one segment
	}
}
