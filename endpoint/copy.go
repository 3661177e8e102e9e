package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
)

const (
	copyDepth = 4       // operations of a copy at a time
	copySize  = 1 << 20 // bytes of one; whole units
)

// part is an operation of a copy.
type part struct {
	b    []byte // of Alloc
	n    int    // bytes of it that count
	done chan error
}

// parts allocates what a copy needs.
func (e *Endpoint) parts() (ps [copyDepth]*part, err error) {
	for i := range ps {
		p := &part{done: make(chan error, 1)}
		if p.b, err = e.Alloc(copySize); err != nil {
			return ps, errors.Join(err, e.freeParts(ps))
		}
		ps[i] = p
	}
	return ps, nil
}

func (e *Endpoint) freeParts(ps [copyDepth]*part) (err error) {
	for _, p := range ps {
		if p != nil {
			err = errors.Join(err, e.Free(p.b))
		}
	}
	return err
}

// checkPlace reports whether [off, off+n) can be copied.
func (e *Endpoint) checkPlace(off, n int64) error {
	i := e.Info()
	switch {
	case off < 0 || n < 0 || off > i.Size || n > i.Size-off:
		return fmt.Errorf("%d bytes from offset %d on reach beyond the end of %s, which has %d bytes", n, off, i.Name, i.Size)
	case off%int64(i.Unit) != 0:
		return fmt.Errorf("the offset %d is not of whole units: those of %s have %d bytes", off, i.Name, i.Unit)
	}
	return nil
}

// whole rounds n up to units.
func (e *Endpoint) whole(n int) int {
	unit := e.Info().Unit
	return (n + unit - 1) / unit * unit
}

// CopyTo writes n bytes, from off on, to w, and reads ahead. off is of whole units. progress, if set, is told
// how many bytes have been written.
func (e *Endpoint) CopyTo(ctx context.Context, w io.Writer, off, n int64, progress func(int64)) (err error) {
	if err := e.checkPlace(off, n); err != nil {
		return err
	}
	ps, err := e.parts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	head, under := 0, 0
	defer func() {
		cancel()
		err = e.endCopy(ps, head, under, err)
	}()
	for asked, told := int64(0), int64(0); told < n; {
		for ; asked < n && under < copyDepth; under++ {
			p := ps[(head+under)%copyDepth]
			p.n = int(min(copySize, n-asked))
			at := off + asked
			go func() { p.done <- e.ReadAt(ctx, p.b[:e.whole(p.n)], at) }() // endCopy waits
			asked += int64(p.n)
		}
		p := ps[head%copyDepth]
		err := <-p.done
		head++
		under--
		if err != nil {
			ps[(head-1)%copyDepth] = nil
			return err
		}
		if _, err := w.Write(p.b[:p.n]); err != nil {
			return err
		}
		if told += int64(p.n); progress != nil {
			progress(told)
		}
	}
	return nil
}

// endCopy waits for what is under way. Memory of an operation that was left alone, because the context has
// ended, stays until Close.
func (e *Endpoint) endCopy(ps [copyDepth]*part, head, under int, err error) error {
	for ; under > 0; under-- {
		p := ps[head%copyDepth]
		if failed := <-p.done; failed != nil {
			ps[head%copyDepth] = nil
			if err == nil {
				err = failed
			}
		}
		head++
	}
	return errors.Join(err, e.freeParts(ps))
}

// CopyFrom writes what r has, from off on, until r ends, and returns how many bytes that were. off is of whole
// units; of a last unit that r does not fill, the rest stays as it is. The data is durable after Flush. The
// first error, also that of a context, is returned; what is complete before it stays.
func (e *Endpoint) CopyFrom(ctx context.Context, r io.Reader, off int64, progress func(int64)) (told int64, err error) {
	if err := e.checkPlace(off, 0); err != nil {
		return 0, err
	}
	ps, err := e.parts()
	if err != nil {
		return 0, err
	}
	head, under := 0, 0
	defer func() { err = e.endCopy(ps, head, under, err) }()
	wait := func() error {
		p := ps[head%copyDepth]
		err := <-p.done
		head++
		under--
		if err != nil {
			ps[(head-1)%copyDepth] = nil
			return err
		}
		if told += int64(p.n); progress != nil {
			progress(told)
		}
		return nil
	}
	for at, more := off, true; more; {
		p := ps[(head+under)%copyDepth]
		p.n, err = io.ReadFull(r, p.b)
		if more = err == nil; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return told, err
		}
		if err = nil; p.n == 0 {
			break
		}
		if err := e.checkPlace(at, int64(p.n)); err != nil {
			return told, err
		}
		if err := e.fillUnit(ctx, p, at); err != nil {
			ps[(head+under)%copyDepth] = nil
			return told, err
		}
		place := at
		go func() { p.done <- e.WriteAt(ctx, p.b[:e.whole(p.n)], place) }() // endCopy waits
		at += int64(p.n)
		if under++; under == copyDepth {
			if err := wait(); err != nil {
				return told, err
			}
		}
	}
	for under > 0 {
		if err := wait(); err != nil {
			return told, err
		}
	}
	return told, nil
}

// fillUnit completes the last unit of what goes to at with what is there.
func (e *Endpoint) fillUnit(ctx context.Context, p *part, at int64) error {
	unit := e.Info().Unit
	rest := p.n % unit
	if rest == 0 {
		return nil
	}
	first := p.n - rest
	mine := append([]byte(nil), p.b[first:p.n]...)
	if err := e.ReadAt(ctx, p.b[first:first+unit], at+int64(first)); err != nil {
		return fmt.Errorf("the rest of the last unit: %w", err)
	}
	copy(p.b[first:], mine)
	return nil
}
