// Package access says who may do what with a volume: registrations and reservations, access states
// of groups of target ports, and who is to be told when that changes. It knows no protocol's
// commands: holders are values that are compared field by field.
package access

import "encoding/hex"

// Protocol is the protocol of a transport, numbered as in SPC-4 §7.6.1, which has numbers of four bits.
type Protocol uint8

// Protocols.
const (
	ISCSI Protocol = 0x5  // initiators with iSCSI names, whatever carries it
	NVMe  Protocol = 0x10 // hosts of NVM Express; none of SCSI
)

// Initiator is an initiator port, or an initiator with all of its ports; or a host of NVMe, which has no ports.
type Initiator struct {
	Protocol Protocol
	Name     string // iSCSI: its name, in lower case; NVMe: the host identifier, 32 hex digits in lower case
	Port     string // iSCSI: the ISID, 12 hex digits in lower case; empty: every port
}

// Host is a host of NVMe. All controllers with one host identifier are one host.
func Host(id [16]byte) Initiator { return Initiator{Protocol: NVMe, Name: hex.EncodeToString(id[:])} }

// HostID is the host identifier of a host of NVMe. False: i is none.
func (i Initiator) HostID() (id [16]byte, ok bool) {
	if i.Protocol != NVMe || len(i.Name) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(i.Name))
	return id, err == nil
}

// covers reports whether o is i, or one of its ports.
func (i Initiator) covers(o Initiator) bool {
	return i == o || i.Port == "" && i.Protocol == o.Protocol && i.Name == o.Name
}

// Port is a target port: a portal group of a target, or of a subsystem. The zero value stands for every port: hosts of
// NVMe register whatever way they come.
type Port struct {
	Target string // name of the target, or of the subsystem
	Group  uint16 // tag of the portal group
}

// covers reports whether o is p, or p stands for every port.
func (p Port) covers(o Port) bool { return p == o || p == Port{} }

// Holder is who reaches a volume, and by which way: what registers and reserves.
type Holder struct {
	Initiator Initiator
	Port      Port
}

// is reports whether h is o, or another way by which the same host of NVMe comes.
func (h Holder) is(o Holder) bool {
	return h == o || h.Initiator.Protocol == NVMe && h.Initiator == o.Initiator
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
