package volume

import "oneshot/backend"

// Read reads the n bytes at off, of which the client has room for the first room bytes (1 or more):
// n is room, rounded up to whole blocks. With fua the bytes come from the medium. In has the first room.
func (r *Request) Read(off, n, room int64, fua bool, then Step) Next {
	r.after, r.fua, r.writes = then, fua, false
	r.off, r.n = off, n
	if r.v.lender != nil && !r.noLend && !r.v.ranges.sticky(off, n) {
		r.segs = r.v.lender.Lend(r.segs[:0], off, room, false)
		r.In = r.segs
		return then(r)
	}
	r.room = room
	return r.Memory(int(n), 0, (*Request).readLock)
}

func (r *Request) readLock() Next { return r.lockRange(holdShared, r.off, r.n, (*Request).readStart) }

func (r *Request) readStart() Next {
	r.op.Flags = r.writeFlag()
	return r.submit(backend.Read, r.off, r.n, r.lease.Bytes(), (*Request).readDone)
}

func (r *Request) readDone() Next {
	if r.op.Err == nil {
		r.segs = append(r.segs[:0], r.lease.Bytes()[:r.room])
		r.In = r.segs
	}
	return r.opEnd()
}

// begins notes a transfer that writes [off, off+n).
func (r *Request) begins(off, n int64, fua bool, then Step) {
	r.after, r.fua, r.writes = then, fua, true
	r.off, r.n, r.begun = off, n, true
	r.v.touch(off, n, false, r)
}

// Write pulls n bytes, not none, and writes them at off. With fua they are durable at the end.
func (r *Request) Write(off, n int64, fua bool, then Step) Next {
	r.begins(off, n, fua, then)
	if r.v.lender != nil && !r.noLend {
		return r.pullLent(int(n), (*Request).writeLent)
	}
	return r.Memory(int(n), 0, (*Request).writePull)
}

// writeLent: the data have come, and are in the store's own memory, unless the request was overtaken.
func (r *Request) writeLent() Next {
	if r.Err != nil {
		return r.end(r.Err)
	}
	return r.writePlaced()
}

// writePlaced: the bytes are in the store's own memory.
func (r *Request) writePlaced() Next {
	if r.fua && r.v.info.VolatileCache {
		r.op.Flags = 0
		return r.submit(backend.Flush, 0, 0, nil, (*Request).opEnd)
	}
	return r.end(nil)
}

func (r *Request) writePull() Next { return r.pull(int(r.n), (*Request).writeLock) }

func (r *Request) writeLock() Next { return r.lockRange(holdShared, r.off, r.n, (*Request).writeStart) }

func (r *Request) writeStart() Next {
	r.op.Flags = r.writeFlag()
	return r.submit(backend.Write, r.off, r.n, r.lease.Bytes(), (*Request).opEnd)
}

// Flush makes durable what has been written.
func (r *Request) Flush(then Step) Next {
	r.after = then
	r.op.Flags = 0
	return r.submit(backend.Flush, 0, 0, nil, (*Request).opEnd)
}

// Status asks for the n bytes at off what Extent then tells.
func (r *Request) Status(off, n int64, then Step) Next {
	r.after = then
	r.op.Flags = 0
	return r.submit(backend.Status, off, n, nil, (*Request).opEnd)
}

// Extent is the answer to Status: whether the first byte has space of its own, and for how many bytes
// that is so.
func (r *Request) Extent() (n int64, mapped bool) { return r.op.Extent, r.op.Mapped }
