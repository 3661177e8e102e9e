package nvme

// Sanitize is dword 10 of a Sanitize command (Base 2.0 §5.24).
type Sanitize uint32

// SanitizeAction is what a Sanitize command does.
type SanitizeAction uint8

// Actions.
const (
	ExitFailure    SanitizeAction = 1
	BlockErase     SanitizeAction = 2
	EraseOverwrite SanitizeAction = 3
)

// Bits of Sanitize.
const (
	sanitizeAUSE   Sanitize = 1 << 3
	sanitizeInvert Sanitize = 1 << 8
	sanitizeNDAS   Sanitize = 1 << 9
	sanitizePasses          = 4 // shift
	sanitizeKnown  Sanitize = 1<<10 - 1
)

// NewSanitize returns dword 10 of a command. passes are 1 to 16, of EraseOverwrite.
func NewSanitize(a SanitizeAction, unrestricted bool, passes int, invert bool) Sanitize {
	s := Sanitize(a) | Sanitize(passes&0xf)<<sanitizePasses
	if unrestricted {
		s |= sanitizeAUSE
	}
	if invert {
		s |= sanitizeInvert
	}
	return s
}

// Action is what is to be done.
func (s Sanitize) Action() SanitizeAction { return SanitizeAction(s & 7) }

// Unrestricted allows to leave the failure of the operation (AUSE).
func (s Sanitize) Unrestricted() bool { return s&sanitizeAUSE != 0 }

// Passes is how often EraseOverwrite writes.
func (s Sanitize) Passes() int {
	if n := int(s >> sanitizePasses & 0xf); n > 0 {
		return n
	}
	return 16
}

// Invert has every second pass, and not the last one, write the complement (OIPBP).
func (s Sanitize) Invert() bool { return s&sanitizeInvert != 0 }

// NoDeallocate asks that no block be deallocated (NDAS).
func (s Sanitize) NoDeallocate() bool { return s&sanitizeNDAS != 0 }

// Reserved reports whether bits are set that mean nothing.
func (s Sanitize) Reserved() bool { return s&^sanitizeKnown != 0 }

// SanitizeLogLen is the length of the log of sanitize operations.
const SanitizeLogLen = 512

// SanitizeStatus is how the last sanitize operation went (SSTAT).
type SanitizeStatus uint8

// Values of SanitizeStatus.
const (
	NeverSanitized   SanitizeStatus = 0
	Sanitized        SanitizeStatus = 1
	SanitizeUnderWay SanitizeStatus = 2
	SanitizeFailure  SanitizeStatus = 3
)

// SanitizeLog is the log of sanitize operations (Base 2.0 figure 234).
type SanitizeLog struct {
	Progress uint16 // 65,536ths, of one that is under way
	Status   SanitizeStatus
	Passes   uint8 // that EraseOverwrite has completed
	Command  Sanitize
}

// AppendTo appends the page. Nobody knows how long an operation will take.
func (l *SanitizeLog) AppendTo(b []byte) []byte {
	const idle, unknown = 0xffff, 0xffffffff
	start := len(b)
	progress := l.Progress
	if l.Status != SanitizeUnderWay {
		progress = idle
	}
	b = le.AppendUint16(b, progress)
	b = le.AppendUint16(b, uint16(l.Status)|uint16(l.Passes)<<3)
	b = le.AppendUint32(b, uint32(l.Command))
	for range 6 { // estimates
		b = le.AppendUint32(b, unknown)
	}
	return append(b, make([]byte, start+SanitizeLogLen-len(b))...)
}
