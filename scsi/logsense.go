package scsi

import (
	"encoding/binary"

	"oneshot/backend"
)

// logPage is a row of the table of log pages.
type logPage struct {
	code byte
	// fill appends the log parameters, sorted by their codes.
	fill func(t *Task, b []byte) []byte
	when func(lu *LogicalUnit) bool // nil: every logical unit has the page
}

// logPages are the log pages, sorted by code. The page of supported pages is made of them.
var logPages = [...]logPage{
	{logProvisioning, (*Task).provisioningPage, (*LogicalUnit).thin},
	{logTemperature, (*Task).temperaturePage, nil},
	{logExceptions, (*Task).exceptionsPage, nil},
}

const (
	logSupported    = 0x00
	logProvisioning = 0x0c
	logTemperature  = 0x0d
	logExceptions   = 0x2f

	allSubpages = 0xff
)

// logSense is SPC-4 §6.6. All values are current ones.
func (t *Task) logSense() Next {
	const saveParameters, pcCumulative = 0x01, 0x40
	code, sub := t.CDB[2]&0x3f, t.CDB[3]
	switch {
	case t.CDB[1]&saveParameters != 0: // none can be saved
		return t.check(invalidField(1))
	case t.CDB[2]&0xc0 != pcCumulative:
		return t.check(invalidField(2))
	case sub != 0 && (code != logSupported || sub != allSubpages):
		return t.check(invalidField(3))
	}
	if next, waits := t.measure(code); waits {
		return next
	}
	body, ok := t.logPage(code, sub)
	if !ok {
		return t.check(invalidField(2))
	}
	if code != logSupported {
		if body, ok = logFrom(body, binary.BigEndian.Uint16(t.CDB[5:])); !ok {
			return t.check(invalidField(5))
		}
	}
	if sub != 0 {
		code |= 0x40 // SPF
	}
	page := append([]byte{code, sub, byte(len(body) >> 8), byte(len(body))}, body...)
	return t.reply(page, int(binary.BigEndian.Uint16(t.CDB[7:])))
}

// logPage is the body of a log page.
func (t *Task) logPage(code, sub byte) (body []byte, ok bool) {
	if code == logSupported {
		body = append(body, logSupported)
		if sub != 0 {
			body = append(body, 0, logSupported, allSubpages)
		}
	}
	for _, p := range logPages {
		switch {
		case p.when != nil && !p.when(t.lu):
		case code == logSupported && sub != 0:
			body = append(body, p.code, 0)
		case code == logSupported:
			body = append(body, p.code)
		case code == p.code:
			return p.fill(t, nil), true
		}
	}
	return body, code == logSupported
}

// logFrom leaves out the parameters before the one that the PARAMETER POINTER names; false:
// there is none so high.
func logFrom(body []byte, first uint16) ([]byte, bool) {
	for len(body) >= 4 && binary.BigEndian.Uint16(body) < first {
		body = body[4+int(body[3]):]
	}
	return body, len(body) > 0 || first == 0
}

// logParameter appends a log parameter of binary format (SPC-4 §7.3.2.2).
func logParameter(b []byte, code uint16, value ...byte) []byte {
	const binaryList = 0x03 // FORMAT AND LINKING
	b = append(b, byte(code>>8), byte(code), binaryList, byte(len(value)))
	return append(b, value...)
}

// temperaturePage is SPC-4 §7.3.21: a store has no thermometer.
func (*Task) temperaturePage(b []byte) []byte {
	const unknown = 0xff
	b = logParameter(b, 0, 0, unknown)
	return logParameter(b, 1, 0, unknown)
}

// usage is what a store tells of its space.
type usage struct {
	used, available int64
	err             error
}

// measure has a page wait for what the store tells of its space, which may be a file system that hangs.
func (t *Task) measure(code byte) (next Next, waits bool) {
	m, ok := backend.As[backend.Meter](t.lu.v.Store())
	if code != logProvisioning || !ok || t.measured != nil {
		return Done, false
	}
	u := new(usage)
	t.measured = u
	next = t.r.Park(nil, t.before((*Task).logSense))
	go func() { // the task waits for it
		u.used, u.available, u.err = m.Usage()
		t.r.Grant()
	}()
	return next, true
}

// provisioningPage is SBC-3 §6.4.4: the space that is left, and that which is used, in units
// of 2^thresholdExponent blocks. A store that does not know has an empty page.
func (t *Task) provisioningPage(b []byte) []byte {
	if t.measured == nil || t.measured.err != nil {
		return b
	}
	count := func(code uint16, bytes int64) {
		units := uint32(min(bytes>>(t.lu.blockShift+thresholdExponent), 0xffffffff))
		value := binary.BigEndian.AppendUint32(nil, units)
		b = logParameter(b, code, append(value, 0x01, 0, 0, 0)...) // SCOPE: this logical unit
	}
	count(1, t.measured.available)
	count(2, t.measured.used)
	return b
}

// thresholdExponent makes resource counts of units of 2,048 blocks fit into 32 bits.
const thresholdExponent = 11

// exceptionsPage is SPC-4 §7.3.8: nothing is wrong.
func (*Task) exceptionsPage(b []byte) []byte {
	return logParameter(b, 0, 0, 0, 0xff, 0)
}
