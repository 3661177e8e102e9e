// Package access says who may do what with a volume: registrations and reservations, access states
// of groups of target ports, and who is to be told when that changes. It knows no protocol's
// commands: holders are values that are compared field by field.
package access

// Protocol is the protocol of a transport, numbered as in SPC-4 §7.6.1.
type Protocol uint8

// ISCSI is the protocol of initiators with iSCSI names, whatever carries it.
const ISCSI Protocol = 0x5

// Initiator is an initiator port, or an initiator with all of its ports.
type Initiator struct {
	Protocol Protocol
	Name     string // iSCSI: its name, in lower case
	Port     string // iSCSI: the ISID, 12 hex digits in lower case; empty: every port
}

// covers reports whether o is i, or one of its ports.
func (i Initiator) covers(o Initiator) bool {
	return i == o || i.Port == "" && i.Protocol == o.Protocol && i.Name == o.Name
}

// Port is a target port: a portal group of a target. The zero value stands for every port: in some
// protocols who registers does so whatever way it comes.
type Port struct {
	Target string // name of the target
	Group  uint16 // tag of the portal group
}

// covers reports whether o is p, or p stands for every port.
func (p Port) covers(o Port) bool { return p == o || p == Port{} }

// Holder is who reaches a volume, and by which way: what registers and reserves.
type Holder struct {
	Initiator Initiator
	Port      Port
}

// Registration is a registered holder. It outlives the session.
type Registration struct {
	Holder          // with an initiator that may stand for all of its ports, and a port for all ports
	Relative uint16 // relative target port identifier
	Key      uint64
}

// Of reports whether h is registered by r.
func (r *Registration) Of(h Holder) bool {
	return r.Port.covers(h.Port) && r.Initiator.covers(h.Initiator)
}
