package scsi

import (
	"encoding/binary"
	"slices"
)

// PERSISTENT RESERVE OUT, SPC-4 §6.16.

// Service actions.
const (
	proutRegister = iota
	proutReserve
	proutRelease
	proutClear
	proutPreempt
	proutPreemptAndAbort
	proutRegisterAndIgnore
	proutRegisterAndMove
)

const (
	proutListLen = 24   // of all but REGISTER with SPEC_I_PT and REGISTER AND MOVE
	proutListMax = 8192 // with TransportIDs
	// maxRegistrants bounds the registrations of a logical unit, which outlive their sessions: those
	// of a large cluster, on every path.
	maxRegistrants = 4096
)

var senseNoRegistrations = Sense{Key: keyIllegalRequest, Code: 0x5504} // INSUFFICIENT REGISTRATION RESOURCES

// persistentReserveOut pulls the parameter list.
func (t *Task) persistentReserveOut() Next {
	action := t.CDB[1] & 0x1f
	n := int64(binary.BigEndian.Uint32(t.CDB[5:]))
	switch {
	case t.CDB[2]>>4 != 0 && reserves(action): // the scope: only LU_SCOPE is left in SPC-4
		return t.check(invalidField(2))
	case reserves(action) && !reservationType(t.CDB[2]&0x0f).valid():
		return t.check(invalidField(2))
	case n < proutListLen || n > proutListMax:
		return t.check(senseParameterLen)
	}
	return t.takeParameters(n, (*Task).proutRun)
}

// reserves reports whether scope and type of the CDB matter to the service action.
func reserves(action byte) bool {
	return action == proutReserve || action == proutPreempt || action == proutPreemptAndAbort
}

// prout is a PERSISTENT RESERVE OUT under way. reservations.mu is held.
type prout struct {
	*reservations
	t      *Task
	self   *registrant // the registration of the nexus, or nil
	params []byte      // parameter list
	key    uint64      // RESERVATION KEY
	saKey  uint64      // SERVICE ACTION RESERVATION KEY
	want   reservationType
	abort  []*registrant // whose tasks are to be aborted
}

func (t *Task) proutRun() Next {
	r := &t.lu.reservations
	params := t.parameters()
	r.mu.Lock()
	before, was := r.generation, r.persist
	p := &prout{
		reservations: r, t: t, self: r.find(t.Nexus), params: params,
		key: binary.BigEndian.Uint64(params), saKey: binary.BigEndian.Uint64(params[8:]),
		want: reservationType(t.CDB[2] & 0x0f),
	}
	kind, holder := r.kind, r.holder
	next := p.run()
	changed := r.generation != before || r.kind != kind || r.holder != holder
	if changed {
		r.changed()
	}
	keep := changed && r.store != nil && (r.persist || was)
	r.mu.Unlock()
	if t.Status != Good || !keep && len(p.abort) == 0 {
		return next
	}
	return t.finishSaved(keep, p.abort)
}

// finishSaved makes a change of reservations or access states durable if keep says so, and aborts
// tasks of others, which have to finish, before the command is answered.
func (t *Task) finishSaved(keep bool, abort []*registrant) Next {
	lu := t.lu
	next := t.r.Park(nil, t.before((*Task).good))
	m := &manager{done: func(TMFResponse) { t.r.Grant() }}
	m.left.Store(1)
	lu.mu.Lock()
	for _, i := range lu.itls {
		if i != t.itl && slices.ContainsFunc(abort, func(x *registrant) bool { return x.is(i.nexus) }) {
			i.abortAll(m)
		}
	}
	lu.mu.Unlock()
	if !keep {
		m.finish()
		return next
	}
	go func() {
		if err := lu.reservations.save(); err != nil {
			lu.log.reservationsNotSaved(err)
			t.then = func(t *Task) Next { return t.check(senseInternal) }
		}
		m.finish()
	}()
	return next
}

func (p *prout) run() Next {
	t := p.t
	action := t.CDB[1] & 0x1f
	spec := p.params[20]&0x08 != 0
	if action != proutRegisterAndMove && (t.n != proutListLen && !(action == proutRegister && spec)) {
		return t.check(senseParameterLen)
	}
	if spec && (action == proutRegisterAndIgnore || action == proutRegister && p.self != nil) {
		return t.check(invalidParameter(20))
	}
	switch action {
	case proutRegister:
		return p.register(false)
	case proutRegisterAndIgnore:
		return p.register(true)
	}
	if p.self == nil || p.self.Key != p.key { // SPC-4 table 67
		return t.conflict()
	}
	switch action {
	case proutReserve:
		return p.reserve()
	case proutRelease:
		return p.releaseHeld()
	case proutClear:
		return p.clear()
	case proutRegisterAndMove:
		return p.move()
	}
	return p.preempt(action == proutPreemptAndAbort)
}

// register is SPC-4 §5.13.7 and §5.13.11.2.3.
func (p *prout) register(ignore bool) Next {
	t := p.t
	aptpl := p.params[20]&0x01 != 0
	switch {
	case p.self == nil && !ignore && p.key != 0, p.self != nil && !ignore && p.key != p.self.Key:
		return t.conflict()
	case aptpl && p.store == nil:
		return t.check(invalidParameter(20))
	case p.self == nil && p.saKey == 0:
		return t.good()
	}
	others, s, ok := p.transportIDs()
	if !ok {
		return t.check(s)
	}
	if p.self == nil && len(p.list)+(1+len(others))*len(p.ports()) > maxRegistrants {
		return t.check(senseNoRegistrations)
	}
	p.persist = aptpl
	p.generation++
	switch {
	case p.saKey == 0:
		p.remove(t.Nexus, p.ours())
	case p.self != nil:
		p.rekey()
	default:
		for _, name := range append(others, t.Nexus.initiatorPort) {
			for _, port := range p.ports() {
				p.add(name, port)
			}
		}
	}
	return t.good()
}

const allTargetPorts = 0x04 // ALL_TG_PT

// ports are the target ports that a registration is for, that of the command first.
func (p *prout) ports() []targetPort {
	n := p.t.Nexus
	ports := []targetPort{n.port}
	if p.params[20]&allTargetPorts != 0 {
		for _, x := range *n.target.ports.Load() {
			if x.name != n.port.name {
				ports = append(ports, x)
			}
		}
	}
	return ports
}

// ours tells the registrations that a registered nexus changes or gives up: its own, and with
// ALL_TG_PT those of its initiator port with the same key on other ports of the target.
func (p *prout) ours() func(*registrant) bool {
	ports := p.ports()
	return func(x *registrant) bool {
		return x == p.self || x.Initiator == p.self.Initiator && x.Key == p.self.Key &&
			slices.ContainsFunc(ports, func(port targetPort) bool { return port.name == x.Target })
	}
}

// rekey changes the key of those.
func (p *prout) rekey() {
	ours := p.ours()
	var list []*registrant
	for _, x := range p.list {
		if ours(x) {
			list = append(list, x)
		}
	}
	for _, x := range list { // all have been compared with the former key
		x.Key = p.saKey
	}
}

// add registers an initiator on a target port with the new key, unless it is.
func (p *prout) add(initiator string, port targetPort) *registrant {
	for _, x := range p.list {
		if x.Initiator == initiator && x.Target == port.name {
			x.Key = p.saKey
			return x
		}
	}
	x := &registrant{Initiator: initiator, Target: port.name, Port: port.relative, Key: p.saKey}
	p.list = append(p.list, x)
	return x
}

// transportIDs reads the list that SPEC_I_PT announces (SPC-4 §6.16.3). All of them are good,
// or none is registered.
func (p *prout) transportIDs() (names []string, s Sense, ok bool) {
	if p.params[20]&0x08 == 0 {
		return nil, Sense{}, true
	}
	if len(p.params) < 28 {
		return nil, senseParameterLen, false
	}
	rest := p.params[28:]
	if int(binary.BigEndian.Uint32(p.params[24:])) != len(rest) {
		return nil, senseParameterLen, false
	}
	for at := 28; len(rest) > 0; {
		name, n := parseTransportID(rest)
		if n == 0 {
			return nil, invalidParameter(at), false
		}
		names = append(names, name)
		rest, at = rest[n:], at+n
	}
	return names, Sense{}, true
}

// reserve is SPC-4 §5.13.9.
func (p *prout) reserve() Next {
	switch {
	case p.kind == 0:
		p.take(p.want)
	case !p.held(p.self) || p.kind != p.want:
		return p.t.conflict()
	}
	return p.t.good()
}

// take makes the nexus the holder.
func (p *prout) take(kind reservationType) {
	p.kind, p.holder = kind, nil
	if !kind.all() {
		p.holder = p.self
	}
}

// releaseHeld is SPC-4 §5.13.11.2.2.
func (p *prout) releaseHeld() Next {
	t := p.t
	switch {
	case !p.held(p.self):
		return t.good()
	case p.want != p.kind || t.CDB[2]>>4 != 0:
		return t.check(Sense{Key: keyIllegalRequest, Code: 0x2604}) // INVALID RELEASE OF PERSISTENT RESERVATION
	}
	if p.kind.registrants() {
		p.tell(uaReservationsReleased, p.list, t.Nexus)
	}
	p.release()
	return t.good()
}

// clear is SPC-4 §5.13.11.2.6.
func (p *prout) clear() Next {
	p.tell(uaReservationsPreempted, p.list, p.t.Nexus)
	p.list = nil
	p.release()
	p.generation++
	return p.t.good()
}

// preempt is SPC-4 §5.13.11.2.4 and .5.
func (p *prout) preempt(abort bool) Next {
	t, old := p.t, p.kind
	takes := old != 0 && !old.all() && p.saKey == p.holder.Key || old.all() && p.saKey == 0
	if p.saKey == 0 && !takes {
		return t.check(invalidParameter(8))
	}
	gone := func(x *registrant) bool { return x != p.self && (x.Key == p.saKey || p.saKey == 0) }
	if !takes && !slices.ContainsFunc(p.list, gone) && p.self.Key != p.saKey {
		return t.conflict()
	}
	if takes { // before its holder goes, so that it is not released
		p.take(p.want)
	}
	removed := p.remove(t.Nexus, gone)
	p.tell(uaRegistrationsPreempted, removed, t.Nexus)
	if takes && old != p.want {
		p.tell(uaReservationsReleased, p.list, t.Nexus)
	}
	if abort {
		p.abort = removed
	}
	p.generation++
	return t.good()
}

// move is SPC-4 §5.13.8.
func (p *prout) move() Next {
	t := p.t
	const header = 24
	if len(p.params) < header || int(binary.BigEndian.Uint32(p.params[20:])) != len(p.params)-header {
		return t.check(senseParameterLen)
	}
	name, n := parseTransportID(p.params[header:])
	relative := binary.BigEndian.Uint16(p.params[18:])
	ports := *t.Nexus.target.ports.Load()
	at := slices.IndexFunc(ports, func(x targetPort) bool { return x.relative == relative })
	aptpl, unregister := p.params[17]&0x01 != 0, p.params[17]&0x02 != 0
	switch {
	case p.kind.all() || !p.held(p.self):
		return t.conflict()
	case p.saKey == 0:
		return t.check(invalidParameter(8))
	case aptpl && p.store == nil:
		return t.check(invalidParameter(17))
	case at < 0:
		return t.check(invalidParameter(18))
	case n == 0 || name == p.self.Initiator && ports[at].name == p.self.Target:
		return t.check(invalidParameter(header))
	case len(p.list) >= maxRegistrants:
		return t.check(senseNoRegistrations)
	}
	p.persist = aptpl
	p.holder = p.add(name, ports[at])
	if unregister {
		p.remove(t.Nexus, func(x *registrant) bool { return x == p.self })
	}
	p.generation++
	return t.good()
}
