package initiator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
)

// LU is a logical unit that holds blocks: a disk. Its methods may be called from any goroutine.
type LU struct {
	s      *Session
	lun    int
	block  int   // bytes
	blocks int64 // number
	// most is how many bytes one command carries.
	most int
	// names are those of the unit itself (doubt.go): another disk has others.
	names string
	is    string // block and names, for Session.disks
}

// attentions is how many unit attentions in a row do not make a command of LU fail.
const attentions = 8

// LU returns the disk with that LUN, after it has become ready.
func (s *Session) LU(ctx context.Context, lun int) (*LU, error) {
	if _, err := s.unitNames(ctx, lun); err != nil { // whoever knows another disk there may get no access before
		return nil, err
	}
	if err := s.ready(ctx, lun); err != nil {
		return nil, err
	}
	news := s.heardSoFar()
	last, block, err := s.capacity(ctx, lun)
	if err != nil {
		return nil, err
	}
	l := &LU{s: s, lun: lun, block: block, blocks: int64(last) + 1, most: defaultTransfer / block * block}
	l.limit(ctx)
	if l.names, err = s.unitNames(ctx, lun); err != nil {
		return nil, err
	}
	l.is = fmt.Sprint(block, " ", l.names)
	s.found(l, news)
	return l, nil
}

// capacity returns the number of the last block, and the size of each.
func (s *Session) capacity(ctx context.Context, lun int) (last uint64, block int, err error) {
	b := make([]byte, 32)
	c := &Command{LUN: lun, CDB: []byte{0x9e, 0x10, 13: 32, 15: 0}, In: b, Attentions: attentions} // READ CAPACITY(16) (SBC-3 §5.16)
	if err := s.Do(ctx, c); err != nil {
		return 0, 0, err
	}
	last, block = binary.BigEndian.Uint64(b), int(binary.BigEndian.Uint32(b[8:]))
	if c.Transferred < 12 || block < 1 || block > 1<<20 || last >= 1<<62/uint64(block) {
		return 0, 0, fmt.Errorf("LUN %d has a last block %d of %d bytes", lun, last, block)
	}
	return last, block, nil
}

// defaultTransfer is how many bytes one command carries, if the unit does not say less.
const defaultTransfer = 1 << 20

// ready waits until the unit has told its unit attentions (SAM-5 §5.14).
func (s *Session) ready(ctx context.Context, lun int) error {
	return s.Do(ctx, &Command{LUN: lun, CDB: make([]byte, 6), Attentions: attentions}) // TEST UNIT READY
}

// limit asks for the longest transfer (SBC-3 §6.6.4); units without that page have no limit.
func (l *LU) limit(ctx context.Context) {
	b, err := l.s.Inquiry(ctx, l.lun, 0xb0)
	if err != nil || len(b) < 12 {
		return
	}
	if n := int64(binary.BigEndian.Uint32(b[8:])); n > 0 && n < int64(l.most/l.block) {
		l.most = int(n) * l.block
	}
}

// Inquiry returns the standard INQUIRY data if page is negative, and otherwise that page of the
// vital product data (SPC-4 §6.6).
func (s *Session) Inquiry(ctx context.Context, lun, page int) ([]byte, error) {
	b := make([]byte, 1024)
	cdb := []byte{0x12, 0, 0, byte(len(b) >> 8), byte(len(b) & 0xff), 0}
	if page >= 0 {
		cdb[1], cdb[2] = 1, byte(page)
	}
	c := &Command{LUN: lun, CDB: cdb, In: b}
	if err := s.Do(ctx, c); err != nil {
		return nil, err
	}
	return b[:c.Transferred], nil
}

// ReportLUNs lists the LUNs of the target (SPC-4 §6.33).
func (s *Session) ReportLUNs(ctx context.Context) ([]int, error) {
	const header, entry = 8, 8
	var b []byte
	for n := 16 << 10; ; {
		b = make([]byte, n)
		cdb := []byte{11: 0, 0: 0xa0}
		binary.BigEndian.PutUint32(cdb[6:], uint32(n))
		c := &Command{CDB: cdb, In: b}
		if err := s.Do(ctx, c); err != nil {
			return nil, err
		}
		if b = b[:c.Transferred]; len(b) < header {
			return nil, nil
		}
		const most = header + (maxLUN+1)*entry
		all := header + int64(binary.BigEndian.Uint32(b))
		if all > most {
			return nil, fmt.Errorf("the target says that its list of LUNs has %d bytes: %d is the most", all, most)
		}
		if all <= int64(n) {
			b = b[:min(len(b), int(all))]
			break
		}
		n = int(all) // it has more than there was room for
	}
	var luns []int
	for e := b[header:]; len(e) >= entry; e = e[entry:] {
		switch n := int(binary.BigEndian.Uint16(e)); n >> 14 {
		case 0:
			luns = append(luns, n&0xff)
		case 1:
			luns = append(luns, n&0x3fff)
		}
	}
	return luns, nil
}

// BlockSize returns the size of a block, in bytes.
func (l *LU) BlockSize() int { return l.block }

// Size returns the size of the disk, in bytes.
func (l *LU) Size() int64 { return l.blocks * int64(l.block) }

// MaxTransfer returns how many bytes ReadAt and WriteAt put into one command.
func (l *LU) MaxTransfer() int { return l.most }

// Prepare makes c a command that reads (In, InV) or writes (Out, OutV) data at off, both in whole
// blocks. It is for users of Start; the other fields of c stay.
func (l *LU) Prepare(c *Command, off int64) error {
	n := c.size()
	switch {
	case off%int64(l.block) != 0 || n%l.block != 0 || n == 0:
		return fmt.Errorf("LUN %d: %d bytes at %d are not whole blocks of %d", l.lun, n, off, l.block)
	case off < 0 || off > l.Size()-int64(n):
		return fmt.Errorf("LUN %d: %d bytes at %d, on a disk of %d", l.lun, n, off, l.Size())
	}
	c.blank()
	c.whole = true
	if c.CDB[0] = 0x88; c.writes() { // READ(16), WRITE(16)
		c.CDB[0] = 0x8a
	}
	binary.BigEndian.PutUint64(c.CDB[2:], uint64(off/int64(l.block)))
	binary.BigEndian.PutUint32(c.CDB[10:], uint32(n/l.block))
	c.LUN, c.Attentions, c.unit = l.lun, attentions, l
	return nil
}

// PrepareFlush makes c a command that makes durable what was written: SYNCHRONIZE CACHE(16). It is for users
// of Start; the other fields of c stay.
func (l *LU) PrepareFlush(c *Command) {
	c.blank()
	c.CDB[0] = 0x91
	c.LUN, c.Attentions, c.unit = l.lun, attentions, l
}

// blank gives c a CDB of 16 zeroes.
func (c *Command) blank() {
	c.whole = false
	if cap(c.CDB) < 16 {
		c.CDB = make([]byte, 16)
	}
	c.CDB = c.CDB[:16]
	clear(c.CDB)
}

// UnmapListLen is the length of the list of an UNMAP command with one range, in bytes (SBC-3 §5.28).
const UnmapListLen = 24

// PrepareUnmap makes c a command that unmaps n bytes at off, whole blocks; list, of UnmapListLen bytes,
// belongs to it until Done. It is for users of Start; the other fields of c stay.
func (l *LU) PrepareUnmap(c *Command, list []byte, off, n int64) error {
	switch {
	case off%int64(l.block) != 0 || n%int64(l.block) != 0 || n <= 0 || n/int64(l.block) > math.MaxUint32:
		return fmt.Errorf("LUN %d: %d bytes at %d are not whole blocks of %d, or too many", l.lun, n, off, l.block)
	case off < 0 || off > l.Size()-n:
		return fmt.Errorf("LUN %d: %d bytes at %d, on a disk of %d", l.lun, n, off, l.Size())
	}
	list = list[:UnmapListLen]
	clear(list)
	binary.BigEndian.PutUint16(list, UnmapListLen-2)
	binary.BigEndian.PutUint16(list[2:], UnmapListLen-8)
	binary.BigEndian.PutUint64(list[8:], uint64(off/int64(l.block)))
	binary.BigEndian.PutUint32(list[16:], uint32(n/int64(l.block)))
	c.blank()
	c.CDB = c.CDB[:10]
	c.CDB[0], c.CDB[8] = 0x42, UnmapListLen
	c.In, c.InV, c.OutV, c.Memory, c.Out = nil, nil, nil, nil, list
	c.LUN, c.Attentions, c.unit = l.lun, attentions, l
	return nil
}

// Unmapping is what a unit says of UNMAP, in bytes. Whole granules are unmapped: they begin at
// Alignment and at multiples of Granularity behind it.
type Unmapping struct {
	Most                   int64 // of one command; 0: the unit does not unmap
	Granularity, Alignment int64
}

// Unmapping asks the unit (SBC-3 §6.6.4, §6.6.6).
func (l *LU) Unmapping(ctx context.Context) (u Unmapping, err error) {
	b, err := l.s.Inquiry(ctx, l.lun, 0xb2)
	if _, answered := errors.AsType[*StatusError](err); err != nil {
		if answered {
			err = nil // a unit without that page
		}
		return u, err
	}
	if len(b) < 6 || b[5]&0x80 == 0 { // LBPU
		return u, nil
	}
	if b, err = l.s.Inquiry(ctx, l.lun, 0xb0); err != nil || len(b) < 36 {
		return u, err
	}
	block := int64(l.block)
	if binary.BigEndian.Uint32(b[24:]) > 0 { // descriptors
		u.Most = int64(binary.BigEndian.Uint32(b[20:])) * block
	}
	u.Granularity = max(int64(binary.BigEndian.Uint32(b[28:])), 1) * block
	if a := binary.BigEndian.Uint32(b[32:]); a>>31 != 0 { // UGAVALID
		u.Alignment = int64(a&^(1<<31)) * block % u.Granularity
	}
	return u, nil
}

// ReadOnly reports whether the unit is write protected: the bit WP of MODE SENSE(6) (SBC-3 §6.5.1).
func (l *LU) ReadOnly(ctx context.Context) (bool, error) {
	b := make([]byte, 192)
	c := &Command{LUN: l.lun, CDB: []byte{0x1a, 8, 0x3f, 0, byte(len(b)), 0}, In: b, Attentions: attentions}
	if err := l.s.Do(ctx, c); err != nil {
		if _, answered := errors.AsType[*StatusError](err); answered {
			err = nil // a unit without mode pages
		}
		return false, err
	}
	return c.Transferred > 2 && b[2]&0x80 != 0, nil
}

// ReadAt implements io.ReaderAt. off and len(p) are whole blocks.
func (l *LU) ReadAt(p []byte, off int64) (int, error) {
	end := min(int64(len(p)), max(l.Size()-off, 0))
	n, err := l.move(context.Background(), p[:end], off, false)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// WriteAt implements io.WriterAt. off and len(p) are whole blocks. The data is durable after
// Flush.
func (l *LU) WriteAt(p []byte, off int64) (int, error) {
	return l.move(context.Background(), p, off, true)
}

// Flush makes what was written durable: SYNCHRONIZE CACHE(16).
func (l *LU) Flush(ctx context.Context) error {
	var c Command
	l.PrepareFlush(&c)
	return l.s.Do(ctx, &c)
}

// move reads or writes p with as many commands as it takes, side by side, and returns how much
// of it, from its start on, was moved.
func (l *LU) move(ctx context.Context, p []byte, off int64, write bool) (int, error) {
	var wg sync.WaitGroup
	cs := make([]Command, (len(p)+l.most-1)/l.most)
	for i := range cs {
		part := p[i*l.most : min((i+1)*l.most, len(p))]
		c := &cs[i]
		if c.In = part; write {
			c.In, c.Out = nil, part
		}
		if err := l.Prepare(c, off+int64(i*l.most)); err != nil {
			return 0, err
		}
	}
	for i := range cs {
		wg.Go(func() { _ = l.s.Do(ctx, &cs[i]) })
	}
	wg.Wait()
	n := 0
	for i := range cs {
		if err := cs[i].Failure(); err != nil {
			return n, cmp.Or(ctx.Err(), err)
		}
		n += len(cs[i].data())
	}
	return n, nil
}

// Copy parameters: commands side by side, and bytes in each.
const (
	copyDepth = 8
	copySize  = 256 << 10
)

// part is a piece of a copy and its memory.
type part struct {
	c    Command
	mem  *Memory
	n    int           // bytes of the stream in it
	done chan struct{} // closed when c has ended
}

// start begins p's command, which Prepare has made.
func (p *part) start(s *Session) {
	done := make(chan struct{})
	p.done, p.c.Done = done, func(*Command) { close(done) }
	s.Start(&p.c)
}

// wait returns when p's command has ended, and how. If ctx ends first, the command is aborted.
func (p *part) wait(ctx context.Context, s *Session) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		s.abort(&p.c, p.done)
		<-p.done
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.c.Failure()
}

func (l *LU) parts() ([]*part, error) {
	size := min(copySize/l.block*l.block, l.most)
	ps := make([]*part, copyDepth)
	for i := range ps {
		m, err := l.s.Alloc(max(size, l.block))
		if err != nil {
			freeParts(ps)
			return nil, err
		}
		ps[i] = &part{mem: m}
	}
	return ps, nil
}

func freeParts(ps []*part) {
	for _, p := range ps {
		if p != nil {
			_ = p.mem.Free()
		}
	}
}

// CopyTo writes n bytes of the disk, from off on, to w, several commands reading ahead. off is
// whole blocks. progress, if set, is told how many bytes have been written.
func (l *LU) CopyTo(ctx context.Context, w io.Writer, off, n int64, progress func(int64)) (err error) {
	ps, err := l.parts()
	if err != nil {
		return err
	}
	var asked, told int64
	head, under := 0, 0
	defer func() {
		for ; under > 0; under-- {
			_ = ps[head%copyDepth].wait(ctx, l.s)
			head++
		}
		freeParts(ps)
	}()
	for told < n {
		for ; asked < n && under < copyDepth; under++ {
			p := ps[(head+under)%copyDepth]
			p.n = int(min(int64(len(p.mem.b)), n-asked))
			p.c.In, p.c.Memory = p.mem.b[:(p.n+l.block-1)/l.block*l.block], p.mem
			if err := l.Prepare(&p.c, off+asked); err != nil {
				return err
			}
			p.start(l.s)
			asked += int64(p.n)
		}
		p := ps[head%copyDepth]
		err := p.wait(ctx, l.s)
		head++
		under--
		if err != nil {
			return err
		}
		if _, err := w.Write(p.mem.b[:p.n]); err != nil {
			return err
		}
		if told += int64(p.n); progress != nil {
			progress(told)
		}
	}
	return nil
}

// CopyFrom writes what r has to the disk, from off on, until r ends, several commands side by
// side, and returns how many bytes that were. off is whole blocks; of a last block that r does
// not fill, the rest stays as it is. The data is durable after Flush.
func (l *LU) CopyFrom(ctx context.Context, r io.Reader, off int64, progress func(int64)) (told int64, err error) {
	ps, err := l.parts()
	if err != nil {
		return 0, err
	}
	head, under := 0, 0
	wait := func() error {
		p := ps[head%copyDepth]
		err := p.wait(ctx, l.s)
		head++
		under--
		if err != nil {
			return err
		}
		if told += int64(p.n); progress != nil {
			progress(told)
		}
		return nil
	}
	defer func() {
		for under > 0 {
			err = errors.Join(err, wait())
		}
		freeParts(ps)
	}()
	for at, more := off, true; more; {
		p := ps[(head+under)%copyDepth]
		p.n, err = io.ReadFull(r, p.mem.b)
		more = err == nil
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return told, err
		}
		err = nil
		if p.n == 0 {
			break
		}
		whole := (p.n + l.block - 1) / l.block * l.block
		if err := l.fill(ctx, p.mem.b[:whole], p.n, at); err != nil {
			return told, err
		}
		p.c.Out, p.c.Memory = p.mem.b[:whole], p.mem
		if err := l.Prepare(&p.c, at); err != nil {
			return told, err
		}
		p.start(l.s)
		at += int64(p.n)
		if under++; under == copyDepth {
			if err := wait(); err != nil {
				return told, err
			}
		}
	}
	return told, nil
}

// fill completes the last block of b, of which n bytes are there, with what the disk has.
func (l *LU) fill(ctx context.Context, b []byte, n int, at int64) error {
	if n == len(b) {
		return nil
	}
	first := n / l.block * l.block
	old := make([]byte, l.block)
	if _, err := l.move(ctx, old, at+int64(first), false); err != nil {
		return err
	}
	copy(b[n:], old[n-first:])
	return nil
}

// Identity is what a unit says of itself.
type Identity struct {
	Vendor   string `json:"vendor"`
	Product  string `json:"product"`
	Revision string `json:"revision"`
	Serial   string `json:"serial,omitempty"`
	// Designators are names in hexadecimal, or text where they are that (SPC-4 §7.8.6).
	Designators []string `json:"designators,omitempty"`
	// Names are those of the unit itself among them, whatever way leads to it.
	Names []string `json:"-"`
}

// Identify reads the standard INQUIRY data and the pages 80h and 83h.
func (s *Session) Identify(ctx context.Context, lun int) (id Identity, err error) {
	b, err := s.Inquiry(ctx, lun, -1)
	if err != nil {
		return id, err
	}
	if len(b) < 36 {
		return id, fmt.Errorf("LUN %d: INQUIRY data of %d bytes", lun, len(b))
	}
	if b[0]>>5 == 3 { // the peripheral qualifier (SPC-4 §6.6.2)
		return id, fmt.Errorf("the target has no LUN %d; list them: initiator ls", lun)
	}
	id.Vendor, id.Product, id.Revision = trim(b[8:16]), trim(b[16:32]), trim(b[32:36])
	if b, err := s.Inquiry(ctx, lun, 0x80); err == nil && len(b) > 4 {
		id.Serial = trim(b[4:])
	}
	if b, err := s.Inquiry(ctx, lun, 0x83); err == nil && len(b) > 4 {
		id.Designators, id.Names = designators(b[4:])
	}
	return id, nil
}

func trim(b []byte) string { return string(bytes.Trim(b, " \x00")) }

// designators lists all, and those of the unit.
func designators(b []byte) (all, names []string) {
	for ; len(b) >= 4 && len(b)-4 >= int(b[3]); b = b[4+int(b[3]):] {
		d := trim(b[4 : 4+int(b[3])])
		if b[0]&15 == 1 { // binary
			d = fmt.Sprintf("%x", b[4:4+int(b[3])])
		}
		if all = append(all, d); b[1]&association == 0 {
			names = append(names, d)
		}
	}
	return all, names
}

// association is the mask of what a designator is about; 0: the unit.
const association = 0x30
