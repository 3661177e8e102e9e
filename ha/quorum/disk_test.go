package quorum

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// disk is a file system in memory with caches that a power cut loses: of writes that were not synced any sectors
// stay, of changes of the directory the first so many. endpoint/wal and partition have stores that do so; here
// names change, too.
type disk struct {
	names   map[string]*inode // as processes see it
	durable map[string]*inode
	renames []func(map[string]*inode) // since the last SyncDir

	steps  int           // that are done before the power is cut; negative: it is not
	full   bool          // no byte can be written
	hang   chan struct{} // until it is closed Sync does not return; nil: it does
	fail   error         // of the next Sync; what was written is forgotten, though it is read
	bad    *inode        // each Sync of it fails
	lost   error         // of the next SyncDir, which ...
	onLost func()        // ... calls this
	count  int           // of steps
}

type inode struct {
	data    []byte // as processes see it
	medium  []byte
	pending []span
}

type span struct {
	off int64
	b   []byte
}

// powerCut ends a process in the middle of a call.
type powerCut struct{}

func newDisk() *disk {
	return &disk{names: map[string]*inode{}, durable: map[string]*inode{}, steps: -1}
}

func (d *disk) step() {
	d.count++
	if d.steps == 0 {
		d.steps = -1
		panic(powerCut{})
	}
	if d.steps > 0 {
		d.steps--
	}
}

func (d *disk) ReadFile(name string) ([]byte, error) {
	if f := d.names[name]; f != nil {
		return slices.Clone(f.data), nil
	}
	return nil, fs.ErrNotExist
}

func (d *disk) Create(name string) (File, error) {
	d.step()
	f := &inode{}
	d.change(func(names map[string]*inode) { names[name] = f })
	return &handle{d, f}, nil
}

// change does something to the directory.
func (d *disk) change(do func(map[string]*inode)) {
	do(d.names)
	d.renames = append(d.renames, do)
}

func (d *disk) Rename(from, to string) error {
	d.step()
	d.change(func(names map[string]*inode) {
		names[to] = names[from]
		delete(names, from)
	})
	return nil
}

func (d *disk) Remove(name string) error {
	if d.names[name] == nil {
		return fs.ErrNotExist
	}
	d.step()
	d.change(func(names map[string]*inode) { delete(names, name) })
	return nil
}

func (d *disk) SyncDir() error {
	d.step()
	if err := d.lost; err != nil {
		d.lost = nil
		if d.onLost != nil {
			d.onLost()
		}
		return err
	}
	d.durable, d.renames = maps.Clone(d.names), nil
	d.step()
	return nil
}

type handle struct {
	d *disk
	f *inode
}

func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	h.d.step()
	if h.d.full {
		h.f.write(b[:len(b)/2], off)
		return len(b) / 2, unix.ENOSPC
	}
	h.f.write(b, off)
	h.d.step()
	return len(b), nil
}

func (f *inode) write(b []byte, off int64) {
	f.data = put(f.data, b, off)
	f.pending = append(f.pending, span{off, slices.Clone(b)})
}

// put writes into bytes that grow.
func put(to, b []byte, off int64) []byte {
	if n := int(off) + len(b); n > len(to) {
		to = append(to, make([]byte, n-len(to))...)
	}
	copy(to[off:], b)
	return to
}

func (h *handle) Sync() error {
	if h.d.hang != nil {
		<-h.d.hang
	}
	h.d.step()
	if h.f == h.d.bad {
		h.f.pending = nil
		return errSync
	}
	if err := h.d.fail; err != nil {
		h.d.fail, h.f.pending = nil, nil
		return err
	}
	for _, p := range h.f.pending {
		h.f.medium = put(h.f.medium, p.b, p.off)
	}
	h.f.pending = nil
	h.d.step()
	return nil
}

func (h *handle) Close() error { return nil }

var errSync = errors.New("input/output error")

// cut is the disk after the power has been cut, or, with chance 1, after a kill.
func (d *disk) cut(r *rand.Rand, chance float64) *disk {
	left := newDisk()
	names := d.names
	if chance < 1 {
		names = maps.Clone(d.durable)
		n := 0
		if chance > 0 {
			n = r.IntN(len(d.renames) + 1)
		}
		for _, do := range d.renames[:n] {
			do(names)
		}
	}
	for name, f := range names {
		image := slices.Clone(f.data)
		if chance < 1 {
			image = f.after(r, chance)
		}
		left.names[name] = &inode{data: image, medium: slices.Clone(image)}
	}
	left.durable = maps.Clone(left.names)
	return left
}

func (f *inode) after(r *rand.Rand, chance float64) []byte {
	image := slices.Clone(f.medium)
	for _, p := range f.pending {
		for at := 0; at < len(p.b); at += sector {
			if chance > 0 && r.Float64() < chance {
				image = put(image, p.b[at:min(at+sector, len(p.b))], p.off+int64(at))
			}
		}
	}
	return image
}
