package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"oneshot/mgmt"
)

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// period is the time that figures are about: all the time so far, or the time between two answers.
type period struct {
	rate    bool // the figures are per second
	seconds float64
	bounds  []int64
}

func newPeriod(now time.Time, before *time.Time, bounds []int64) period {
	if before == nil {
		return period{bounds: bounds}
	}
	return period{true, max(now.Sub(*before).Seconds(), 1e-3), bounds}
}

// heading names the columns of cells.
func (p period) heading() string {
	if p.rate {
		return "READ/S\tB/S\tMEAN\tP99\tWRITE/S\tB/S\tMEAN\tP99\tOTHER/S\tBUSY\tFAILED"
	}
	return "READS\tBYTES\tMEAN\tP99\tWRITES\tBYTES\tMEAN\tP99\tOTHERS\tBUSY\tFAILED"
}

// cells returns the figures of one row. before is the previous answer, or nil.
func (p period) cells(now, before *mgmt.IO) string {
	if before == nil || !p.rate {
		before = new(mgmt.IO)
	}
	read, write, other := now.Read.Since(&before.Read), now.Write.Since(&before.Write), now.Other.Since(&before.Other)
	return strings.Join([]string{
		p.number(read.Commands()), p.bytes(read.Bytes), latency(read.Mean()), latency(read.Quantile(0.99, p.bounds)),
		p.number(write.Commands()), p.bytes(write.Bytes), latency(write.Mean()), latency(write.Quantile(0.99, p.bounds)),
		p.number(other.Commands()), fmt.Sprint(now.InFlight), failures(now.Failed, before.Failed),
	}, "\t")
}

func (p period) number(n uint64) string {
	if !p.rate {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%.0f", float64(n)/p.seconds)
}

func (p period) bytes(n uint64) string {
	if !p.rate {
		return size(float64(n))
	}
	return size(float64(n) / p.seconds)
}

// size formats n bytes with about three digits.
func size(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if n < 1000 {
			if unit == "B" || n >= 100 {
				return fmt.Sprintf("%.0f%s", n, unit)
			}
			return fmt.Sprintf("%.1f%s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1fPiB", n)
}

func latency(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 100*time.Microsecond:
		return fmt.Sprintf("%.1fµs", float64(d)/1e3)
	case d < time.Millisecond:
		return fmt.Sprintf("%.0fµs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// failures lists the kinds of failures, each with how many there were since before.
func failures(now, before map[string]uint64) string {
	var kinds []string
	for kind, n := range now {
		if n -= min(before[kind], n); n > 0 {
			kinds = append(kinds, fmt.Sprintf("%s:%d", kind, n))
		}
	}
	if kinds == nil {
		return "-"
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ",")
}

func writeStatus(w io.Writer, now, before *mgmt.Status) error {
	var was *time.Time
	if before != nil {
		was = &before.Time
	}
	p := newPeriod(now.Time, was, now.BoundsNS)
	fmt.Fprintf(w, "oneshot %s, process %d, serving for %s\n", now.Version, now.PID, age(now.Started, now.Time))
	fmt.Fprintf(w, "configuration  %s, in force since %s\n", now.Config, now.Loaded.Local().Format(time.DateTime))
	fmt.Fprintf(w, "portals        %s\n", portalList(now.Portals))
	if c := now.Cluster; c != nil {
		fmt.Fprintf(w, "cluster        %s: this is node %s; %s\n", c.Name, c.Node, consensusText(c))
		if c.Trouble != "" {
			fmt.Fprintf(w, "               this node takes no part: %s\n", c.Trouble)
		}
		for i := range c.Mirrors {
			m := &c.Mirrors[i]
			fmt.Fprintf(w, "mirror         %s: %s; primary %s; %s\n", m.Name, mirrorState(c, m), orDash(m.Primary), copiesText(m))
		}
	}
	c := now.Counters
	fmt.Fprintf(w, "sessions       %d; %d logins, %d refused, %d redirected; %d connections, %d refused\n", now.Connected, c.Logins, c.LoginFailures, c.Redirects, c.Connections, c.Refused)
	fmt.Fprintf(w, "errors         %d of the protocol, %d of digests, %d rejects, %d commands out of order\n", c.ProtocolErrors, c.DigestErrors, c.Rejects, c.IgnoredCommands)
	if m := c.Moderation; m.Censuses > 0 {
		fmt.Fprintf(w, "moderation     %d pauses, %v in all; outstanding commands were counted %d times\n", m.Pauses, time.Duration(m.PausedNS).Round(time.Millisecond), m.Censuses)
	}
	if n := now.NVMe; n != nil {
		c := n.Counters
		fmt.Fprintf(w, "NVMe           %d controllers; %d made, %d refused, %d authentications failed; %d connections, %d refused; %d errors of the protocol, %d of digests\n",
			n.Connected, c.Connects, c.ConnectFailures, c.AuthFailures, c.Connections, c.Refused, c.ProtocolErrors, c.DigestErrors)
	}
	for i := range now.Objects {
		fmt.Fprintf(w, "objects        %s\n", objectsLine(&now.Objects[i]))
	}
	for i := range now.Programs {
		fmt.Fprintf(w, "programs       %s\n", programsLine(&now.Programs[i]))
	}
	fmt.Fprintf(w, "buffers        %s of %s\n", size(float64(now.Buffers.InUse)), size(float64(now.Buffers.Limit)))
	for i := range now.Devices {
		fmt.Fprintf(w, "RDMA           %s\n", deviceCounters(&now.Devices[i]))
	}
	if len(now.Targets) > 0 || now.NVMe == nil {
		if err := writeTargets(w, p, now, before); err != nil {
			return err
		}
	}
	if now.NVMe != nil {
		if err := writeSubsystems(w, p, now, before); err != nil {
			return err
		}
	}
	return writePrograms(w, p, now, before)
}

// writePrograms writes the table of users who have programs at local portals, if there are any.
func writePrograms(w io.Writer, p period, now, before *mgmt.Status) error {
	t := newTable(w)
	began := false
	for i := range now.Programs {
		portal := &now.Programs[i]
		for j := range portal.Users {
			u := &portal.Users[j]
			if !began {
				fmt.Fprintf(t, "\nPORTAL\tUSER\tPROGRAMS\tQUEUE PAIRS\tSHARED\t%s\n", p.heading())
				began = true
			}
			fmt.Fprintf(t, "%s\tuid:%d\t%d\t%d\t%s\t%s\n", portal.Portal, u.UID, u.Programs, u.QueuePairs, size(float64(u.Shared)), p.cells(&u.IO, userBefore(before, portal.Portal, u.UID)))
		}
	}
	return t.Flush()
}

// userBefore finds a user in an earlier answer, or returns nil.
func userBefore(s *mgmt.Status, portal string, uid uint32) *mgmt.IO {
	if s == nil {
		return nil
	}
	for i := range s.Programs {
		if s.Programs[i].Portal != portal {
			continue
		}
		users := s.Programs[i].Users // sorted
		if at, found := slices.BinarySearchFunc(users, uid, func(u mgmt.ProgramUser, uid uint32) int { return cmp.Compare(u.UID, uid) }); found {
			return &users[at].IO
		}
	}
	return nil
}

// writeTargets writes the table of LUNs.
func writeTargets(w io.Writer, p period, now, before *mgmt.Status) error {
	t := newTable(w)
	fmt.Fprintf(t, "\nTARGET\tLUN\tSTORE\tSIZE\t%s\n", p.heading())
	for i := range now.Targets {
		n := &now.Targets[i]
		if len(n.LUNs) == 0 {
			fmt.Fprintf(t, "%s\t-\n", n.Name)
		}
		for j := range n.LUNs {
			l := &n.LUNs[j]
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", n.Name, l.Number, l.Store, size(float64(l.Bytes)), p.cells(&l.IO, lunBefore(before, n.Name, l.Number)))
		}
	}
	return t.Flush()
}

// writeSubsystems writes the table of namespaces.
func writeSubsystems(w io.Writer, p period, now, before *mgmt.Status) error {
	t := newTable(w)
	fmt.Fprintf(t, "\nSUBSYSTEM\tNSID\tSTORE\tSIZE\t%s\n", p.heading())
	for i := range now.NVMe.Subsystems {
		s := &now.NVMe.Subsystems[i]
		if len(s.Namespaces) == 0 {
			fmt.Fprintf(t, "%s\t-\n", s.NQN)
		}
		for j := range s.Namespaces {
			n := &s.Namespaces[j]
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", s.NQN, n.NSID, n.Store, size(float64(n.Bytes)), p.cells(&n.IO, namespaceBefore(before, s.NQN, n.NSID)))
		}
	}
	return t.Flush()
}

// namespaceBefore finds a namespace in an earlier answer, or returns nil.
func namespaceBefore(s *mgmt.Status, subsystem string, nsid uint32) *mgmt.IO {
	if s == nil || s.NVMe == nil {
		return nil
	}
	for i := range s.NVMe.Subsystems {
		if s.NVMe.Subsystems[i].NQN != subsystem {
			continue
		}
		list := s.NVMe.Subsystems[i].Namespaces // sorted
		if at, found := slices.BinarySearchFunc(list, nsid, func(n mgmt.Namespace, nsid uint32) int { return cmp.Compare(n.NSID, nsid) }); found {
			return &list[at].IO
		}
	}
	return nil
}

// deviceCounters says what a daemon has done with an RDMA device. iWARP in user space neither sleeps nor polls.
func deviceCounters(d *mgmt.Device) string {
	n := d.Counters
	text := fmt.Sprintf("%s %s: %d messages in, %d out", d.Transport, d.Name, n["messages_in"], n["messages_out"])
	if n["sleeps"]+n["polling_found"]+n["polling_in_vain"] > 0 {
		text += fmt.Sprintf("; slept %d times, polled %d times with success and %d in vain", n["sleeps"], n["polling_found"], n["polling_in_vain"])
	}
	return text
}

func portalList(portals []mgmt.Portal) string {
	var texts []string
	for _, p := range portals {
		texts = append(texts, p.Transport+" "+p.Address)
	}
	return strings.Join(texts, ", ")
}

// lunBefore finds a LUN in an earlier answer, or returns nil.
func lunBefore(s *mgmt.Status, target string, number uint16) *mgmt.IO {
	if s == nil {
		return nil
	}
	for i := range s.Targets {
		if s.Targets[i].Name != target {
			continue
		}
		luns := s.Targets[i].LUNs // sorted
		if at, found := slices.BinarySearchFunc(luns, number, func(l mgmt.LUN, n uint16) int { return cmp.Compare(l.Number, n) }); found {
			return &luns[at].IO
		}
	}
	return nil
}

func writeSessions(w io.Writer, now, before *mgmt.Sessions) error {
	var was *time.Time
	if before != nil {
		was = &before.Time
	}
	p := newPeriod(now.Time, was, now.BoundsNS)
	switch {
	case len(now.Sessions) > 0:
		if err := writeInitiators(w, p, now, before); err != nil || len(now.Controllers) == 0 {
			return err
		}
		fmt.Fprintln(w)
	case len(now.Controllers) == 0:
		_, err := fmt.Fprintln(w, "no sessions")
		return err
	}
	return writeControllers(w, p, now, before)
}

// writeInitiators writes the table of sessions of iSCSI.
func writeInitiators(w io.Writer, p period, now, before *mgmt.Sessions) error {
	then := make(map[uint16]*mgmt.Session)
	if before != nil {
		for i := range before.Sessions {
			then[before.Sessions[i].ID] = &before.Sessions[i]
		}
	}
	t := newTable(w)
	fmt.Fprintf(t, "ID\tINITIATOR\tTARGET\tFROM\tBY\tAGE\t%s\n", p.heading())
	for i := range now.Sessions {
		s := &now.Sessions[i]
		var io *mgmt.IO
		if b := then[s.ID]; b != nil && b.Since.Equal(s.Since) { // numbers are used again
			io = &b.IO
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.Initiator, cmp.Or(s.Target, "(discovery)"), from(s), s.Transport, age(s.Since, now.Time), p.cells(&s.IO, io))
	}
	return t.Flush()
}

// writeControllers writes the table of controllers of NVMe.
func writeControllers(w io.Writer, p period, now, before *mgmt.Sessions) error {
	then := make(map[uint64]*mgmt.IO)
	if before != nil {
		for i := range before.Controllers {
			then[before.Controllers[i].ID] = &before.Controllers[i].IO
		}
	}
	t := newTable(w)
	fmt.Fprintf(t, "ID\tHOST\tSUBSYSTEM\tCNTLID\tFROM\tBY\tQUEUES\tDIGESTS\tAUTH\tAGE\t%s\n", p.heading())
	for i := range now.Controllers {
		c := &now.Controllers[i]
		if len(c.Queues) == 0 {
			continue // it is going
		}
		admin := &c.Queues[0]
		fmt.Fprintf(t, "%s%d\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", controllerPrefix, c.ID, c.Host, cmp.Or(c.Subsystem, "(discovery)"), c.CNTLID,
			admin.Peer, admin.Transport, len(c.Queues), digests(admin), cmp.Or(strings.TrimPrefix(c.Authentication, "none"), "-"), age(c.Since, now.Time), p.cells(&c.IO, then[c.ID]))
	}
	return t.Flush()
}

// digests names those that a queue has.
func digests(q *mgmt.Queue) string {
	switch {
	case q.HeaderDigest && q.DataDigest:
		return "header,data"
	case q.HeaderDigest:
		return "header"
	case q.DataDigest:
		return "data"
	}
	return "-"
}

// from says where a session comes from: the address of its oldest connection, and how many more there are.
func from(s *mgmt.Session) string {
	if n := len(s.Connections); n > 1 {
		return fmt.Sprintf("%s +%d", s.Peer, n-1)
	}
	return s.Peer
}

// age formats the time from then to now in one or two units.
func age(then, now time.Time) string {
	d := max(now.Sub(then), 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// programsLine says what there is of programs at a local portal.
func programsLine(p *mgmt.Programs) string {
	return fmt.Sprintf("%s: %d programs, %d refused, %d without a hello; %d connections, %d refused; memory refused %d times",
		p.Portal, p.Connected, p.Refused, p.Silent, p.Connections, p.ConnectionsRefused, p.MemoryRefused)
}

// objectsLine says what there is of the objects in a store.
func objectsLine(o *mgmt.Objects) string {
	if !o.Served {
		return fmt.Sprintf("%s: not served by this node; %d connections", o.Store, o.Connections)
	}
	var done, not uint64
	for _, r := range o.Requests {
		if r.End == "good" {
			done += r.Count
		} else {
			not += r.Count
		}
	}
	return fmt.Sprintf("%s: %d with %s; %s of %s are free; %d connections; %d requests done, %d not",
		o.Store, o.Objects, size(float64(o.Bytes)), size(float64(o.Free)), size(float64(o.Memory)), o.Connections, done, not)
}
