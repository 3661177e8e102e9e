package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// MetadataFile is the name of the file with the metadata of a copy, which is there once a node has taken part.
const MetadataFile = "meta"

// The metadata of a copy are one file of records: all of it first, then what has changed. A record has its length
// (4 bytes), the CRC32C of its bytes (4), and is durable before the next one is written: so only the last one can be
// torn, and then nobody has been told of it. Its bytes end with zeroes, so that records begin at multiples of 8: a power cut that
// leaves some sectors of one leaves its length or none. The file is made anew at each start, and when it has grown.
const (
	metaName  = MetadataFile
	metaNew   = "meta.new"
	metaGrows = 4 << 20 // bytes behind the first record
	metaMagic = 0x6f736d6574610002
	// metaMagicMissing says besides that the copy misses something. A version that does not know of that reads no such file.
	metaMagicMissing = 0x6f736d6574610003
)

// metadata is what a copy has to know in its next life.
type metadata struct {
	fsys   quorum.FS
	file   quorum.File
	at     int64 // where the next record goes
	grown  int64 // bytes behind the first record
	broken bool  // the file is made anew before the next record

	life    uint32 // counts them
	disk    string // identity of the store that the rest tells of
	saved   replica.Saved
	samples []sample // oldest first

	found string // identity of the store that is there; another one than disk until Save.Known
}

// errNoMetadata: there is no file.
var errNoMetadata = errors.New("the copy has no metadata")

// openMetadata reads the file and begins a new life.
func openMetadata(fsys quorum.FS) (*metadata, error) {
	m, err := readMetadata(fsys)
	if err != nil {
		return nil, err
	}
	m.life++
	m.found = m.disk
	return m, m.renew()
}

// readMetadata reads the file, and changes nothing.
func readMetadata(fsys quorum.FS) (*metadata, error) {
	b, err := fsys.ReadFile(metaName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoMetadata
	}
	if err != nil {
		return nil, fmt.Errorf("the metadata of the copy cannot be read: %w", err)
	}
	m := &metadata{fsys: fsys}
	for first := true; len(b) > 0; first = false {
		body, rest, ok := cutRecord(b)
		if !ok && !first && len(rest) == 0 {
			break // torn
		}
		c := coder{b: body}
		switch {
		case !ok:
			c.err = errors.New("a checksum is wrong")
		case first:
			m.all(&c)
		default:
			var s saving
			codeSave(&c, &s)
			m.apply(&s)
		}
		if c.err != nil {
			return nil, fmt.Errorf("the metadata of the copy are damaged (%w): remove the file %s to have all of the copy brought level again", c.err, metaName)
		}
		b = rest
	}
	return m, nil
}

// isOther says whether the store is another one than that of the metadata. The metadata stay those of the disk that is
// away, which may come back, until a primary begins to bring the other one level.
func (m *metadata) isOther() bool { return m.found != m.disk }

// createMetadata makes those of a copy that may differ from the others in all that regions name.
func createMetadata(fsys quorum.FS, disk string, saved replica.Saved) (*metadata, error) {
	m := &metadata{fsys: fsys, life: 1, disk: disk, found: disk, saved: saved}
	return m, m.renew()
}

// cutRecord returns the bytes of the first record, and what follows. A torn record has nothing behind it.
func cutRecord(b []byte) (body, rest []byte, ok bool) {
	if len(b) < 8 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if n == 0 || uint64(n) > uint64(len(b)-8) {
		return nil, nil, false
	}
	body, rest = b[8:8+n], b[8+n:]
	return body, rest, sumOf(body) == binary.BigEndian.Uint32(b[4:])
}

func metaRecord(f func(c *coder)) []byte {
	c := coder{b: make([]byte, 8), writes: true}
	f(&c)
	for len(c.b)%8 != 0 {
		c.b = append(c.b, 0)
	}
	binary.BigEndian.PutUint32(c.b, uint32(len(c.b)-8))
	binary.BigEndian.PutUint32(c.b[4:], sumOf(c.b[8:]))
	return c.b
}

// all codes everything.
func (m *metadata) all(c *coder) {
	magic := uint64(metaMagic)
	if !m.saved.Missing.Empty() {
		magic = metaMagicMissing
	}
	num(c, &magic, 8)
	if magic != metaMagic && magic != metaMagicMissing {
		c.err = errors.New("it is of another version")
	}
	num(c, &m.life, 4)
	disk := []byte(m.disk)
	many(c, &disk, func(b *byte) { num(c, b, 1) })
	m.disk = string(disk)
	c.flag(&m.saved.Unknown)
	codeSamples(c, &m.samples)
	num(c, &m.saved.Mark, 8)
	c.view(&m.saved.View)
	c.bits(&m.saved.Regions)
	for i := range m.saved.Bitmaps {
		c.bits(&m.saved.Bitmaps[i])
	}
	if magic == metaMagicMissing {
		c.bits(&m.saved.Missing)
	}
}

// codeSave codes a change, but for Known and Missing: all is written anew then.
func codeSave(c *coder, s *saving) {
	num(c, &s.Mark, 8)
	number := func(n *int) {
		x := uint64(*n)
		num(c, &x, 8)
		*n = int(x)
	}
	many(c, &s.Set, number)
	many(c, &s.Clear, number)
	codeSamples(c, &s.samples)
	has := s.Bitmaps != nil
	c.flag(&has)
	if !has {
		return
	}
	if s.Bitmaps == nil {
		s.Bitmaps = new([16]replica.Bits)
	}
	c.view(&s.View)
	for i := range s.Bitmaps {
		c.bits(&s.Bitmaps[i])
	}
}

func (m *metadata) apply(s *saving) {
	m.saved.Mark = s.Mark
	for _, i := range s.Set {
		m.saved.Regions.Set(i)
		m.dropSample(i)
	}
	if s.Bitmaps != nil {
		m.saved.View, m.saved.Bitmaps = s.View, *s.Bitmaps
	}
	for _, i := range s.Clear {
		m.saved.Regions.Clear(i)
	}
	for _, x := range s.samples {
		m.dropSample(x.region) // it is the same one when the save is tried again
		m.samples = append(m.samples, x)
	}
	m.samples = slices.Delete(m.samples, 0, max(0, len(m.samples)-maxSamples))
	if s.Missing != nil {
		m.saved.Missing = *s.Missing
	}
	if s.Known {
		m.disk, m.saved.Unknown = m.found, false
		m.samples = nil
	}
}

func (m *metadata) dropSample(region int) {
	m.samples = slices.DeleteFunc(m.samples, func(x sample) bool { return x.region == region })
}

// save makes a change durable. After an error nobody knows what the file holds, so the next attempt makes it anew.
func (m *metadata) save(s *saving) error {
	if m.isOther() && !s.Known {
		s.Mark = m.saved.Mark // of the disk that is away
	}
	m.apply(s)
	if m.broken || s.Known || s.Missing != nil || m.grown > metaGrows {
		return m.renew()
	}
	b := metaRecord(func(c *coder) { codeSave(c, s) })
	m.broken = true
	if _, err := m.file.WriteAt(b, m.at); err != nil {
		return err
	}
	if err := m.file.Sync(); err != nil {
		return err
	}
	m.broken = false
	m.at, m.grown = m.at+int64(len(b)), m.grown+int64(len(b))
	return nil
}

// renew writes all into another file, which takes the place of the old one.
func (m *metadata) renew() error {
	m.broken = true
	b := metaRecord(m.all)
	f, err := replaceFile(m.fsys, metaName, metaNew, b)
	if err != nil {
		return fmt.Errorf("the metadata of the copy cannot be written: %w", err)
	}
	if m.file != nil {
		_ = m.file.Close() // nothing of it is needed any more
	}
	m.file, m.at, m.grown, m.broken = f, int64(len(b)), 0, false
	return nil
}

// replaceFile has a file hold b, durably, by way of another that takes its place: whenever the power goes it has all of b, or what was
// there before. It returns the file, open.
func replaceFile(fsys quorum.FS, name, another string, b []byte) (quorum.File, error) {
	f, err := fsys.Create(another)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fsys.Rename(another, name)
	}
	if err == nil {
		err = fsys.SyncDir()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (m *metadata) close() error { return m.file.Close() }
