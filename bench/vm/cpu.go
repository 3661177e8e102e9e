package main

import (
	"strings"
	"time"

	"oneshot/bench/harness"
)

// shares lists the users of the guest's processors in the tables. Work of a software device in softirqs
// counts for the thread that it interrupts.
const (
	byTargetUser   = "target user"
	byTargetSystem = "target system"
	byFio          = "fio"
	byKworkers     = "kworker"
	bySoftirqd     = "ksoftirqd"
	byRest         = "idle and others"
)

var shares = []string{byTargetUser, byTargetSystem, byFio, byKworkers, bySoftirqd, byRest}

const guestProcessors = 2

// thread is the processor time of a thread of the guest so far, and the shares for which it counts.
type thread struct {
	user, system     time.Duration
	asUser, asSystem string // of shares; empty: for none
}

// guestCPU holds the guest's threads by their numbers. Threads come and go.
type guestCPU map[string]thread

// guestCPU asks the guest.
func (b *bench) guestCPU() (guestCPU, error) {
	out, err := b.run("@threads")
	if err != nil {
		return nil, err
	}
	return parseThreads(out)
}

// parseThreads reads the output of @threads.
func parseThreads(text string) (guestCPU, error) {
	u := make(guestCPU)
	for line := range strings.Lines(text) {
		name, user, system, err := harness.ParseStat(line)
		if err != nil {
			return nil, err
		}
		t := thread{user: user, system: system}
		switch {
		case name == "target", name == "tgtd", strings.HasPrefix(name, "iscsi_"), strings.HasPrefix(name, "isert"):
			t.asUser, t.asSystem = byTargetUser, byTargetSystem
		case strings.HasPrefix(name, "kworker"):
			t.asSystem = byKworkers
		case strings.HasPrefix(name, "ksoftirqd"):
			t.asSystem = bySoftirqd
		}
		id, _, _ := strings.Cut(line, "(")
		u[id] = t
	}
	return u, nil
}

// perIO returns the processor time since before, in µs per I/O: that of the job, by its own report, that
// of other threads, and the rest of the processors' time while the job ran.
func (u guestCPU) perIO(before guestCPU, j job, d side) map[string]float64 {
	per := make(map[string]float64)
	for id, t := range u {
		was := before[id] // zero for a new thread
		per[t.asUser] += float64((t.user - was.user).Microseconds()) / d.TotalIOs
		per[t.asSystem] += float64((t.system - was.system).Microseconds()) / d.TotalIOs
	}
	per[byFio] = (j.User + j.System) / 100 * 1e6 / d.IOPS
	delete(per, "")
	left := guestProcessors * 1e6 / d.IOPS
	for _, used := range per {
		left -= used
	}
	per[byRest] = max(0, left)
	return per
}

// hostCPU is the time of the host's processors so far.
type hostCPU struct{ all, busy, guest time.Duration }

func (b *bench) hostCPU() (h hostCPU, err error) {
	if h.all, h.busy, err = harness.MachineCPU(); err != nil {
		return h, err
	}
	for _, g := range []*guest{b.guest, b.peer} {
		if g == nil {
			continue
		}
		cpu, err := harness.ProcessCPU(g.PID())
		if err != nil {
			return h, err
		}
		h.guest += cpu
	}
	return h, nil
}

// others returns the share of the host that was taken since before, except by the guests.
func (h hostCPU) others(before hostCPU) float64 {
	if h.all == before.all {
		return 0
	}
	return max(0, float64(h.busy-before.busy-(h.guest-before.guest))/float64(h.all-before.all))
}
