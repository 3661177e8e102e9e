package nvmf

import (
	"math"

	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// features are those of a controller that hold a value. What they say changes nothing here, except events.
type features struct {
	arbitration uint32
	atomicity   uint32
	events      uint32 // that are enabled
	temperature [2]uint16
	behavior    [3]byte // of the host: ACRE, ETDAS, LBAFEE
}

// Bits of features.
const (
	bitDULBE  = 1 << 16                                                       // errors of deallocated blocks
	knownAERs = nvme.OAESNamespace | nvme.OAESANA | nvme.OAESDiscovery | 0xff // the last: SMART
)

// over and under are what the composite temperature is held against.
func newFeatures() features { return features{temperature: [2]uint16{0xffff, 0}} }

// isNamespaceFeature reports whether a feature belongs to a namespace.
func isNamespaceFeature(f nvme.FID) bool {
	return f == nvme.FeatureErrorRecovery || f == nvme.FeatureNoticeMask || f == nvme.FeaturePersistence
}

// keepAliveUnit is KAS in milliseconds.
const keepAliveUnit = 1000

// discoveryFeatures are those that a discovery controller has.
func discoveryFeature(f nvme.FID) bool {
	return f == nvme.FeatureAsyncEvents || f == nvme.FeatureKeepAlive
}

// checkFeature refuses a feature that there is not, or not in that way; true: it has ended the command.
func (t *Task) checkFeature(f nvme.FID, set bool) bool {
	c, nsid := t.Queue.ctrl, t.SQE.NSID()
	switch {
	case c.sub.isDiscovery() && !discoveryFeature(f):
		t.refuse(nvme.InvalidField)
	case isNamespaceFeature(f):
		switch p := t.Queue.path(nsid); {
		case nsid == nvme.AllNamespaces && set:
			t.hold(*t.Queue.paths.Load()...)
		case nsid == nvme.AllNamespaces && f != nvme.FeatureErrorRecovery: // they may differ (Base 2.0 §5.27.1)
			t.refuse(nvme.InvalidField)
			return true
		case p == nil:
			t.refuse(nvme.InvalidNamespace)
			return true
		default:
			t.hold(p)
		}
		// Base 2.0 §8.1.3: they are of the namespace, which is not to be had this way; of all, if one is not.
		for _, p := range t.held {
			if s := refusal(access.Denial(p.at.denied.Load())&access.OfGroups, false, false); s != nvme.Success {
				t.end(s)
				return true
			}
		}
		return false
	case nsid != 0 && nsid != nvme.AllNamespaces && t.Queue.path(nsid) == nil:
		t.refuse(nvme.InvalidNamespace)
	case set && nsid != 0 && nsid != nvme.AllNamespaces:
		t.refuse(nvme.FeatureNotNamespace)
	default:
		return false
	}
	return true
}

// setFeatures is Base 2.0 §5.27.
func (t *Task) setFeatures() volume.Next {
	const save = 1 << 31
	c, f, v := t.Queue.ctrl, nvme.FID(t.SQE.DWord(10)), t.SQE.DWord(11)
	if t.checkFeature(f, true) {
		return volume.Done
	}
	if t.SQE.DWord(10)&save != 0 {
		return t.refuse(nvme.FeatureNotSaveable)
	}
	switch f {
	case nvme.FeatureArbitration:
		c.features.arbitration = v
	case nvme.FeaturePower:
		if v&0x1f != 0 {
			return t.refuse(nvme.InvalidField)
		}
	case nvme.FeatureTemperature:
		if v>>16&0xf > 0 && v>>16&0xf != 0xf || v>>20&3 > 1 {
			return t.refuse(nvme.InvalidField) // there is the composite temperature only
		}
		c.features.temperature[v>>20&1] = uint16(v)
	case nvme.FeatureErrorRecovery:
		if v&bitDULBE != 0 {
			return t.refuse(nvme.InvalidField)
		}
		for _, p := range t.held {
			p.at.recovery = v & 0xffff
		}
	case nvme.FeatureQueues:
		return t.setQueues(v)
	case nvme.FeatureAtomicity:
		c.features.atomicity = v & 1
	case nvme.FeatureAsyncEvents:
		if v&^uint32(knownAERs) != 0 {
			return t.refuse(nvme.InvalidField)
		}
		c.features.events = v
	case nvme.FeatureKeepAlive:
		if v == 0 {
			return t.refuse(nvme.KeepAliveInvalid)
		}
		c.kato = min(v/keepAliveUnit+min(v%keepAliveUnit, 1), math.MaxUint32/keepAliveUnit) * keepAliveUnit
		c.last = c.node.clock.Load()
	case nvme.FeatureWriteCache:
		if v&1 == 0 {
			return t.refuse(nvme.FeatureNotChangeable) // caches belong to the stores
		}
	case nvme.FeatureHostBehavior:
		if t.Len != nvme.HostBehaviorLen {
			return t.refuse(nvme.DataSGLLength)
		}
		return t.pullOwn(make([]byte, nvme.HostBehaviorLen), (*Task).setBehavior)
	case nvme.FeatureHostID:
		return t.refuse(nvme.CommandSequence) // Connect has set it
	case nvme.FeatureNoticeMask:
		if v&^uint32(nvme.AllNotices) != 0 {
			return t.refuse(nvme.InvalidField)
		}
		c.sub.setNoticeMask(c.hostID, t.held, v)
	case nvme.FeaturePersistence:
		if v&^1 != 0 {
			return t.refuse(nvme.InvalidField)
		}
		return t.setPersistence()
	default:
		return t.refuse(nvme.InvalidField)
	}
	return t.end(nvme.Success)
}

// setBehavior has the data of Host Behavior Support (Base 2.0 §5.27.1.18). Only ACRE changes anything here.
func (t *Task) setBehavior() volume.Next {
	c := t.Queue.ctrl
	var b [3]byte
	for i := range b {
		if b[i] = t.data[0][i]; b[i] > 1 {
			return t.refuse(nvme.InvalidField)
		}
	}
	c.features.behavior = b
	c.delays.Store(b[0] == 1)
	return t.end(nvme.Success)
}

// setQueues grants I/O queues.
func (t *Task) setQueues(v uint32) volume.Next {
	c := t.Queue.ctrl
	submission, completion := v&0xffff, v>>16
	if submission == 0xffff || completion == 0xffff {
		return t.refuse(nvme.InvalidField)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queues) > 1 {
		return t.refuse(nvme.CommandSequence)
	}
	c.grant = int(min(submission, completion, maxIOQueues-1)) + 1
	t.CQE.DW0 = uint32(c.grant-1)<<16 | uint32(c.grant-1)
	return t.end(nvme.Success)
}

// getFeatures is Base 2.0 §5.15.
func (t *Task) getFeatures() volume.Next {
	const current, byDefault, saved, capabilities = 0, 1, 2, 3
	f, sel := nvme.FID(t.SQE.DWord(10)), t.SQE.DWord(10)>>8&7
	if t.checkFeature(f, false) {
		return volume.Done
	}
	c := t.Queue.ctrl
	values := c.features
	granted, kato := c.granted(), c.kato
	switch sel {
	case current:
	case byDefault, saved: // nothing is saved: the saved value is the default
		values, granted, kato = newFeatures(), maxIOQueues, 0
	case capabilities:
		return t.featureCapabilities(f)
	default:
		return t.refuse(nvme.InvalidField)
	}
	switch f {
	case nvme.FeatureArbitration:
		t.CQE.DW0 = values.arbitration
	case nvme.FeaturePower:
	case nvme.FeatureTemperature:
		v := t.SQE.DWord(11)
		if v>>16&0xf > 0 || v>>20&3 > 1 {
			return t.refuse(nvme.InvalidField)
		}
		t.CQE.DW0 = uint32(values.temperature[v>>20&1])
	case nvme.FeatureErrorRecovery:
		if sel == current {
			t.CQE.DW0 = t.held[0].at.recovery
		}
	case nvme.FeatureWriteCache:
		t.CQE.DW0 = 1
	case nvme.FeatureQueues:
		t.CQE.DW0 = uint32(granted-1)<<16 | uint32(granted-1)
	case nvme.FeatureAtomicity:
		t.CQE.DW0 = values.atomicity
	case nvme.FeatureAsyncEvents:
		t.CQE.DW0 = values.events
	case nvme.FeatureKeepAlive:
		t.CQE.DW0 = kato
	case nvme.FeatureHostBehavior:
		if t.Len < nvme.HostBehaviorLen {
			return t.refuse(nvme.DataSGLLength)
		}
		return t.build(nvme.HostBehaviorLen, func(b []byte) { clear(b[copy(b, values.behavior[:]):]) })
	case nvme.FeatureHostID:
		return t.hostIdentifier()
	case nvme.FeatureNoticeMask:
		if sel == current {
			t.CQE.DW0 = c.sub.noticeMask(c.hostID, t.SQE.NSID())
		}
	case nvme.FeaturePersistence:
		if sel == current {
			return t.persistence()
		}
	default:
		return t.refuse(nvme.InvalidField)
	}
	return t.end(nvme.Success)
}

// featureCapabilities says what can be done with a feature.
func (t *Task) featureCapabilities(f nvme.FID) volume.Next {
	const perNamespace, changeable = 1 << 1, 1 << 2
	switch f {
	case nvme.FeatureArbitration, nvme.FeatureTemperature, nvme.FeatureQueues, nvme.FeatureAtomicity,
		nvme.FeatureAsyncEvents, nvme.FeatureKeepAlive, nvme.FeatureHostBehavior:
		t.CQE.DW0 = changeable
	case nvme.FeatureErrorRecovery, nvme.FeatureNoticeMask, nvme.FeaturePersistence:
		t.CQE.DW0 = changeable | perNamespace
	case nvme.FeaturePower, nvme.FeatureWriteCache, nvme.FeatureHostID:
	default:
		return t.refuse(nvme.InvalidField)
	}
	return t.end(nvme.Success)
}

// hostIdentifier returns the HOSTID, of which there are only long ones over fabrics.
func (t *Task) hostIdentifier() volume.Next {
	const extended = 1
	id := t.Queue.ctrl.hostID
	switch {
	case t.SQE.DWord(11)&extended == 0:
		return t.refuse(nvme.InvalidField)
	case int(t.Len) < len(id):
		return t.refuse(nvme.DataSGLLength)
	}
	return t.build(len(id), func(b []byte) { copy(b, id[:]) })
}
