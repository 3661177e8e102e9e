package scsi

import (
	"encoding/binary"
	"slices"

	"oneshot/volume/access"
)

// PERSISTENT RESERVE OUT, SPC-4 §6.16.

const (
	proutListLen = 24   // of all but REGISTER with SPEC_I_PT and REGISTER AND MOVE
	proutListMax = 8192 // with TransportIDs
)

var (
	senseNoRegistrations = Sense{Key: keyIllegalRequest, Code: 0x5504} // INSUFFICIENT REGISTRATION RESOURCES
	senseInvalidRelease  = Sense{Key: keyIllegalRequest, Code: 0x2604} // INVALID RELEASE OF PERSISTENT RESERVATION
)

// persistentReserveOut pulls the parameter list.
func (t *Task) persistentReserveOut() Next {
	op := t.proutOp()
	n := int64(binary.BigEndian.Uint32(t.CDB[5:]))
	switch {
	case t.CDB[2]>>4 != 0 && reserves(op): // the scope: only LU_SCOPE is left in SPC-4
		return t.check(invalidField(2))
	case reserves(op) && !access.Kind(t.CDB[2]&0x0f).Valid():
		return t.check(invalidField(2))
	case n < proutListLen || n > proutListMax:
		return t.check(senseParameterLen)
	}
	return t.takeParameters(n, (*Task).proutRun)
}

// proutOp is the service action, which the table numbers alike.
func (t *Task) proutOp() access.Op { return access.Op(t.CDB[1] & 0x1f) }

// reserves reports whether scope and type of the CDB matter to the service action.
func reserves(op access.Op) bool {
	return op == access.Reserve || op == access.Preempt || op == access.PreemptAndAbort
}

func (t *Task) proutRun() Next {
	params := t.parameters()
	c := &access.Change{
		Op: t.proutOp(), Key: binary.BigEndian.Uint64(params), NewKey: binary.BigEndian.Uint64(params[8:]),
		Kind: access.Kind(t.CDB[2] & 0x0f), Whole: t.CDB[2]>>4 == 0,
	}
	const specIPT, aptpl = 0x08, 0x01
	c.Besides = params[20]&specIPT != 0
	if c.Op == access.RegisterAndMove {
		return t.move(c)
	}
	if t.n != proutListLen && !(c.Op == access.Register && c.Besides) {
		return t.check(senseParameterLen)
	}
	c.Persist = params[20]&aptpl != 0
	c.Ports = t.proutPorts(params)
	if c.Op == access.Register && c.Besides {
		c.Others, t.badList = transportIDs(params)
		c.Bad = t.badList != Sense{}
	}
	return t.change(c, (*Task).proutEnd)
}

// proutEnd answers as the change has ended.
func (t *Task) proutEnd(c *access.Change) Next {
	aptplAt := 20
	if c.Op == access.RegisterAndMove {
		aptplAt = 17
	}
	switch c.Result {
	case access.Done:
		return t.good()
	case access.WrongRelease:
		return t.check(senseInvalidRelease)
	case access.NoKey:
		return t.check(invalidParameter(8))
	case access.CannotKeep:
		return t.check(invalidParameter(aptplAt))
	case access.BadOthers:
		return t.check(invalidParameter(20))
	case access.BadList:
		return t.check(t.badList)
	case access.BadRequest:
		return t.check(senseParameterLen)
	case access.BadPort:
		return t.check(invalidParameter(18))
	case access.Full:
		return t.check(senseNoRegistrations)
	case access.NotKept:
		return t.notKept(c.Err)
	case access.NotNow:
		return t.notNow(c.Err)
	}
	return t.conflict()
}

const allTargetPorts = 0x04 // ALL_TG_PT

// proutPorts are the target ports that a registration is for, that of the command first.
func (t *Task) proutPorts(params []byte) []access.PortOf {
	n := t.Nexus
	ports := []access.PortOf{n.port.portOf()}
	if params[20]&allTargetPorts != 0 {
		for _, x := range *n.target.ports.Load() {
			if x.tag != n.port.tag {
				ports = append(ports, x.portOf())
			}
		}
	}
	return ports
}

// transportIDs reads the list that SPEC_I_PT announces (SPC-4 §6.16.3). All of them are good,
// or none is registered.
func transportIDs(params []byte) (list []Initiator, bad Sense) {
	if len(params) < 28 {
		return nil, senseParameterLen
	}
	rest := params[28:]
	if int(binary.BigEndian.Uint32(params[24:])) != len(rest) {
		return nil, senseParameterLen
	}
	for at := 28; len(rest) > 0; {
		i, n := parseTransportID(rest)
		if n == 0 {
			return nil, invalidParameter(at)
		}
		list = append(list, i)
		rest, at = rest[n:], at+n
	}
	return list, Sense{}
}

// move is REGISTER AND MOVE, SPC-4 §5.13.8.
func (t *Task) move(c *access.Change) Next {
	params := t.parameters()
	const header, unregister, aptpl = 24, 0x02, 0x01
	if int(binary.BigEndian.Uint32(params[20:])) != len(params)-header {
		// SPC-4 table 67: without a registration of its own, or with another key, it is a conflict.
		c.Malformed = true
	}
	who, n := parseTransportID(params[header:])
	relative := binary.BigEndian.Uint16(params[18:])
	ports := *t.Nexus.target.ports.Load()
	at := slices.IndexFunc(ports, func(x targetPort) bool { return x.relative == relative })
	c.Persist, c.Leave, c.Besides = params[17]&aptpl != 0, params[17]&unregister != 0, false
	c.NoPort, c.Bad, t.badList = at < 0, n == 0, invalidParameter(header)
	if at >= 0 {
		c.To, c.Relative = access.Holder{Initiator: who, Port: ports[at].port()}, relative
	}
	return t.change(c, (*Task).proutEnd)
}
