package login

import (
	"bytes"
	"strings"

	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// Exchange is the state of the text requests of one session in the full feature phase (RFC
// 7143 §11.10, §11.11). It is not safe for concurrent use.
type Exchange struct {
	cfg       *Config
	params    *Params
	discovery bool
	list      func(target string, all bool) Records
	// Private, if set, answers keys that are in no standard (X-…). False: it does not know
	// the key.
	Private func(key, value string) (answer string, ok bool)

	collected text.Collector
	busy      bool    // a sequence of requests or responses is under way
	ttt       uint32  // of it
	rest      []byte  // of the answer, still to be sent
	records   Records // what follows rest; nil: nothing does
	listing   bool    // the answer lists targets
}

// Records makes the answer to SendTargets bit by bit, so that a session keeps no list of thousands of
// targets: it appends the records of the next target to b. False: there was none.
type Records func(b []byte) ([]byte, bool)

// NewExchange returns the state of a session without text requests. list returns the
// records for SendTargets: of every target, or of the one that is named.
func NewExchange(cfg *Config, p *Params, discovery bool, list func(target string, all bool) Records) *Exchange {
	return &Exchange{cfg: cfg, params: p, discovery: discovery, list: list}
}

// Step answers one Text Request: with a Text Response, of which the caller sets the sequence
// numbers, or with a reason for a Reject (0: none).
func (x *Exchange) Step(req pdu.TextRequest, data []byte) (r pdu.TextResponseFields, answer []byte, reject pdu.RejectReason) {
	fresh := req.TTT() == pdu.ReservedTag
	switch {
	case fresh: // a new sequence takes the place of one that was left unfinished (§11.10.4)
		*x = Exchange{cfg: x.cfg, params: x.params, discovery: x.discovery, list: x.list, Private: x.Private, ttt: x.ttt}
	case !x.busy || req.TTT() != x.ttt:
		return r, nil, pdu.RejectInvalidPDUField
	}
	if req.Final() && req.Continue() {
		return r, nil, x.end(pdu.RejectProtocolError)
	}
	if len(x.rest) == 0 {
		pairs, err := x.collected.Add(data, req.Continue())
		if err != nil {
			return r, nil, x.end(pdu.RejectProtocolError)
		}
		if !req.Continue() {
			if reason := x.answer(pairs); reason != 0 {
				return r, nil, x.end(reason)
			}
		}
	}
	return x.respond(req)
}

// end forgets the sequence under way.
func (x *Exchange) end(reason pdu.RejectReason) pdu.RejectReason {
	x.busy, x.rest, x.records, x.collected = false, nil, nil, text.Collector{}
	return reason
}

// respond sends as much of the answer as one PDU holds.
func (x *Exchange) respond(req pdu.TextRequest) (r pdu.TextResponseFields, answer []byte, reject pdu.RejectReason) {
	most := min(int(x.params.LongestOut()), maxPiece)
	if x.listing && x.params.RDMAExtensions && !x.discovery {
		most = min(most, iserPiece)
	}
	for x.records != nil && len(x.rest) <= most {
		x.next()
	}
	n := min(len(x.rest), most)
	answer, x.rest = x.rest[:n], bytes.Clone(x.rest[n:]) // what is sent is not to be kept
	r = pdu.TextResponseFields{
		ITT: req.ITT(), TTT: pdu.ReservedTag, LUN: req.LUN(), DataSegmentLength: n, Continue: len(x.rest) > 0,
		Final: req.Final() && len(x.rest) == 0,
	}
	x.busy = !r.Final
	if x.busy {
		x.ttt++
		if x.ttt == pdu.ReservedTag {
			x.ttt = 0
		}
		r.TTT = x.ttt
	}
	return r, answer, 0
}

// next appends the records of the next target to the answer, and reports whether there was one.
func (x *Exchange) next() (ok bool) {
	if x.rest, ok = x.records(x.rest); !ok {
		x.records = nil
	}
	return ok
}

// maxPiece is the longest data segment of a Text Response, whatever the initiator would take.
const maxPiece = 256 << 10

// iserPiece is maxPiece for a list of targets over iSER in a normal session: the receives of libiscsi, which asks for one there,
// have no more room, and neither have those of ib_iser (iser.md §3).
const iserPiece = 128

// answer negotiates the keys of a complete text.
func (x *Exchange) answer(pairs []text.Pair) pdu.RejectReason {
	if len(pairs) > maxKeys {
		return pdu.RejectProtocolError
	}
	for i, p := range pairs {
		if _, twice := find(pairs[:i], p.Key); twice {
			// RFC 7143 §6.4. SendTargets, asked a thousand times in one text, would have an
			// answer of megabytes.
			return pdu.RejectProtocolError
		}
		switch {
		case p.Key == "SendTargets":
			if reason := x.sendTargets(p.Value); reason != 0 {
				return reason
			}
		case text.InFullFeaturePhase(p.Key):
			scope := text.Leading
			if x.discovery {
				scope = text.Discovery
			}
			a, answered := text.Negotiate(x.params, &x.cfg.Offer, scope, p.Key, p.Value)
			if answered {
				x.rest = text.Append(x.rest, p.Key, a)
			}
		case p.Key == "InitiatorAlias" || p.Key == "InitiatorName":
			// declared
		case text.Known(p.Key):
			x.rest = text.Append(x.rest, p.Key, text.Reject) // the login's only
		default:
			x.rest = text.Append(x.rest, p.Key, x.private(p))
		}
	}
	return 0
}

func (x *Exchange) private(p text.Pair) string {
	if x.Private != nil && strings.HasPrefix(p.Key, "X-") {
		if a, ok := x.Private(p.Key, p.Value); ok {
			return a
		}
	}
	return text.NotUnderstood
}

// sendTargets lists targets (RFC 7143 appendix C). In a normal session All is answered like
// the empty value, with the session's own target: libiscsi asks so.
func (x *Exchange) sendTargets(value string) pdu.RejectReason {
	all := value == "All"
	if value == "" && x.discovery {
		return pdu.RejectProtocolError // "the session's target" has no meaning there
	}
	var name string
	if !all {
		name = value
	}
	x.records, x.listing = x.list(name, all && x.discovery), true
	if !x.next() && !all && value != "" && !text.IsName(value) {
		return pdu.RejectInvalidPDUField
	}
	return 0
}
