package nvmf

import (
	"maps"
	"math"
	"slices"

	"oneshot/nvme"
	"oneshot/volume"
)

// adminCommands has a row for each admin command of I/O controllers.
var adminCommands = [256]func(*Task) volume.Next{
	nvme.AdminGetLogPage:  (*Task).getLogPage,
	nvme.AdminIdentify:    (*Task).identify,
	nvme.AdminAbort:       (*Task).abort,
	nvme.AdminSetFeatures: (*Task).setFeatures,
	nvme.AdminGetFeatures: (*Task).getFeatures,
	nvme.AdminAsyncEvent:  (*Task).asyncEvent,
	nvme.AdminKeepAlive:   (*Task).keepAlive,
	nvme.AdminSanitize:    (*Task).sanitize,
}

// effects is the effects log. Its rows are those of adminCommands and ioCommands, which refer to it.
var effects = nvme.Effects{Admin: make(map[nvme.Opcode]uint32), IO: make(map[nvme.Opcode]uint32)}

func init() {
	for op, run := range adminCommands {
		if run != nil {
			effects.Admin[nvme.Opcode(op)] = nvme.EffectSupported
		}
	}
	effectsMoving.Admin = maps.Clone(effects.Admin)
	delete(effectsMoving.Admin, nvme.AdminSanitize)
	effects.Admin[nvme.AdminSanitize] |= nvme.EffectContent
	for op, c := range ioCommands {
		if c != nil {
			effects.IO[nvme.Opcode(op)] = nvme.EffectSupported
			if c.changes || nvme.Opcode(op) == nvme.DSM {
				effects.IO[nvme.Opcode(op)] |= nvme.EffectContent
			}
		}
	}
}

// effectsMoving is that of controllers whose namespaces move from node to node.
var effectsMoving = nvme.Effects{IO: effects.IO}

// admin begins a command of the admin queue.
func (t *Task) admin() volume.Next {
	run := adminCommands[t.SQE.Opcode()]
	c, op := t.Queue.ctrl, t.SQE.Opcode()
	if run == nil || c.sub.isDiscovery() && (op == nvme.AdminAbort || op == nvme.AdminSanitize) || op == nvme.AdminSanitize && c.moves() {
		return t.refuse(nvme.InvalidOpcode)
	}
	if t.SQE.Fuse() != nvme.NotFused {
		return t.refuse(nvme.InvalidField)
	}
	return run(t)
}

func (t *Task) keepAlive() volume.Next {
	t.Queue.alive()
	return t.end(nvme.Success)
}

// abort ends another command of the controller, with status Aborted, if it has not ended (Base 2.0 §5.1). It says that the command was aborted
// if that is over at once: a host takes it that nothing of the command comes later (Base 2.1 §5.1.1.1). A command that a store has, or whose
// data RDMA Reads still place, ends with Aborted when these are done.
func (t *Task) abort() volume.Next {
	const notAborted = 1
	sqid, cid := uint16(t.SQE.DWord(10)), uint16(t.SQE.DWord(10)>>16)
	admin, c := t.Queue, t.Queue.ctrl
	c.mu.Lock()
	q := c.queues[sqid]
	c.mu.Unlock()
	t.CQE.DW0 = notAborted
	if q == nil {
		return t.end(nvme.Success)
	}
	if c.aborts++; c.aborts > maxAborts {
		c.aborts--
		return t.refuse(nvme.AbortLimit)
	}
	t.elsewhere = true
	q.post(func() {
		found := q.outstanding(cid, t)
		if found != nil {
			found.abortWith(nvme.Aborted)
		}
		q.post(func() { // when it has been resumed
			over := found != nil && found.slot < 0
			admin.post(func() {
				c.aborts--
				if over {
					t.CQE.DW0 = 0
				}
				t.elsewhere = false
				admin.step(t, t.end(nvme.Success))
			})
		})
	})
	return volume.Wait
}

// outstanding returns the command of that identifier that is under way, but not except, nor Disconnect, which ends with its queue; nil: there
// is none.
func (q *Queue) outstanding(cid uint16, except *Task) *Task {
	for _, t := range q.tasks {
		if t != except && t != q.disconnects && !t.aborted && !t.elsewhere && t.SQE.CID() == cid {
			return t
		}
	}
	return nil
}

// identify is Base 2.0 §5.17.
func (t *Task) identify() volume.Next {
	q, c := t.Queue, t.Queue.ctrl
	cns, nsid := nvme.CNS(t.SQE.DWord(10)), t.SQE.NSID()
	controller, csi := uint16(t.SQE.DWord(10)>>16), t.SQE.DWord(11)>>24
	if t.Len != nvme.IdentifyLen || t.InCapsule {
		return t.refuse(nvme.DataSGLLength)
	}
	if c.sub.isDiscovery() {
		if cns != nvme.CNSController {
			return t.refuse(nvme.InvalidField)
		}
		return t.structure(c.identify())
	}
	switch cns {
	case nvme.CNSController:
		return t.structure(c.identify())
	case nvme.CNSActiveNamespaces, nvme.CNSCSIActive:
		if cns == nvme.CNSCSIActive && csi != 0 {
			return t.refuse(nvme.InvalidField)
		}
		if nsid >= nvme.AllNamespaces-1 {
			return t.refuse(nvme.InvalidNamespace)
		}
		ids := c.sub.nsids(nsid)
		return t.build(nvme.IdentifyLen, func(b []byte) { nvme.AppendNSIDs(b[:0], ids) })
	case nvme.CNSCSIController:
		if csi != 0 {
			return t.refuse(nvme.InvalidField)
		}
		return t.structure(new(nvme.IOLimits))
	case nvme.CNSControllers:
		return t.controllers(controller)
	case nvme.CNSNamespace, nvme.CNSDescriptors, nvme.CNSCSINamespace, nvme.CNSIndependent, nvme.CNSAttached:
	default:
		return t.refuse(nvme.InvalidField)
	}
	if nsid == nvme.AllNamespaces && cns == nvme.CNSNamespace {
		return t.structure(&nvme.Namespace{}) // what all have in common, which is nothing, as there are no formats to choose
	}
	p := q.path(nsid)
	switch {
	case p != nil:
	case cns == nvme.CNSNamespace && nsid > 0 && nsid <= MaxNSID:
		return t.build(nvme.IdentifyLen, func(b []byte) { clear(b) }) // inactive
	default:
		return t.refuse(nvme.InvalidNamespace)
	}
	switch n := p.ns; cns {
	case nvme.CNSNamespace:
		p.at.identified()
		d := n.identify(nsid)
		return t.structure(&d)
	case nvme.CNSDescriptors:
		return t.structure(&nvme.Descriptors{UUID: n.uuid, NGUID: n.guid})
	case nvme.CNSIndependent:
		d := n.identify(nsid)
		return t.structure(&nvme.Independent{NMIC: d.NMIC, RESCAP: d.RESCAP, ANAGroup: d.ANAGroup, ReadOnly: d.ReadOnly})
	case nvme.CNSCSINamespace:
		if csi != 0 {
			return t.refuse(nvme.InvalidField)
		}
		return t.build(nvme.IdentifyLen, func(b []byte) { clear(b) })
	}
	return t.controllers(controller) // all controllers have all namespaces
}

// controllers returns the controllers of the subsystem from an ID on.
func (t *Task) controllers(first uint16) volume.Next {
	ids := t.Queue.ctrl.sub.controllerIDs(first)
	return t.build(nvme.IdentifyLen, func(b []byte) { nvme.AppendControllers(b[:0], ids) })
}

// structure ends Identify with a data structure.
func (t *Task) structure(s interface{ AppendTo([]byte) []byte }) volume.Next {
	return t.build(nvme.IdentifyLen, func(b []byte) { s.AppendTo(b[:0]) })
}

// nsids lists the namespaces behind after.
func (s *Subsystem) nsids(after uint32) (ids []uint32) {
	for _, x := range s.shownNow() {
		if x.NSID > after {
			ids = append(ids, x.NSID)
		}
	}
	return ids
}

const (
	maxAborts = 4
	// shutdownTime is how long a shutdown may take, microseconds.
	shutdownTime = 10_000_000
	// transitionTime is how long a namespace may be in the state "change", seconds.
	transitionTime = 10
	// errorEntries is how many errors are remembered.
	errorEntries = 64
)

// identify returns the Identify Controller data structure.
func (c *Controller) identify() *nvme.Controller {
	n, tr := c.node, c.admin.mover.Transport()
	d := &nvme.Controller{
		Serial: c.sub.serial, Model: "oneshot", Firmware: n.cfg.Firmware,
		MDTS: n.transferShift(), CNTLID: c.id, CTRATT: nvme.CTRATTHostID128 | nvme.CTRATTTBKAS,
		AERL: maxEventRequests - 1, LPA: nvme.LPAExtended, ELPE: errorEntries - 1, KAS: keepAliveUnit / 100, SubNQN: c.sub.nqn,
		SGLS: nvme.SGLSSupported | tr.SGLS, MSDBD: 1, IORCSZ: 1,
	}
	if tr.AdminCapsule > 0 || n.Capsule(tr) > 0 {
		d.SGLS |= nvme.SGLSOffset
	}
	if c.sub.isDiscovery() {
		d.Type, d.OAES, d.MaxCmd = nvme.DiscoveryController, nvme.OAESDiscovery, adminDepth
		d.IOCCSZ = nvme.SQELen / 16
		return d
	}
	d.Type, d.OAES, d.MaxCmd = nvme.IOController, nvme.OAESNamespace|nvme.OAESANA, uint16(n.cfg.Depth)
	d.CMIC = nvme.CMICPorts | nvme.CMICControllers | nvme.CMICANA
	d.ANATT, d.ANACAP, d.ANAGroups = transitionTime, nvme.ANACAPStates|nvme.ANACAPStatic, MaxNSID
	d.RTD3E = shutdownTime
	if !c.moves() {
		d.SANICAP = nvme.SANICAPBlock | nvme.SANICAPOverwrite | nvme.SANICAPNoNDAS | nvme.SANICAPNoModify
	}
	d.CRDT1 = retryDelay
	d.ACL = maxAborts - 1
	d.LPA |= nvme.LPASmart | nvme.LPAEffects
	d.NN, d.MNAN = MaxNSID, MaxNSID
	d.ONCS = nvme.ONCSCompare | nvme.ONCSDSM | nvme.ONCSWriteZeroes | nvme.ONCSVerify | nvme.ONCSReserve | nvme.ONCSCopy
	d.OCFS = nvme.OCFSFormat0
	d.FUSES = nvme.FUSESCompareWrite
	d.VWC = nvme.VWCPresent | nvme.VWCNoBroadcast
	d.ACWU = maxCompareBytes/4096 - 1 // in the largest blocks; namespaces say it in theirs
	d.IOCCSZ = uint32(nvme.SQELen+n.Capsule(tr)) / 16
	d.OFCS = nvme.OFCSDisconnect
	return d
}

// ---- logs ----

// getLogPage is Base 2.0 §5.16. What is asked for beyond the end of a log reads as zeroes.
func (t *Task) getLogPage() volume.Next {
	g, c, nsid := nvme.GetLogPage{SQE: t.SQE}, t.Queue.ctrl, t.SQE.NSID()
	want, off := g.Length(), g.Offset()
	switch {
	case g.ByIndex() || off%4 != 0:
		return t.refuse(nvme.InvalidField)
	case want > int64(t.Len) || t.InCapsule:
		return t.refuse(nvme.DataSGLLength)
	case want > int64(c.node.most):
		return t.refuse(nvme.InvalidField)
	}
	log, size := c.log(g)
	switch named := nsid != 0 && nsid != nvme.AllNamespaces; {
	case log == nil:
		return t.refuse(nvme.InvalidLogPage)
	case off > size, named && g.LID() != nvme.LogSmart: // the others are the controller's
		return t.refuse(nvme.InvalidField)
	case named && t.Queue.path(nsid) == nil:
		return t.refuse(nvme.InvalidNamespace)
	}
	return t.build(int(want), func(b []byte) {
		log(b, off)
		if !g.Retain() {
			c.logRead(g.LID())
			switch g.LID() {
			case nvme.LogChanged:
				c.changedRead()
			case nvme.LogReservation:
				c.notices.read()
			}
		}
	})
}

// log returns what writes the part of a log from an offset on to b, with zeroes behind its end, and how long the log is; nil: there is no such log.
func (c *Controller) log(g nvme.GetLogPage) (write func(b []byte, off uint64), size uint64) {
	l, nsid := g.LID(), g.NSID()
	pages := []nvme.LID{
		nvme.LogSupported, nvme.LogError, nvme.LogSmart, nvme.LogFirmware, nvme.LogChanged, nvme.LogEffects, nvme.LogANA, nvme.LogReservation, nvme.LogSanitize,
	}
	if c.sub.isDiscovery() {
		pages = []nvme.LID{nvme.LogSupported, nvme.LogError, nvme.LogDiscovery}
	}
	if !slices.Contains(pages, l) {
		return nil, 0
	}
	switch l {
	case nvme.LogDiscovery: // it may be shorter than it was for the piece before: the header tells the host, and a failure would not
		return c.discoveryLog, math.MaxUint64
	case nvme.LogError:
		return whole(c.errors.page)
	case nvme.LogSmart:
		if nsid == 0 {
			nsid = nvme.AllNamespaces
		}
		return whole(func() []byte {
			s := c.sub.smart(nsid)
			s.Errors, s.Seconds = c.errors.count, uint64(c.node.clock.Load())
			return s.AppendTo(nil)
		})
	case nvme.LogFirmware:
		return whole(func() []byte { return nvme.AppendFirmware(nil, c.node.cfg.Firmware) })
	case nvme.LogChanged:
		return whole(func() []byte { return nvme.AppendChanged(nil, c.changed) })
	case nvme.LogANA:
		return whole(func() []byte { return c.anaLog(g.Specific()&nvme.ANAGroupsOnly != 0) })
	case nvme.LogReservation:
		return whole(c.notices.page)
	case nvme.LogSanitize:
		return whole(func() []byte {
			l := c.sanitizeLog()
			return l.AppendTo(nil)
		})
	case nvme.LogEffects:
		return whole(func() []byte {
			if c.moves() {
				return effectsMoving.AppendTo(nil)
			}
			return effects.AppendTo(nil)
		})
	}
	return whole(func() []byte { return nvme.AppendSupported(nil, pages) })
}

// whole writes the part of a page that is asked for, and says how long the page is now. The page is made when it is written, not when the command comes, which may have to
// wait for memory: what changes meanwhile is in it, for the host is not told of that any more.
func whole(page func() []byte) (write func(b []byte, off uint64), size uint64) {
	return func(b []byte, off uint64) {
		p := page()
		clear(b[copy(b, p[min(off, uint64(len(p))):]):])
	}, uint64(len(page()))
}

// errorLog remembers the last commands that failed because of the medium, or of us.
type errorLog struct {
	count   uint64
	entries []nvme.ErrorEntry // at most errorEntries, the oldest first
}

func (l *errorLog) add(e nvme.ErrorEntry) {
	l.count++
	e.Count = l.count
	if len(l.entries) == errorEntries {
		l.entries = append(l.entries[:0], l.entries[1:]...)
	}
	l.entries = append(l.entries, e)
}

// page is the log, the newest entry first.
func (l *errorLog) page() []byte {
	b := make([]byte, 0, errorEntries*nvme.ErrorEntryLen)
	for i := len(l.entries) - 1; i >= 0; i-- {
		b = l.entries[i].AppendTo(b)
	}
	return b[:cap(b)]
}
