package main

import (
	"strings"
	"time"

	"oneshot/bench/harness"
)

// shares are the users of the guest's processors, as tables show them. What a software device does
// in softirqs is counted for whom it interrupts.
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

// thread is what a thread of the guest has used so far, and for which shares.
type thread struct {
	user, system     time.Duration
	asUser, asSystem string // of shares; empty: for none
}

// guestCPU is the guest's threads by their numbers. They come and go.
type guestCPU map[string]thread

// guestCPU asks the guest.
func (b *bench) guestCPU() (guestCPU, error) {
	out, err := b.run("@threads")
	if err != nil {
		return nil, err
	}
	return parseThreads(out)
}

// parseThreads reads what @threads says.
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

// perIO is what has been used since before, in µs per I/O: by the job, as it says itself, by
// others, and what is left of the processors while it ran.
func (u guestCPU) perIO(before guestCPU, j job, d side) map[string]float64 {
	per := make(map[string]float64)
	for id, t := range u {
		was := before[id] // nothing, for a thread that is new
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

// hostCPU is time of the host's processors so far.
type hostCPU struct{ all, busy, guest time.Duration }

func (b *bench) hostCPU() (h hostCPU, err error) {
	if h.all, h.busy, err = harness.MachineCPU(); err != nil {
		return h, err
	}
	h.guest, err = harness.ProcessCPU(b.PID())
	return h, err
}

// others is the share of the host that others than the guest have taken since before.
func (h hostCPU) others(before hostCPU) float64 {
	if h.all == before.all {
		return 0
	}
	return max(0, float64(h.busy-before.busy-(h.guest-before.guest))/float64(h.all-before.all))
}
