package text

import (
	"slices"
	"strconv"
	"strings"
)

// Params are the values that hold for a session and its connection (RFC 7143 §13). Lengths
// are in bytes, times in seconds.
type Params struct {
	MaxRecvDataSegmentLength uint32 // of the initiator: the most we send in one PDU
	MaxBurstLength           uint32
	FirstBurstLength         uint32
	MaxOutstandingR2T        uint32
	MaxConnections           uint32
	DefaultTime2Wait         uint32
	DefaultTime2Retain       uint32
	ErrorRecoveryLevel       uint32
	ISCSIProtocolLevel       uint32
	InitialR2T               bool
	ImmediateData            bool
	DataPDUInOrder           bool
	DataSequenceInOrder      bool
	HeaderDigest             bool // CRC32C
	DataDigest               bool // CRC32C
	TaskReporting            string

	// iSER (RFC 7145 §6).
	RDMAExtensions                 bool
	InitiatorRecvDataSegmentLength uint32 // the most the target sends in one PDU
	TargetRecvDataSegmentLength    uint32 // the most the initiator sends in one PDU
	MaxOutstandingUnexpectedPDUs   uint32 // of the initiator's receives; 0: no limit said
	MaxAHSLength                   uint32
	TaggedBufferForSolicitedOnly   bool
	ISERHelloRequired              bool
}

// Defaults are the values that hold for what is not negotiated.
func Defaults() Params {
	return Params{
		MaxRecvDataSegmentLength: 8192, MaxBurstLength: 262144, FirstBurstLength: 65536, MaxOutstandingR2T: 1,
		MaxConnections: 1, DefaultTime2Wait: 2, DefaultTime2Retain: 20, ISCSIProtocolLevel: 1,
		InitialR2T: true, ImmediateData: true, DataPDUInOrder: true, DataSequenceInOrder: true, TaskReporting: "RFC3720",
		InitiatorRecvDataSegmentLength: 8192, TargetRecvDataSegmentLength: 8192, MaxAHSLength: 256,
	}
}

// LongestOut returns the longest data segment of a PDU that the target sends. Over iSER InitiatorRecvDataSegmentLength bounds it
// (RFC 7145 §6.5), and so does MaxRecvDataSegmentLength: that has its default, which initiators have room for in discovery.
func (p *Params) LongestOut() uint32 {
	if p.RDMAExtensions {
		return min(p.MaxRecvDataSegmentLength, p.InitiatorRecvDataSegmentLength)
	}
	return p.MaxRecvDataSegmentLength
}

// Joining returns the values that hold for a further connection of a session with these ones of
// its leading connection, where p is what the further one has negotiated.
func (p *Params) Joining(session *Params) Params {
	joined := *session
	joined.MaxRecvDataSegmentLength, joined.HeaderDigest, joined.DataDigest = p.MaxRecvDataSegmentLength, p.HeaderDigest, p.DataDigest
	return joined
}

// Offer is what the target agrees to at most (or, where the result is the larger or the
// stricter value, at least). MaxRecvDataSegmentLength is the target's own.
type Offer struct {
	Params
	Digests []string // acceptable digests
	// RDMA says that the connection is one of RDMA. Without it the keys of iSER are not
	// understood.
	RDMA bool
}

// kind is how the result of a key comes about (RFC 7143 §6.2).
type kind uint8

const (
	declared kind = iota // the initiator states it; there is no answer
	least                // the smaller number
	greatest             // the larger number
	or                   // Yes if either says Yes
	and                  // Yes if both say Yes
	choice               // the first of the initiator's list that the target accepts
	marker               // obsolete (§13.25): markers are never used
)

// key is one row of the table of keys.
type key struct {
	kind     kind
	min, max uint32
	number   func(*Params) *uint32
	boolean  func(*Params) *bool
	session  bool // irrelevant in a discovery session
	accept   func(*Offer) []string
	chosen   func(*Params, string)
	// connection: each connection of a session has its own, and negotiates it.
	connection bool
	fullPhase  bool // may also come in the full feature phase
	rdma       bool // of iSER
}

var keys = map[string]key{
	"HeaderDigest": {kind: choice, connection: true, accept: digests, chosen: func(p *Params, v string) { p.HeaderDigest = v == "CRC32C" }},
	"DataDigest":   {kind: choice, connection: true, accept: digests, chosen: func(p *Params, v string) { p.DataDigest = v == "CRC32C" }},
	"TaskReporting": {
		kind: choice, session: true, accept: func(*Offer) []string { return []string{"RFC3720"} },
		chosen: func(p *Params, v string) { p.TaskReporting = v },
	},
	"MaxRecvDataSegmentLength": {
		kind: declared, min: 512, max: 1<<24 - 1, connection: true, fullPhase: true,
		number: func(p *Params) *uint32 { return &p.MaxRecvDataSegmentLength },
	},
	"MaxConnections":      {kind: least, min: 1, max: 65535, session: true, number: func(p *Params) *uint32 { return &p.MaxConnections }},
	"MaxBurstLength":      {kind: least, min: 512, max: 1<<24 - 1, session: true, number: func(p *Params) *uint32 { return &p.MaxBurstLength }},
	"FirstBurstLength":    {kind: least, min: 512, max: 1<<24 - 1, session: true, number: func(p *Params) *uint32 { return &p.FirstBurstLength }},
	"MaxOutstandingR2T":   {kind: least, min: 1, max: 65535, session: true, number: func(p *Params) *uint32 { return &p.MaxOutstandingR2T }},
	"DefaultTime2Wait":    {kind: greatest, max: 3600, number: func(p *Params) *uint32 { return &p.DefaultTime2Wait }},
	"DefaultTime2Retain":  {kind: least, max: 3600, number: func(p *Params) *uint32 { return &p.DefaultTime2Retain }},
	"ErrorRecoveryLevel":  {kind: least, max: 2, number: func(p *Params) *uint32 { return &p.ErrorRecoveryLevel }},
	"iSCSIProtocolLevel":  {kind: least, max: 31, session: true, number: func(p *Params) *uint32 { return &p.ISCSIProtocolLevel }},
	"InitialR2T":          {kind: or, session: true, boolean: func(p *Params) *bool { return &p.InitialR2T }},
	"ImmediateData":       {kind: and, session: true, boolean: func(p *Params) *bool { return &p.ImmediateData }},
	"DataPDUInOrder":      {kind: or, session: true, boolean: func(p *Params) *bool { return &p.DataPDUInOrder }},
	"DataSequenceInOrder": {kind: or, session: true, boolean: func(p *Params) *bool { return &p.DataSequenceInOrder }},
	"IFMarker":            {kind: marker},
	"OFMarker":            {kind: marker},
	"IFMarkInt":           {kind: marker},
	"OFMarkInt":           {kind: marker},

	"RDMAExtensions": {kind: and, session: true, rdma: true, boolean: func(p *Params) *bool { return &p.RDMAExtensions }},
	"InitiatorRecvDataSegmentLength": {
		kind: least, min: 512, max: 1<<24 - 1, session: true, rdma: true,
		number: func(p *Params) *uint32 { return &p.InitiatorRecvDataSegmentLength },
	},
	"TargetRecvDataSegmentLength": {
		kind: least, min: 512, max: 1<<24 - 1, session: true, rdma: true,
		number: func(p *Params) *uint32 { return &p.TargetRecvDataSegmentLength },
	},
	"MaxOutstandingUnexpectedPDUs": {
		kind: declared, max: 1<<32 - 1, session: true, rdma: true,
		number: func(p *Params) *uint32 { return &p.MaxOutstandingUnexpectedPDUs },
	},
	"MaxAHSLength": {
		kind: declared, max: 1<<32 - 1, session: true, rdma: true,
		number: func(p *Params) *uint32 { return &p.MaxAHSLength },
	},
	"TaggedBufferForSolicitedDataOnly": {
		kind: declared, session: true, rdma: true, boolean: func(p *Params) *bool { return &p.TaggedBufferForSolicitedOnly },
	},
	"iSERHelloRequired": {
		kind: declared, session: true, rdma: true, boolean: func(p *Params) *bool { return &p.ISERHelloRequired },
	},
}

func digests(o *Offer) []string { return o.Digests }

// Answers that are not values (RFC 7143 §6.2).
const (
	NotUnderstood = "NotUnderstood"
	Irrelevant    = "Irrelevant"
	Reject        = "Reject"
)

// Scope is what kind of login, or session, a key comes in.
type Scope uint8

// Scopes.
const (
	Leading   Scope = iota // the first connection of a normal session
	Joining                // a further one: what holds for the session is settled (RFC 7143 §13, "leading only")
	Discovery              // a discovery session
)

// Negotiate takes one key of an initiator's, changes p accordingly and returns the answer;
// answered false: there is none to give. A value out of range is answered with Reject and
// changes nothing.
func Negotiate(p *Params, o *Offer, scope Scope, name, value string) (answer string, answered bool) {
	k, known := keys[name]
	switch {
	case !known || k.rdma && !o.RDMA:
		return NotUnderstood, !isAnswer(value)
	case k.kind == marker:
		if strings.HasSuffix(name, "Int") {
			return Irrelevant, true
		}
		return "No", true
	case k.session && scope == Discovery, !k.connection && scope == Joining:
		return Irrelevant, true
	case k.number != nil:
		return k.negotiateNumber(p, o, value)
	case k.boolean != nil:
		return k.negotiateBool(p, o, value)
	}
	for v := range strings.SplitSeq(value, ",") {
		if slices.Contains(k.accept(o), v) {
			k.chosen(p, v)
			return v, true
		}
	}
	return Reject, true
}

// isAnswer tells answers from offers, so that an answer to nothing is not answered in turn.
func isAnswer(value string) bool {
	return value == NotUnderstood || value == Irrelevant || value == Reject
}

func (k *key) negotiateNumber(p *Params, o *Offer, value string) (string, bool) {
	n, ok := Number(value)
	if !ok || n < k.min || n > k.max {
		return Reject, true
	}
	switch k.kind {
	case least:
		n = min(n, *k.number(&o.Params))
	case greatest:
		n = max(n, *k.number(&o.Params))
	}
	*k.number(p) = n
	return strconv.FormatUint(uint64(n), 10), k.kind != declared
}

func (k *key) negotiateBool(p *Params, o *Offer, value string) (string, bool) {
	b, ok := Bool(value)
	if !ok {
		return Reject, true
	}
	ours := *k.boolean(&o.Params)
	switch k.kind {
	case or:
		b = b || ours
	case and:
		b = b && ours
	}
	*k.boolean(p) = b
	return FormatBool(b), k.kind != declared
}

// InFullFeaturePhase reports whether a key may be negotiated after the login.
func InFullFeaturePhase(name string) bool { return keys[name].fullPhase }

// Known reports whether a key is one of the table's.
func Known(name string) bool { _, ok := keys[name]; return ok }
