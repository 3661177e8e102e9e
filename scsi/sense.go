package scsi

import "encoding/binary"

// Sense is why a command failed (SPC-4 §4.5). The zero value is "no sense".
type Sense struct {
	Key  uint8  // sense key
	Code uint16 // additional sense code and qualifier, 0xAAQQ

	// Info is the INFORMATION field: an LBA, or the offset of a miscompare in bytes.
	Info      uint64
	InfoValid bool

	// Field, with FieldValid, points at the offending byte of the CDB or, with InData, of
	// the parameter list (SPC-4 §4.5.2.4.2).
	Field      uint16
	FieldValid bool
	InData     bool

	// Progress, with InProgress, is how much of an operation is done, in 65,536ths (SPC-4
	// §4.5.2.4.4).
	Progress   uint16
	InProgress bool
}

// Sense keys (SPC-4 table 48).
const (
	keyNoSense        = 0x0
	keyNotReady       = 0x2
	keyMediumError    = 0x3
	keyHardwareError  = 0x4
	keyIllegalRequest = 0x5
	keyUnitAttention  = 0x6
	keyDataProtect    = 0x7
	keyCopyAborted    = 0xa
	keyAbortedCommand = 0xb
	keyMiscompare     = 0xe
)

// The sense data that commands answer with.
var (
	senseInvalidOpcode  = Sense{Key: keyIllegalRequest, Code: 0x2000}
	senseLBAOutOfRange  = Sense{Key: keyIllegalRequest, Code: 0x2100}
	senseNoLUN          = Sense{Key: keyIllegalRequest, Code: 0x2500}
	senseParameterLen   = Sense{Key: keyIllegalRequest, Code: 0x1a00}
	senseInvalidIU      = Sense{Key: keyIllegalRequest, Code: 0x0e03}
	senseNoSaving       = Sense{Key: keyIllegalRequest, Code: 0x3900}
	senseWriteProtected = Sense{Key: keyDataProtect, Code: 0x2700}
	senseTransition     = Sense{Key: keyNotReady, Code: 0x040a} // the next attempt meets the access state
	senseNoMedium       = Sense{Key: keyNotReady, Code: 0x3a00}
	senseNoSpace        = Sense{Key: keyDataProtect, Code: 0x2707}
	senseInternal       = Sense{Key: keyHardwareError, Code: 0x4400}
	senseNoResources    = Sense{Key: keyIllegalRequest, Code: 0x5503} // INSUFFICIENT RESOURCES
)

// invalidField says that the CDB field at byte off is not acceptable.
func invalidField(off int) Sense {
	return Sense{Key: keyIllegalRequest, Code: 0x2400, Field: uint16(off), FieldValid: true}
}

// invalidParameter says that the parameter list field at byte off is not acceptable.
func invalidParameter(off int) Sense {
	return Sense{Key: keyIllegalRequest, Code: 0x2600, Field: uint16(off), FieldValid: true, InData: true}
}

// maxSense is the length of the longest sense data that AppendTo makes: descriptor format
// with an information and a sense key specific descriptor.
const maxSense = 8 + 12 + 8

// AppendTo appends the sense data in fixed format (SPC-4 §4.5.3, 18 bytes) or in descriptor
// format (§4.5.2, 8 to 28 bytes) to b and returns the extended slice. An Info that does not
// fit into the four bytes of the fixed format is left out there.
func (s Sense) AppendTo(b []byte, descriptor bool) []byte {
	if descriptor {
		return s.appendDescriptors(b)
	}
	var f [18]byte
	f[0] = 0x70
	f[2] = s.Key
	if s.InfoValid && s.Info>>32 == 0 {
		f[0] |= 0x80
		binary.BigEndian.PutUint32(f[3:], uint32(s.Info))
	}
	f[7] = 18 - 8
	binary.BigEndian.PutUint16(f[12:], s.Code)
	if s.specific() {
		s.putSpecific(f[15:])
	}
	return append(b, f[:]...)
}

func (s Sense) appendDescriptors(b []byte) []byte {
	var f [maxSense]byte
	f[0] = 0x72
	f[1] = s.Key
	binary.BigEndian.PutUint16(f[2:], s.Code)
	n := 8
	if s.InfoValid {
		f[n], f[n+1], f[n+2] = 0x00, 0x0a, 0x80
		binary.BigEndian.PutUint64(f[n+4:], s.Info)
		n += 12
	}
	if s.specific() {
		f[n], f[n+1] = 0x02, 0x06
		s.putSpecific(f[n+4:])
		n += 8
	}
	f[7] = byte(n - 8)
	return append(b, f[:n]...)
}

// specific reports whether there is something to say in the sense key specific bytes.
func (s Sense) specific() bool { return s.FieldValid || s.InProgress }

// putSpecific fills the three sense key specific bytes: SKSV and the progress, or SKSV, C/D and
// the field pointer.
func (s Sense) putSpecific(b []byte) {
	b[0] = 0x80
	if s.InProgress {
		binary.BigEndian.PutUint16(b[1:], s.Progress)
		return
	}
	if !s.InData {
		b[0] |= 0x40
	}
	binary.BigEndian.PutUint16(b[1:], s.Field)
}

// NotServed reports whether a task has ended because another process serves the logical unit now, or none: the access state of its
// target port is in transition, standby or unavailable (SPC-4 table 44, ASC 04h).
func (t *Task) NotServed() bool {
	if t.Status != CheckCondition || len(t.Sense) < 8 {
		return false
	}
	key, code := t.Sense[1], t.Sense[2:]
	if t.Sense[0]&0x7f == 0x70 && len(t.Sense) >= 14 {
		key, code = t.Sense[2], t.Sense[12:]
	}
	return key&0xf == keyNotReady && code[0] == 0x04 && code[1] >= 0x0a && code[1] <= 0x0c
}
