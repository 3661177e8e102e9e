package scsi

import (
	"bytes"
	"encoding/binary"
	"strings"

	"oneshot/volume/access"
)

// PERSISTENT RESERVE IN, SPC-4 §6.15.

func (t *Task) prinAlloc() int { return int(binary.BigEndian.Uint16(t.CDB[7:])) }

// look goes on with then when it is known which reservations are in force.
func (t *Task) look(then func(*Task, *access.State) Next) Next {
	return t.change(&access.Change{Op: access.Look}, func(t *Task, c *access.Change) Next {
		switch {
		case c.Result == access.NotNow:
			return t.notNow(c.Err)
		case t.lu.v.Access().Reserved(nil) != nil: // SPC-2 §5.5.1: whoever has done the RESERVE
			return t.conflict()
		}
		return then(t, &c.State)
	})
}

func (t *Task) readKeys() Next           { return t.look((*Task).keys) }
func (t *Task) readReservation() Next    { return t.look((*Task).reservation) }
func (t *Task) reportCapabilities() Next { return t.look((*Task).capabilities) }
func (t *Task) readFullStatus() Next     { return t.look((*Task).fullStatus) }

// keys is SPC-4 §6.15.2.
func (t *Task) keys(s *access.State) Next {
	total := 8 * len(s.Registrations)
	out, next := t.room(reservationHeaderLen+total, t.prinAlloc())
	out.put(reservationHeader(s, total))
	for i := range s.Registrations {
		if len(out) == 0 {
			break
		}
		out.putUint64(s.Registrations[i].Key)
	}
	return next
}

const reservationHeaderLen = 8

// reservationHeader is PRGENERATION and ADDITIONAL LENGTH.
func reservationHeader(s *access.State, n int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, s.Generation), uint32(n))
}

// reservation is SPC-4 §6.15.3.
func (t *Task) reservation(s *access.State) Next {
	if s.Kind == 0 {
		return t.reply(reservationHeader(s, 0), t.prinAlloc())
	}
	data := append(reservationHeader(s, 16), make([]byte, 16)...)
	if s.Holder >= 0 { // the key is zero if all registrants hold it
		binary.BigEndian.PutUint64(data[8:], s.Registrations[s.Holder].Key)
	}
	data[21] = byte(s.Kind)
	return t.reply(data, t.prinAlloc())
}

// capabilities is SPC-4 §6.15.4.
func (t *Task) capabilities(s *access.State) Next {
	data := []byte{0, 8, 0x0c, 0x80, 0xea, 0x01, 0, 0} // SIP_C, ATP_C; TMV; all types
	if t.lu.v.Access().Keeps() {
		data[2] |= 0x01 // PTPL_C
	}
	if s.Persist {
		data[3] |= 0x01 // PTPL_A
	}
	return t.reply(data, t.prinAlloc())
}

// fullStatus is SPC-4 §6.15.5.
func (t *Task) fullStatus(s *access.State) Next {
	total := 0
	for i := range s.Registrations {
		total += fullStatusLen + transportIDLen(s.Registrations[i].Initiator)
	}
	out, next := t.room(reservationHeaderLen+total, t.prinAlloc())
	out.put(reservationHeader(s, total))
	for i := range s.Registrations {
		if len(out) == 0 {
			break
		}
		out.put(appendFullStatus(make([]byte, 0, maxFullStatus), s, i))
	}
	return next
}

// appendFullStatus appends the full status descriptor of registration i.
func appendFullStatus(b []byte, s *access.State, i int) []byte {
	x := &s.Registrations[i]
	var d [fullStatusLen]byte
	binary.BigEndian.PutUint64(d[:], x.Key)
	if s.Held(i) {
		d[12] |= 0x01 // R_HOLDER
		d[13] = byte(s.Kind)
	}
	binary.BigEndian.PutUint16(d[18:], x.Relative)
	binary.BigEndian.PutUint32(d[20:], uint32(transportIDLen(x.Initiator)))
	return appendTransportID(append(b, d[:]...), x.Initiator)
}

const (
	fullStatusLen = 24 // a full status descriptor without its TransportID
	maxFullStatus = fullStatusLen + maxTransportID
)

// A TransportID of iSCSI (SPC-4 §7.6.4.6): format 00b holds the name of an initiator device,
// 01b that of an initiator port, which is the name, ",i,0x" and the ISID.
const (
	transportISCSI = 0x05
	transportPort  = 0x40
	isidSeparator  = ",i,0x"
	isidDigits     = 12

	maxISCSIName   = 223 // RFC 7143 §4.2.7.1
	maxTransportID = 4 + (maxISCSIName+len(isidSeparator)+isidDigits+1+3)&^3
)

// A host of NVMe has no TransportID. Its registration is reported with this name of an initiator device, which ends in the host
// identifier, and which no command can name.
const nvmeHostName = "iqn.2014-08.org.nvmexpress:"

// transportName is the name of the initiator device.
func transportName(i Initiator) string {
	if i.Protocol == access.NVMe {
		return nvmeHostName + i.Name
	}
	return i.Name
}

// transportIDLen is the length of what appendTransportID appends.
func transportIDLen(i Initiator) int {
	n := len(transportName(i))
	if i.Port != "" {
		n += len(isidSeparator) + len(i.Port)
	}
	return 4 + max(20, (n+1+3)&^3)
}

func appendTransportID(b []byte, i Initiator) []byte {
	format, n := byte(transportISCSI), transportIDLen(i)
	if i.Port != "" {
		format |= transportPort
	}
	end := len(b) + n
	b = append(b, format, 0, byte((n-4)>>8), byte(n-4))
	b = append(b, transportName(i)...)
	if i.Port != "" {
		b = append(append(b, isidSeparator...), i.Port...)
	}
	return append(b, make([]byte, end-len(b))...)
}

// parseTransportID reads the TransportID at the start of b, and returns its length; 0: it is
// none that this target can have a nexus with.
func parseTransportID(b []byte) (i Initiator, n int) {
	if len(b) < 4 {
		return i, 0
	}
	n = 4 + int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b) || n%4 != 0 || n < 24 {
		return i, 0
	}
	text, _, terminated := bytes.Cut(b[4:n], []byte{0}) // the name alone is kept, not its padding
	device, isid, isPort := strings.Cut(strings.ToLower(string(text)), isidSeparator)
	i = Initiator{Protocol: access.ISCSI, Name: device}
	switch {
	case !terminated || device == "" || len(device) > maxISCSIName || strings.Contains(device, ","), // no name has one (RFC 3722)
		strings.HasPrefix(device, nvmeHostName):
		return i, 0
	case b[0] == transportISCSI && !isPort:
		return i, n
	case b[0] == transportISCSI|transportPort && isPort && isHex(isid):
		i.Port = strings.Repeat("0", isidDigits-len(isid)) + isid
		return i, n
	}
	return i, 0
}

// isHex reports whether s is an ISID in hex digits, of lower case.
func isHex(s string) bool {
	return s != "" && len(s) <= isidDigits && strings.Trim(s, "0123456789abcdef") == ""
}
