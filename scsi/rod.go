package scsi

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"oneshot/volume"
)

// Tokens that stand for data (ROD tokens, SPC-4 §5.17.6, SBC-3 §4.28), which Windows uses to have
// data copied (ODX): POPULATE TOKEN makes one for ranges of a logical unit, WRITE USING TOKEN,
// perhaps by somebody else, writes what it stands for.
//
// A token is of the type "point in time copy, change vulnerable": it holds no copy of the data,
// but ends when any of them are about to change (volume.Token).

// CopyManager holds the tokens of the targets that share it. Its methods are those of targets
// and may be called from any goroutine.
type CopyManager struct {
	mu     sync.Mutex              // taken before locks of volumes
	tokens map[rodSecret]*rodToken // guarded by mu
	sweeps bool                    // sweep will be called; guarded by mu
}

// NewCopyManager returns a copy manager without tokens.
func NewCopyManager() *CopyManager { return &CopyManager{tokens: make(map[rodSecret]*rodToken)} }

const (
	rodTokenLen    = 512
	maxRODTokens   = 1024
	maxRODRanges   = 64       // block device range descriptors
	maxRODBytes    = 64 << 20 // that a token stands for
	rodInactivity  = 60 * time.Second
	rodInactivity0 = 15 * time.Second // if the initiator does not say

	rodChangeVulnerable = 0x00800001 // the type that is made
	rodPointInTime      = 0x00800000 // "any point in time copy" in two ways
	rodPointInTimeAny   = 0x0080ffff
	rodZero             = 0xffff0001 // stands for zeroes
)

// Sense data (SPC-4 table 57).
var (
	senseTokenType    = Sense{Key: keyIllegalRequest, Code: 0x2301}
	senseTokenUnknown = Sense{Key: keyIllegalRequest, Code: 0x2304}
	senseTokenCorrupt = Sense{Key: keyIllegalRequest, Code: 0x2305}
	senseTokenRevoked = Sense{Key: keyIllegalRequest, Code: 0x2306}
	senseTokenExpired = Sense{Key: keyIllegalRequest, Code: 0x2307}
	senseTokenTooMany = Sense{Key: keyCopyAborted, Code: 0x550d} // INSUFFICIENT RESOURCES TO CREATE ROD TOKEN
)

// rodSecret is what nobody can guess of a token.
type rodSecret [32]byte

const offRODSecret = rodTokenLen - len(rodSecret{})

// rodToken is a token and what it stands for.
type rodToken struct {
	*volume.Token
	text       [rodTokenLen]byte
	lu         *LogicalUnit
	inactivity time.Duration
	expires    time.Time // unless a copy uses it; guarded by CopyManager.mu
	users      int       // copies; guarded by CopyManager.mu
}

func (r *rodToken) secret() rodSecret { return rodSecret(r.text[offRODSecret:]) }

// create makes a token for ranges of lu in a term of its volume.
func (m *CopyManager) create(lu *LogicalUnit, term uint64, ranges []volume.Range, inactivity time.Duration) (*rodToken, Sense) {
	r := &rodToken{lu: lu, inactivity: inactivity}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if len(m.tokens) >= maxRODTokens {
		for _, old := range m.tokens {
			if old.expired(now) || !old.Valid() {
				m.drop(old)
			}
		}
	}
	if len(m.tokens) >= maxRODTokens {
		return nil, senseTokenTooMany
	}
	r.Token = lu.v.NewToken(term, ranges)
	r.write()
	r.expires = now.Add(inactivity)
	m.tokens[r.secret()] = r
	m.sweepLater()
	return r, Sense{}
}

// sweepLater has tokens end soon after they have expired, so that who writes to a volume has none to look at. mu is held.
func (m *CopyManager) sweepLater() {
	if !m.sweeps {
		m.sweeps = true
		time.AfterFunc(time.Second, m.sweep)
	}
}

func (m *CopyManager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweeps = false
	now := time.Now()
	for _, r := range m.tokens {
		switch {
		case !r.Valid():
		case r.expired(now):
			r.Revoke() // who comes with it is told that it has expired
		default:
			m.sweepLater()
		}
	}
}

// drop forgets r. mu is held.
func (m *CopyManager) drop(r *rodToken) {
	delete(m.tokens, r.secret())
	r.Revoke()
}

// use finds a token, and keeps it for another while.
func (m *CopyManager) use(text []byte) (*rodToken, Sense) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.tokens[rodSecret(text[offRODSecret:])]
	now := time.Now()
	switch {
	case r == nil:
		return nil, senseTokenUnknown
	case !bytes.Equal(r.text[:], text):
		return nil, senseTokenCorrupt
	case r.expired(now):
		m.drop(r)
		return nil, senseTokenExpired
	case !r.Valid():
		return nil, senseTokenRevoked
	}
	r.expires = now.Add(r.inactivity)
	return r, Sense{}
}

// expired reports whether nobody has used r for long enough. CopyManager.mu is held.
func (r *rodToken) expired(now time.Time) bool { return r.users == 0 && now.After(r.expires) }

// enter says that a copy uses r, and leave that it does no more.
func (m *CopyManager) enter(r *rodToken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.users++
}

func (m *CopyManager) leave(r *rodToken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.users--
	r.expires = time.Now().Add(r.inactivity)
}

// delete ends a token.
func (m *CopyManager) delete(r *rodToken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(r)
}

// write makes the text of the token, SPC-4 §5.17.6.4:
//
//	  0  ROD TYPE                4  reserved         6  ROD TOKEN LENGTH (01F8h)
//	  8  COPY MANAGER ROD TOKEN IDENTIFIER
//	 16  CREATOR LOGICAL UNIT DESCRIPTOR: a CSCD descriptor
//	 48  NUMBER OF BYTES REPRESENTED (16 bytes)
//	 96  device type specific: the logical block length
//	480  what makes it impossible to guess
func (r *rodToken) write() {
	b := r.text[:]
	binary.BigEndian.PutUint32(b, rodChangeVulnerable)
	binary.BigEndian.PutUint16(b[6:], rodTokenLen-8)
	_, _ = rand.Read(b[8:16]) // never fails
	b[16] = cscdIdent
	b[20], b[21], b[23] = codeBinary, ofUnit|idNAA, byte(len(r.lu.naa))
	copy(b[24:], r.lu.naa[:])
	binary.BigEndian.PutUint32(b[44:], uint32(r.lu.blockSize))
	binary.BigEndian.PutUint64(b[56:], uint64(r.Size()))
	binary.BigEndian.PutUint32(b[96:], uint32(r.lu.blockSize))
	_, _ = rand.Read(b[offRODSecret:])
}

// ---- POPULATE TOKEN ----

const (
	populateHeader = 16
	useHeader      = 536
	rangeLen       = 16 // block device range descriptor
)

// listID4 is the LIST IDENTIFIER of the commands with four bytes of it.
func (t *Task) listID4() listID { return listID{long: true, id: binary.BigEndian.Uint32(t.CDB[6:])} }

// populateToken is SBC-3 §5.7.
func (t *Task) populateToken() Next { return t.takeRanges(populateHeader, (*Task).populateTokenRun) }

// takeRanges gets the memory for a parameter list with range descriptors after a header.
func (t *Task) takeRanges(header int64, then func(*Task) Next) Next {
	n := int64(binary.BigEndian.Uint32(t.CDB[10:]))
	switch {
	case n == 0:
		return t.good()
	case n < header || n > header+rangeLen*maxRODRanges:
		return t.check(senseParameterLen)
	}
	return t.takeParameters(n, then)
}

// populateTokenRun makes the token at once: IMMED is no other way.
func (t *Task) populateTokenRun() Next {
	result, s := t.Nexus.copies.begin(t.listID4(), t.CDB[1]&0x1f, t.lu.blockShift)
	if result == nil {
		return t.check(s)
	}
	token, s := t.populate(t.parameters())
	if token != nil {
		result.token = bytes.Clone(token.text[:])
		result.bytes.Store(token.Size())
	}
	result.end(s)
	if s != (Sense{}) {
		return t.check(s)
	}
	return t.good()
}

func (t *Task) populate(list []byte) (*rodToken, Sense) {
	const rtv = 0x02
	kind, seconds := binary.BigEndian.Uint32(list[8:]), binary.BigEndian.Uint32(list[4:])
	inactivity := time.Duration(seconds) * time.Second
	if list[2]&rtv != 0 && kind != rodChangeVulnerable && kind != rodPointInTime && kind != rodPointInTimeAny {
		return nil, senseTokenType
	}
	switch {
	case seconds == 0:
		inactivity = rodInactivity0
	case inactivity > rodInactivity:
		return nil, invalidParameter(4)
	}
	ranges, s, ok := t.lu.parseRanges(list, populateHeader)
	if !ok {
		return nil, s
	}
	return t.Nexus.target.copies.create(t.lu, t.r.Term(), ranges, inactivity)
}

// parseRanges reads the block device range descriptors after the header of a parameter list
// (SBC-3 §5.7.3). All of them are good, and no block is in two, or none is returned.
func (lu *LogicalUnit) parseRanges(list []byte, header int) (ranges []volume.Range, s Sense, ok bool) {
	bad := func(at int) ([]volume.Range, Sense, bool) { return nil, invalidParameter(at), false }
	length := int(binary.BigEndian.Uint16(list[header-2:]))
	switch {
	case int(binary.BigEndian.Uint16(list)) > len(list)-2:
		return nil, senseParameterLen, false
	case int(binary.BigEndian.Uint16(list)) < header-2+length:
		return bad(0)
	case length == 0 || length%rangeLen != 0 || length/rangeLen > maxRODRanges:
		return bad(header - 2)
	case length > len(list)-header:
		return nil, senseParameterLen, false
	}
	var total int64
	for at := header; at < header+length; at += rangeLen {
		lba, blocks := binary.BigEndian.Uint64(list[at:]), uint64(binary.BigEndian.Uint32(list[at+8:]))
		if capacity := lu.blocks(); lba > capacity || blocks > capacity-lba {
			return nil, senseLBAOutOfRange, false
		}
		x := volume.Range{Off: int64(lba) << lu.blockShift, N: int64(blocks) << lu.blockShift}
		if total += x.N; total > maxRODBytes {
			return bad(at + 8)
		}
		if x.N != 0 {
			ranges = append(ranges, x)
		}
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b volume.Range) int { return cmp.Compare(a.Off, b.Off) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Off < sorted[i-1].Off+sorted[i-1].N {
			return bad(header)
		}
	}
	if len(ranges) == 0 {
		return bad(header + 8)
	}
	return ranges, Sense{}, true
}

// ---- WRITE USING TOKEN ----

// writeUsingToken is SBC-3 §5.50.
func (t *Task) writeUsingToken() Next { return t.takeRanges(useHeader, (*Task).writeUsingTokenRun) }

func (t *Task) writeUsingTokenRun() Next {
	const delTkn = 0x02
	result, s := t.Nexus.copies.begin(t.listID4(), t.CDB[1]&0x1f, t.lu.blockShift)
	if result == nil {
		return t.check(s)
	}
	list := t.parameters()
	token, steps, s := t.tokenSteps(list)
	if s != (Sense{}) {
		result.end(s)
		return t.check(s)
	}
	return t.startCopy(steps, result, token, token != nil && list[2]&delTkn != 0)
}

// tokenSteps is what a parameter list of WRITE USING TOKEN asks for.
func (t *Task) tokenSteps(list []byte) (*rodToken, []copyStep, Sense) {
	ranges, s, ok := t.lu.parseRanges(list, useHeader)
	if !ok {
		return nil, nil, s
	}
	skip, text := binary.BigEndian.Uint64(list[8:]), list[16:16+rodTokenLen]
	switch {
	case binary.BigEndian.Uint16(text[6:]) != rodTokenLen-8:
		return nil, nil, Sense{Key: keyIllegalRequest, Code: 0x230a} // INVALID TOKEN LENGTH
	case binary.BigEndian.Uint32(text) == rodZero:
		var steps []copyStep
		for _, x := range ranges {
			steps = append(steps, copyStep{to: t.lu, dst: x.Off, n: x.N})
		}
		return nil, steps, Sense{}
	case binary.BigEndian.Uint32(text) != rodChangeVulnerable:
		return nil, nil, senseTokenType
	}
	token, s := t.Nexus.target.copies.use(text)
	if s != (Sense{}) {
		return nil, nil, s
	}
	for _, x := range ranges { // before anything is written: it may be what the token stands for
		t.lu.v.Touch(x.Off, x.N)
	}
	if !token.Valid() {
		return nil, nil, senseTokenRevoked
	}
	if skip > uint64(token.Size())>>t.lu.blockShift {
		return nil, nil, invalidParameter(8)
	}
	steps, ok := token.steps(t.lu, int64(skip)<<t.lu.blockShift, ranges)
	if !ok {
		return nil, nil, invalidParameter(useHeader + 8)
	}
	return token, steps, Sense{}
}

// steps lays the data of the token, from byte skip on, over the ranges of lu; false: there
// are not enough of them, or they do not come in blocks of lu.
func (r *rodToken) steps(lu *LogicalUnit, skip int64, ranges []volume.Range) (steps []copyStep, ok bool) {
	from := slices.Clone(r.Ranges())
	for _, to := range ranges {
		for to.N > 0 {
			for len(from) > 0 && skip >= from[0].N {
				skip -= from[0].N
				from = from[1:]
			}
			if len(from) == 0 {
				return nil, false
			}
			n := min(to.N, from[0].N-skip)
			src := from[0].Off + skip
			if n&(lu.blockSize-1) != 0 || (n|src)&(r.lu.blockSize-1) != 0 {
				return nil, false
			}
			steps = append(steps, copyStep{from: r.lu, to: lu, src: src, dst: to.Off, n: n, rod: r.Token})
			to.Off, to.N, skip = to.Off+n, to.N-n, skip+n
		}
	}
	return steps, true
}
