package nvme

// Reservations (Base 2.0 §7.2 to §7.6 and §8.19).

// ReservationType is the type of a reservation; 0: there is none.
type ReservationType uint8

// Types of reservations (Base 2.0 figure 415).
const (
	WriteExclusive             ReservationType = 1
	ExclusiveAccess            ReservationType = 2
	WriteExclusiveRegistrants  ReservationType = 3 // only registrants write
	ExclusiveAccessRegistrants ReservationType = 4
	WriteExclusiveAll          ReservationType = 5 // all registrants hold it
	ExclusiveAccessAll         ReservationType = 6
)

// Actions of the reservation commands.
const (
	RegisterKey   = 0
	UnregisterKey = 1
	ReplaceKey    = 2

	Acquire         = 0
	Preempt         = 1
	PreemptAndAbort = 2

	Release = 0
	Clear   = 1
)

// CPTPL says whether reservations are to outlive a loss of power from now on.
type CPTPL uint8

// Values of CPTPL; 1 is reserved.
const (
	PersistUnchanged CPTPL = 0
	PersistClear     CPTPL = 2
	PersistSet       CPTPL = 3
)

// Reservation is dword 10 of Reservation Register, Acquire, or Release.
type Reservation uint32

// Action is RREGA, RACQA, or RRELA.
func (r Reservation) Action() int { return int(r & 7) }

// IgnoreKey is IEKEY: the current key is not looked at.
func (r Reservation) IgnoreKey() bool { return r&8 != 0 }

// Type is RTYPE of Acquire and Release.
func (r Reservation) Type() ReservationType { return ReservationType(r >> 8) }

// Persist is CPTPL of Register.
func (r Reservation) Persist() CPTPL { return CPTPL(r >> 30) }

// Lengths of the data of the commands, bytes: of Register and Acquire, and of Release.
const (
	ReservationDataLen = 16
	ReleaseDataLen     = 8
)

// CurrentKey is CRKEY, of all three.
func CurrentKey(data []byte) uint64 { return le.Uint64(data) }

// OtherKey is NRKEY of Register, or PRKEY of Acquire.
func OtherKey(data []byte) uint64 { return le.Uint64(data[8:]) }

// AppendKeys appends the data of Register or Acquire.
func AppendKeys(b []byte, current, other uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, current), other)
}

// ExtendedReport in dword 11 of Reservation Report asks for host identifiers of 16 bytes.
const ExtendedReport = 1

// Lengths in the data of an extended Reservation Report, bytes.
const (
	ReservationStatusLen = 64 // without registrants
	RegistrantLen        = 64
)

// ReservationStatus is the header of an extended Reservation Report (Base 2.0 figure 405).
type ReservationStatus struct {
	Generation  uint32
	Type        ReservationType
	Registrants int
	Persist     bool // PTPLS
}

// AppendTo appends the header.
func (s *ReservationStatus) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, ReservationStatusLen)...)
	d := b[start:]
	le.PutUint32(d, s.Generation)
	d[4] = byte(s.Type)
	le.PutUint16(d[5:], uint16(s.Registrants))
	if s.Persist {
		d[9] = 1
	}
	return b
}

// Registrant is a registrant in an extended report (Base 2.0 figure 407). None is bound to one controller.
type Registrant struct {
	Holder bool
	Key    uint64
	HostID [16]byte
}

// AppendTo appends the registrant.
func (r *Registrant) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, DynamicController)
	holder := byte(0)
	if r.Holder {
		holder = 1
	}
	b = append(b, holder, 0, 0, 0, 0, 0)
	b = le.AppendUint64(b, r.Key)
	b = append(b, r.HostID[:]...)
	return append(b, make([]byte, 32)...)
}

// NoticeType says what happened to a registrant.
type NoticeType uint8

// Types of reservation notifications (Base 2.0 figure 267).
const (
	NoNotice              NoticeType = 0
	RegistrationPreempted NoticeType = 1
	ReservationReleased   NoticeType = 2
	ReservationPreempted  NoticeType = 3
)

// Masks reports whether a value of FeatureNoticeMask keeps n from being told.
func (n NoticeType) Masks(mask uint32) bool { return mask&(1<<n) != 0 }

// AllNotices are the bits of FeatureNoticeMask.
const AllNotices = 1<<RegistrationPreempted | 1<<ReservationReleased | 1<<ReservationPreempted

// NoticeLen is the length of the log of reservation notifications.
const NoticeLen = 64

// Notice is the log of reservation notifications: the oldest one (Base 2.0 figure 267).
type Notice struct {
	Count uint64 // of notifications so far; 0: there is none
	Type  NoticeType
	More  uint8 // pages that come after this one, at most 255
	NSID  uint32
}

// AppendTo appends the page.
func (n *Notice) AppendTo(b []byte) []byte {
	b = le.AppendUint64(b, n.Count)
	b = append(b, byte(n.Type), n.More, 0, 0)
	b = le.AppendUint32(b, n.NSID)
	return append(b, make([]byte, NoticeLen-16)...)
}
