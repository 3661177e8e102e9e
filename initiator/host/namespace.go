package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"oneshot/nvme"
)

// Namespaces lists the numbers of the namespaces that are there.
func (c *Controller) Namespaces(ctx context.Context) ([]uint32, error) {
	var all []uint32
	b := make([]byte, nvme.IdentifyLen)
	for after := uint32(0); ; {
		if err := c.Admin(ctx, &Command{Opcode: nvme.AdminIdentify, NSID: after, DWords: [6]uint32{uint32(nvme.CNSActiveNamespaces)}, In: b}); err != nil {
			return nil, err
		}
		for off := 0; off < len(b); off += 4 {
			id := binary.LittleEndian.Uint32(b[off:])
			if id == 0 {
				return all, nil
			}
			if id <= after {
				return nil, fmt.Errorf("the list of namespaces is not sorted: %d after %d", id, after)
			}
			all, after = append(all, id), id
		}
	}
}

// Namespace is a disk. Its methods may be called from any goroutine. Offsets and lengths are in bytes, and whole blocks.
type Namespace struct {
	c     *Controller
	nsid  uint32
	shift uint8
	size  int64
	most  int // bytes that one command carries

	ReadOnly bool
	UUID     [16]byte // zero: it has none
	NGUID    [16]byte
}

// defaultTransfer is how many bytes one command carries, if the controller does not say less.
const defaultTransfer = 1 << 20

// Namespace returns the namespace of that number.
func (c *Controller) Namespace(ctx context.Context, nsid uint32) (*Namespace, error) {
	if c.Queues() == 0 {
		return nil, errors.New("the controller has no I/O queue")
	}
	b := make([]byte, nvme.IdentifyLen)
	if err := c.Admin(ctx, &Command{Opcode: nvme.AdminIdentify, NSID: nsid, In: b}); err != nil {
		return nil, err
	}
	d := nvme.ParseNamespace(b)
	const leastShift, mostShift = 9, 20
	switch {
	case d.Blocks == 0:
		return nil, fmt.Errorf("there is no namespace %d", nsid)
	case d.BlockShift < leastShift || d.BlockShift > mostShift || d.Blocks > 1<<(62-mostShift):
		return nil, fmt.Errorf("namespace %d has %d blocks of 2^%d bytes", nsid, d.Blocks, d.BlockShift)
	}
	n := &Namespace{c: c, nsid: nsid, shift: d.BlockShift, size: int64(d.Blocks) << d.BlockShift, most: defaultTransfer, ReadOnly: d.ReadOnly, NGUID: d.NGUID}
	if m := c.Info.MDTS; m > 0 && m < 8 {
		n.most = 4096 << m
	}
	if err := c.Admin(ctx, &Command{Opcode: nvme.AdminIdentify, NSID: nsid, DWords: [6]uint32{uint32(nvme.CNSDescriptors)}, In: b}); err != nil {
		return nil, err
	}
	n.UUID = nvme.ParseDescriptors(b).UUID
	return n, nil
}

// Check looks whether the namespace is the disk still that it was when n was made. The controller may put another one in its place at any
// time, and no command of this package hears of it: who has copied something, and asks afterwards, knows where it is.
func (n *Namespace) Check(ctx context.Context) error {
	now, err := n.c.Namespace(ctx, n.nsid)
	switch {
	case err != nil:
		return err
	case now.UUID != n.UUID || now.NGUID != n.NGUID || now.shift != n.shift:
		return fmt.Errorf("the controller has put another disk in the place of namespace %d", n.nsid)
	}
	return nil
}

// Size is the size in bytes.
func (n *Namespace) Size() int64 { return n.size }

// BlockSize is the size of a block in bytes.
func (n *Namespace) BlockSize() int { return 1 << n.shift }

// MaxTransfer is how many bytes one command carries at most.
func (n *Namespace) MaxTransfer() int { return n.most }

// Prepare makes x one that reads or writes at off: a Write if it has Out, and otherwise a Read.
func (n *Namespace) Prepare(x *Command, off int64) error {
	x.Opcode = nvme.Read
	if len(x.Out) > 0 {
		x.Opcode = nvme.Write
	}
	return n.about(x, off, max(len(x.Out), len(x.In)))
}

// about makes x a command about length bytes at off.
func (n *Namespace) about(x *Command, off int64, length int) error {
	mask := int64(1)<<n.shift - 1
	if length <= 0 || length > n.most || off < 0 || (off|int64(length))&mask != 0 || off > n.size-int64(length) {
		return fmt.Errorf("%d bytes at %d: a command is about whole blocks of %d bytes, at most %d bytes, on a disk of %d", length, off, n.BlockSize(), n.most, n.size)
	}
	lba := uint64(off) >> n.shift
	x.NSID = n.nsid
	x.DWords[0], x.DWords[1], x.DWords[2] = uint32(lba), uint32(lba>>32), uint32(length>>n.shift-1)
	return nil
}

// ReadAt implements io.ReaderAt for whole blocks, by commands of the first I/O queue.
func (n *Namespace) ReadAt(b []byte, off int64) (int, error) {
	return n.each(context.Background(), b, off, func(x *Command, p []byte) { x.In = p })
}

// WriteAt implements io.WriterAt for whole blocks.
func (n *Namespace) WriteAt(b []byte, off int64) (int, error) {
	return n.each(context.Background(), b, off, func(x *Command, p []byte) { x.Out = p })
}

// parallel is how many commands of a long transfer are outstanding.
const parallel = 4

// each executes commands about the pieces of b, some at a time.
func (n *Namespace) each(ctx context.Context, b []byte, off int64, with func(*Command, []byte)) (int, error) {
	done := 0
	for done < len(b) {
		var commands []*Command
		for at := done; at < len(b) && len(commands) < parallel; at += n.most {
			x := new(Command)
			with(x, b[at:min(len(b), at+n.most)])
			if err := n.Prepare(x, off+int64(at)); err != nil {
				return done, err
			}
			commands = append(commands, x)
		}
		if err := n.c.Do(ctx, 0, commands...); err != nil {
			return done, err
		}
		for _, x := range commands {
			if len(x.In) > 0 && x.Transferred != len(x.In) {
				return done, io.ErrUnexpectedEOF
			}
			done += max(len(x.In), len(x.Out))
		}
	}
	return done, nil
}

// Flush makes durable what was written.
func (n *Namespace) Flush(ctx context.Context) error {
	return n.c.Do(ctx, 0, &Command{Opcode: nvme.Flush, NSID: n.nsid})
}

// CompareAndWrite writes new at off if the bytes there are old, by a fused pair: nobody else writes between. False: they are others.
// When ctx ends it returns, and the pair may be executed still, with the bytes that these were.
func (n *Namespace) CompareAndWrite(ctx context.Context, off int64, old, new []byte) (bool, error) {
	if len(old) != len(new) {
		return false, errors.New("what is compared and what is written differ in length")
	}
	if ctx.Done() != nil { // Do may return before the controller has fetched them
		old, new = bytes.Clone(old), bytes.Clone(new)
	}
	first := &Command{Opcode: nvme.Compare, Fuse: nvme.FusedFirst, Out: old}
	second := &Command{Opcode: nvme.Write, Fuse: nvme.FusedSecond, Out: new}
	for _, x := range []*Command{first, second} {
		if err := n.about(x, off, len(old)); err != nil {
			return false, err
		}
	}
	err := n.c.Do(ctx, 0, first, second)
	if e, ok := errors.AsType[*StatusError](err); ok && e.Status.Code() == nvme.CompareFailure {
		return false, nil
	}
	return err == nil, err
}

// CopyTo writes length bytes from off on to w; told, unless it is nil, is told how many have been.
func (n *Namespace) CopyTo(ctx context.Context, w io.Writer, off, length int64, told func(int64)) error {
	mask := int64(n.BlockSize() - 1)
	b := make([]byte, parallel*n.most)
	for done := int64(0); done < length; {
		at := off + done
		k := min(int64(len(b)), n.size-at&^mask, (at&mask+length-done+mask)&^mask)
		if k <= 0 {
			return io.ErrUnexpectedEOF
		}
		if _, err := n.each(ctx, b[:k], at&^mask, func(x *Command, p []byte) { x.In = p }); err != nil {
			return err
		}
		part := b[at&mask : min(k, at&mask+length-done)]
		if _, err := w.Write(part); err != nil {
			return err
		}
		if done += int64(len(part)); told != nil {
			told(done)
		}
	}
	return nil
}

// CopyFrom writes what r has from off on, a whole block, and returns how many bytes that were. If r ends within a block, the rest
// of that block keeps its content.
func (n *Namespace) CopyFrom(ctx context.Context, r io.Reader, off int64, told func(int64)) (int64, error) {
	if off%int64(n.BlockSize()) != 0 {
		return 0, fmt.Errorf("offset %d is not a multiple of the block size, %d", off, n.BlockSize())
	}
	b := make([]byte, parallel*n.most)
	for done := int64(0); ; {
		k, err := io.ReadFull(r, b)
		last := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !last {
			return done, err
		}
		whole := k
		if over := k % n.BlockSize(); over != 0 {
			block := make([]byte, n.BlockSize())
			if _, err := n.each(ctx, block, off+done+int64(k-over), func(x *Command, p []byte) { x.In = p }); err != nil {
				return done, err
			}
			whole = k - over + copy(b[k-over+over:], block[over:]) + over
		}
		if int64(whole) > n.size-off-done {
			return done, fmt.Errorf("what is to be written reaches beyond the end of the disk, which has %d bytes", n.size)
		}
		if _, err := n.each(ctx, b[:whole], off+done, func(x *Command, p []byte) { x.Out = p }); err != nil {
			return done, err
		}
		if done += int64(k); told != nil {
			told(done)
		}
		if last {
			return done, nil
		}
	}
}
