// Package login is the target's side of the iSCSI login (RFC 7143 §6.3, §11.12, §11.13) and
// of the text requests after it (§11.10, §11.11), as step functions: a request goes in, its
// response comes out. Sockets, timers and sessions are the caller's.
//
//	           ┌── T=0 ──┐          ┌── T=0 ──┐
//	           ▼         │          ▼         │
//	start ─► SecurityNegotiation ─► LoginOperationalNegotiation ─► FullFeaturePhase
//	  │            │                    ▲                              ▲
//	  └────────────┼────────────────────┘                              │
//	               └───────────────────────────────────────────────────┘
package login

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// Params are the negotiated values.
type Params = text.Params

// Config is what a target offers to everybody.
type Config struct {
	Offer text.Offer
}

// DefaultConfig returns the offers that suit a target on a fast network.
func DefaultConfig() Config {
	o := text.Offer{Params: text.Defaults(), Digests: []string{"None", "CRC32C"}}
	o.MaxRecvDataSegmentLength = 256 << 10
	o.MaxBurstLength = 1 << 20
	o.FirstBurstLength = 256 << 10
	o.MaxOutstandingR2T = 16
	o.InitialR2T = false
	o.MaxConnections = 8
	o.DefaultTime2Wait, o.DefaultTime2Retain = 0, 0 // error recovery level 0 keeps nothing (§7.1.5), so nobody has to wait; the larger number counts
	o.ISCSIProtocolLevel = 2                        // the task management functions of RFC 7144
	return Config{Offer: o}
}

// RDMAConfig returns the offers for connections over RDMA, on which a PDU fits into a receive
// of the RFC's smallest size, data-out comes by RDMA Reads or with its command, and the
// transport has a checksum of its own.
func RDMAConfig() Config {
	o := text.Offer{Params: text.Defaults(), Digests: []string{"None"}, RDMA: true}
	o.MaxRecvDataSegmentLength = rdmaSegment
	o.InitiatorRecvDataSegmentLength, o.TargetRecvDataSegmentLength = 256<<10, rdmaSegment
	o.MaxBurstLength = 1<<24 - 512
	o.FirstBurstLength = rdmaSegment
	o.DefaultTime2Wait, o.DefaultTime2Retain = 0, 0
	o.ISCSIProtocolLevel = 2
	o.RDMAExtensions = true
	return Config{Offer: o}
}

// rdmaSegment is the longest data segment that a target over RDMA takes.
const rdmaSegment = 8192

// Target is what the login has to know of the target that an initiator asks for.
type Target struct {
	Name, Alias  string
	TPGT         uint16
	CHAP, Mutual *Credentials // nil: not asked
	// Moved, with the statuses that say that the target has moved, is where to: host:port.
	Moved string
}

// Directory finds targets.
type Directory interface {
	// Find returns the target called name if initiator may use it, and otherwise the status
	// with which the login fails. With LoginTargetMoved… there is a target, too.
	Find(name, initiator string) (*Target, pdu.LoginStatus)
	// Discovery returns a target that stands for discovery sessions: only its credentials
	// count.
	Discovery() *Target
}

// State is what a step of the login has led to.
type State uint8

// States of the login.
const (
	Continue    State = iota // more requests are to come
	Established              // the response, once sent, begins the full feature phase
	Failed                   // the connection closes after the response
)

// Outcome is the answer to one request. Of Response the caller sets TSIH (Established) and
// the sequence numbers.
type Outcome struct {
	State    State
	Response pdu.LoginResponseFields
	Data     []byte
	Err      error // Failed: why, for the log
}

// Keep returns a copy that outlives the login's next step.
func (o *Outcome) Keep() Outcome {
	kept := *o
	kept.Data = slices.Clone(o.Data)
	return kept
}

// Login is the state of one login. It is not safe for concurrent use.
type Login struct {
	cfg  *Config
	dir  Directory
	rand io.Reader

	begun     bool
	stage     pdu.Stage
	isid      pdu.ISID
	tsih      uint16
	cid       uint16
	cmdSN     serial.SN
	named     bool // names have been looked at
	initiator string
	target    string
	normal    bool // session type; true by default
	found     *Target
	declared  bool // our MaxRecvDataSegmentLength has been sent
	auth      auth
	params    Params
	requests  int
	taken     int               // bytes of text in them
	seen      map[string]string // keys that came, with their values
	text      text.Collector
	out       []byte
}

// New returns the state of a login that has yet to begin. rand is where challenges come
// from.
func New(cfg *Config, dir Directory, rand io.Reader) *Login {
	return &Login{cfg: cfg, dir: dir, rand: rand, normal: true, params: text.Defaults(), seen: make(map[string]string)}
}

// What the login has found out; final once it is established.

// Initiator returns the InitiatorName, or "".
func (l *Login) Initiator() string { return l.initiator }

// TargetName returns the TargetName in lower case, or "".
func (l *Login) TargetName() string { return l.target }

// Discovery reports whether the session is a discovery session.
func (l *Login) Discovery() bool { return !l.normal }

// ISID returns the initiator session identifier.
func (l *Login) ISID() pdu.ISID { return l.isid }

// TSIH returns the TSIH of the request: 0 for a new session.
func (l *Login) TSIH() uint16 { return l.tsih }

// CID returns the connection identifier.
func (l *Login) CID() uint16 { return l.cid }

// CmdSN returns the CmdSN of the first request, with which the session's commands begin.
func (l *Login) CmdSN() serial.SN { return l.cmdSN }

// Params returns the negotiated values.
func (l *Login) Params() *Params { return &l.params }

// MaxRecvDataSegmentLength returns what the target declares as its own. In a discovery session,
// which is about short texts and may need no secret, it is the default.
func (l *Login) MaxRecvDataSegmentLength() int {
	if !l.normal {
		return min(int(text.Defaults().MaxRecvDataSegmentLength), int(l.cfg.Offer.MaxRecvDataSegmentLength))
	}
	return int(l.cfg.Offer.MaxRecvDataSegmentLength)
}

// failure is an error with the status that the initiator gets.
type failure struct {
	status pdu.LoginStatus
	reason string
}

func (f *failure) Error() string { return f.reason }

func fail(s pdu.LoginStatus, format string, args ...any) *failure {
	return &failure{s, fmt.Sprintf(format, args...)}
}

// Step answers one Login Request.
func (l *Login) Step(req pdu.LoginRequest, data []byte) Outcome {
	l.out = nil
	transit, f := l.step(req, data)
	r := pdu.LoginResponseFields{CSG: req.CSG(), ISID: req.ISID(), TSIH: req.TSIH(), ITT: req.ITT()}
	if f != nil {
		r.Status = f.status
		if r.Status.Class() != Redirection {
			return Outcome{State: Failed, Response: r, Err: f}
		}
		r.DataSegmentLength = len(l.out)
		return Outcome{State: Failed, Response: r, Data: l.out, Err: f}
	}
	o := Outcome{Data: l.out}
	r.DataSegmentLength = len(l.out)
	if transit {
		r.Transit, r.NSG = true, req.NSG()
		l.stage = req.NSG()
		if l.stage == pdu.StageFullFeaturePhase {
			o.State = Established
		}
	}
	o.Response = r
	return o
}

// Redirection is the class of the statuses that tell an initiator where to go (RFC 7143 §11.13.5).
const Redirection = 1

func (l *Login) step(req pdu.LoginRequest, data []byte) (transit bool, f *failure) {
	if f := l.checkHeader(req); f != nil {
		return false, f
	}
	l.requests++
	l.taken += len(data)
	if l.requests > maxRequests || l.taken > maxText {
		return false, fail(pdu.LoginInitiatorError, "a login of more than %d requests or %d bytes of text", maxRequests, maxText)
	}
	pairs, err := l.text.Add(data, req.Continue())
	if err != nil {
		return false, fail(pdu.LoginInitiatorError, "%v", err)
	}
	if req.Continue() {
		return false, nil // RFC 7143 §6.2: an empty response asks for the rest
	}
	if f := l.take(pairs); f != nil {
		return false, f
	}
	if len(l.out) > maxAnswer {
		return false, fail(pdu.LoginInitiatorError, "the answer to its keys is longer than a login response can be")
	}
	if !req.Transit() {
		return false, nil
	}
	return l.mayLeave(req.NSG())
}

// What one login may take. Nobody knows yet who sends it, and what it has said is remembered until
// it is over. Four requests and 1 KiB are usual.
const (
	maxRequests = 64
	maxText     = 32 << 10
	maxKeys     = 128 // also in one text request; there are about forty in all standards
)

// maxAnswer is the longest data segment of a login response (RFC 7143 §6.3).
const maxAnswer = 8192

// checkHeader holds the header against the state (RFC 7143 §11.12).
func (l *Login) checkHeader(req pdu.LoginRequest) *failure {
	switch {
	case req.VersionMin() > 0:
		return fail(pdu.LoginUnsupportedVersion, "it speaks no version before %d; this target speaks 0", req.VersionMin())
	case req.Continue() && req.Transit():
		return fail(pdu.LoginInitiatorError, "C and T bits in one request")
	case req.CSG() != pdu.StageSecurityNegotiation && req.CSG() != pdu.StageLoginOperationalNegotiation:
		return fail(pdu.LoginInvalidRequest, "a request in stage %d", req.CSG())
	}
	if !l.begun {
		l.begun, l.stage = true, req.CSG()
		l.isid, l.tsih, l.cid, l.cmdSN = req.ISID(), req.TSIH(), req.CID(), req.CmdSN()
		return nil
	}
	switch {
	case req.CSG() != l.stage:
		return fail(pdu.LoginInvalidRequest, "a request of stage %d in stage %d", req.CSG(), l.stage)
	case req.ISID() != l.isid || req.CID() != l.cid || req.TSIH() != l.tsih:
		return fail(pdu.LoginInvalidRequest, "ISID, CID or TSIH changed during the login")
	}
	return nil
}

// take handles the keys of one complete text.
func (l *Login) take(pairs []text.Pair) *failure {
	for _, p := range pairs {
		before, again := l.seen[p.Key]
		if again && (before != p.Value || !slices.Contains(names, p.Key)) {
			// RFC 7143 §6.3: no key is negotiated twice. A name said again is no
			// negotiation: libiscsi and QEMU do so in each stage.
			return fail(pdu.LoginInitiatorError, "%s came twice", p.Key)
		}
		if !again && len(l.seen) == maxKeys {
			return fail(pdu.LoginInitiatorError, "a login of more than %d keys", maxKeys)
		}
		l.seen[p.Key] = p.Value
	}
	if f := l.takeNames(pairs); f != nil {
		return f
	}
	if l.stage == pdu.StageSecurityNegotiation {
		if f := l.auth.begin(l, pairs); f != nil {
			return f
		}
	}
	for _, p := range pairs {
		if f := l.answer(p); f != nil {
			return f
		}
	}
	if l.stage == pdu.StageSecurityNegotiation {
		return l.auth.step(l, pairs)
	}
	// RFC 7145 §6.2: with iSER the two …RecvDataSegmentLength of its own take its place.
	if !l.declared && !l.params.RDMAExtensions {
		l.declared = true
		l.put("MaxRecvDataSegmentLength", strconv.Itoa(l.MaxRecvDataSegmentLength()))
	}
	return nil
}

func (l *Login) put(key, value string) { l.out = text.Append(l.out, key, value) }

// takeNames looks at the keys that say who wants what (RFC 7143 §6.3, §13).
func (l *Login) takeNames(pairs []text.Pair) *failure {
	if l.named {
		return nil
	}
	l.named = true
	for _, p := range pairs {
		switch p.Key {
		case "InitiatorName":
			name, err := text.Name(p.Value)
			if err != nil && p.Value != "" {
				return fail(pdu.LoginInitiatorError, "InitiatorName: %v", err)
			}
			l.initiator = name
		case "TargetName":
			l.target = strings.ToLower(p.Value)
		case "SessionType":
			if p.Value != "Normal" && p.Value != "Discovery" {
				return fail(pdu.LoginSessionTypeUnsupported, "SessionType=%s", p.Value)
			}
			l.normal = p.Value == "Normal"
		}
	}
	switch {
	case l.initiator == "":
		return fail(pdu.LoginMissingParameter, "the first request has no InitiatorName")
	case l.normal && l.target == "":
		return fail(pdu.LoginMissingParameter, "the first request has no TargetName")
	case !l.normal:
		l.found = l.dir.Discovery()
	default:
		var status pdu.LoginStatus
		l.found, status = l.dir.Find(l.target, l.initiator)
		if status.Class() == Redirection {
			l.put("TargetAddress", l.found.Moved)
		}
		if status != pdu.LoginSuccess {
			return fail(status, "target %q: %v", l.target, whyNot(status))
		}
		if l.found.Alias != "" {
			l.put("TargetAlias", l.found.Alias)
		}
		// RFC 7143 §13.9: in the first response of the leading connection.
		l.put("TargetPortalGroupTag", strconv.Itoa(int(l.found.TPGT)))
	}
	if l.stage == pdu.StageLoginOperationalNegotiation && l.found.CHAP != nil {
		return fail(pdu.LoginAuthenticationFailure, "it skips authentication, which the target asks for")
	}
	return nil
}

// whyNot says for the log what a Directory means by a status.
func whyNot(s pdu.LoginStatus) string {
	switch s {
	case pdu.LoginNotFound:
		return "this portal leads to no target of that name"
	case pdu.LoginAuthorizationFailure:
		return "its initiators do not include this one"
	case pdu.LoginServiceUnavailable:
		return "it is being changed; initiators try again by themselves"
	}
	return s.String()
}

// names are the keys that say who wants what.
var names = []string{"InitiatorName", "InitiatorAlias", "TargetName", "SessionType"}

// securityKeys belong to the authentication.
var securityKeys = []string{"AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"}

// answer negotiates one key.
func (l *Login) answer(p text.Pair) *failure {
	if slices.Contains(names, p.Key) {
		return nil // declared
	}
	switch p.Key {
	case "SendTargets", "TargetAddress", "TargetAlias", "TargetPortalGroupTag":
		return fail(pdu.LoginInitiatorError, "%s has no place in a login request", p.Key)
	}
	if slices.Contains(securityKeys, p.Key) {
		if l.stage != pdu.StageSecurityNegotiation {
			return fail(pdu.LoginInitiatorError, "%s outside the security negotiation", p.Key)
		}
		return nil
	}
	answer, answered := text.Negotiate(&l.params, &l.cfg.Offer, l.scope(), p.Key, p.Value)
	if answered {
		l.put(p.Key, answer)
	}
	return nil
}

// scope says which keys have a meaning.
func (l *Login) scope() text.Scope {
	switch {
	case !l.normal:
		return text.Discovery
	case l.tsih != 0:
		return text.Joining
	}
	return text.Leading
}

// mayLeave decides on a wish to go on to the next stage.
func (l *Login) mayLeave(to pdu.Stage) (bool, *failure) {
	switch {
	case to != pdu.StageLoginOperationalNegotiation && to != pdu.StageFullFeaturePhase, to <= l.stage:
		return false, fail(pdu.LoginInvalidRequest, "it wants to go from stage %d to stage %d", l.stage, to)
	case l.stage == pdu.StageSecurityNegotiation && !l.auth.finished(l):
		if l.auth.idle() {
			return false, fail(pdu.LoginAuthenticationFailure, "it wants to leave the security negotiation without authentication")
		}
		return false, nil
	}
	if to == pdu.StageFullFeaturePhase && l.normal && l.params.FirstBurstLength > l.params.MaxBurstLength {
		if _, offered := l.seen["FirstBurstLength"]; offered {
			return false, fail(pdu.LoginInitiatorError, "FirstBurstLength %d is over MaxBurstLength %d (RFC 7143 §13.14)", l.params.FirstBurstLength, l.params.MaxBurstLength)
		}
		l.params.FirstBurstLength = l.params.MaxBurstLength // the default gives way
	}
	return true, nil
}
