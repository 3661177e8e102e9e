package volume

import "oneshot/backend"

// Pieces of copies between volumes. While a piece is read or written the request is one to the volume
// that it is in.

// MaxZero is how many zeroes a copy writes in one piece.
const MaxZero = eraseBytes

// CopyMemory gets the memory for the pieces of a copy of n bytes.
func (r *Request) CopyMemory(n int64, then Step) Next {
	r.DropMemory()
	return r.Memory(int(min(n, workBytes, int64(r.most))), 0, then)
}

// CopyRead reads n bytes at off of v into Data, in the term of v in which the copy began, or not at all.
func (r *Request) CopyRead(v *Volume, term uint64, off, n int64, then Step) Next {
	r.v, r.after, r.writes, r.n = v, then, false, n
	r.inTerm(term)
	return r.lockRange(holdShared, off, n, (*Request).copyRead)
}

func (r *Request) copyRead() Next {
	r.op.Flags = 0
	return r.submit(backend.Read, r.holdOff, r.n, r.lease.Bytes(), (*Request).copyEnd)
}

// CopyWrite writes n bytes of Data, or zeroes, at off of v, in the term of v in which the copy began, or not at all: in a later
// one the copy may have been done elsewhere, and its destination written again.
func (r *Request) CopyWrite(v *Volume, term uint64, off, n int64, zeroes bool, then Step) Next {
	r.v, r.after, r.writes, r.n = v, then, true, n
	r.inTerm(term)
	r.kind = backend.Write
	if zeroes {
		r.kind = backend.WriteZeroes
	}
	return r.lockRange(holdShared, off, n, (*Request).copyWrite)
}

func (r *Request) copyWrite() Next {
	r.op.Flags = 0
	r.v.Touch(r.holdOff, r.n) // a token may have been made since the copy began
	var data []byte
	if r.kind == backend.Write {
		data = r.lease.Bytes()
	}
	return r.submit(r.kind, r.holdOff, r.n, data, (*Request).copyEnd)
}

// copyEnd is the end of a piece. Whatever comes next is about the request's own volume again.
func (r *Request) copyEnd() Next {
	if r.writes {
		r.v.touched(r.holdOff, r.n) // or since the piece began
	}
	r.leaveRange()
	r.v = r.home
	return r.opEnd()
}
