package scsi

import (
	"encoding/binary"
	"strings"
)

// PERSISTENT RESERVE IN, SPC-4 §6.15.

func (t *Task) prinAlloc() int { return int(binary.BigEndian.Uint16(t.CDB[7:])) }

// readKeys is SPC-4 §6.15.2.
func (t *Task) readKeys() Next {
	r := &t.lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	data := r.header(8 * len(r.list))
	for _, x := range r.list {
		data = binary.BigEndian.AppendUint64(data, x.Key)
	}
	return t.reply(data, t.prinAlloc())
}

// header is PRGENERATION and ADDITIONAL LENGTH. mu is held.
func (r *reservations) header(n int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, r.generation), uint32(n))
}

// readReservation is SPC-4 §6.15.3.
func (t *Task) readReservation() Next {
	r := &t.lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind == 0 {
		return t.reply(r.header(0), t.prinAlloc())
	}
	data := append(r.header(16), make([]byte, 16)...)
	if r.holder != nil { // the key is zero if all registrants hold it
		binary.BigEndian.PutUint64(data[8:], r.holder.Key)
	}
	data[21] = byte(r.kind)
	return t.reply(data, t.prinAlloc())
}

// reportCapabilities is SPC-4 §6.15.4.
func (t *Task) reportCapabilities() Next {
	r := &t.lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	data := []byte{0, 8, 0x0c, 0x80, 0xea, 0x01, 0, 0} // SIP_C, ATP_C; TMV; all types
	if r.store != nil {
		data[2] |= 0x01 // PTPL_C
	}
	if r.persist {
		data[3] |= 0x01 // PTPL_A
	}
	return t.reply(data, t.prinAlloc())
}

// readFullStatus is SPC-4 §6.15.5.
func (t *Task) readFullStatus() Next {
	r := &t.lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []byte
	for _, x := range r.list {
		d := make([]byte, 24)
		binary.BigEndian.PutUint64(d, x.Key)
		if r.held(x) {
			d[12] |= 0x01 // R_HOLDER
			d[13] = byte(r.kind)
		}
		binary.BigEndian.PutUint16(d[18:], x.Port)
		d = appendTransportID(d, x.Initiator)
		binary.BigEndian.PutUint32(d[20:], uint32(len(d)-24))
		list = append(list, d...)
	}
	return t.reply(append(r.header(len(list)), list...), t.prinAlloc())
}

// A TransportID of iSCSI (SPC-4 §7.6.4.6): format 00b holds the name of an initiator device,
// 01b that of an initiator port.
const (
	transportISCSI = 0x05
	transportPort  = 0x40
)

func appendTransportID(b []byte, initiator string) []byte {
	format := byte(transportISCSI)
	if strings.Contains(initiator, ",i,") {
		format |= transportPort
	}
	n := max(20, (len(initiator)+1+3)&^3)
	b = append(b, format, 0, byte(n>>8), byte(n))
	b = append(b, initiator...)
	return append(b, make([]byte, n-len(initiator))...)
}

// parseTransportID reads the TransportID at the start of b, and returns its length; 0: it is
// none that this target can have a nexus with.
func parseTransportID(b []byte) (initiator string, n int) {
	if len(b) < 4 {
		return "", 0
	}
	n = 4 + int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b) || n%4 != 0 || n < 24 {
		return "", 0
	}
	name, _, terminated := strings.Cut(string(b[4:n]), "\x00")
	device, port, isPort := strings.Cut(name, ",i,")
	switch {
	case !terminated || device == "":
		return "", 0
	case b[0] == transportISCSI && !isPort:
		return strings.ToLower(name), n
	case b[0] == transportISCSI|transportPort && isPort && port != "":
		return strings.ToLower(name), n
	}
	return "", 0
}
