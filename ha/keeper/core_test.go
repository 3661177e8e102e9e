package keeper

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"oneshot/ha/front"
)

var address = front.Address{IP: netip.MustParseAddr("192.0.2.10"), Interface: "lo"}

// machine does what a core wants, on a machine that is a value, and notes when.
type machine struct {
	t       *testing.T
	core    *Core
	now     time.Duration
	stuck   bool // the kernel removes nothing
	has     bool
	until   time.Duration // the kernel drops it
	history []string
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, core: NewCore(), now: time.Hour}
}

func (m *machine) note(what string) {
	m.history = append(m.history, fmt.Sprintf("%d %s", (m.now-time.Hour).Milliseconds(), what))
}

func (m *machine) do(list []Action) {
	for _, a := range list {
		switch a.Kind {
		case Add:
			m.has, m.until = true, m.now+front.Lifetime
		case Remove:
			if !m.stuck {
				m.note("remove")
				m.has = false
				m.core.Drop(a.Address)
			}
		case Reset:
			m.note("reset")
		case Pet:
			m.note("pet")
		}
	}
}

// runs lets time pass, up to a millisecond after the start. The process runs.
func (m *machine) runs(to int) {
	for end, idle := time.Hour+time.Duration(to)*time.Millisecond, 0; ; {
		m.do(m.core.Tick(m.now, nil))
		next := max(m.core.Next(m.now), m.now)
		if idle++; next > m.now {
			idle = 0
		} else if idle > 2 {
			m.t.Fatalf("at %v the core is asked again and again", m.now)
		}
		if m.now = min(next, end); m.now == end {
			m.do(m.core.Tick(m.now, nil))
			return
		}
		if m.has && m.now >= m.until {
			m.note("dropped by the kernel")
			m.has = false
		}
	}
}

// holds asks for the address as of some milliseconds ago, and wants it to be new or not.
func (m *machine) holds(ago int, want bool) {
	m.t.Helper()
	isNew, err := m.core.Hold(m.now, address, m.now-time.Duration(ago)*time.Millisecond)
	if err != nil || isNew != want {
		m.t.Fatalf("at %v: new %t, error %v", m.now-time.Hour, isNew, err)
	}
	if isNew {
		m.note("add")
		m.do([]Action{{Add, address}})
	}
}

func (m *machine) says(want ...string) {
	m.t.Helper()
	got := slices.DeleteFunc(slices.Clone(m.history), func(s string) bool { return s[len(s)-3:] == "pet" })
	if !slices.Equal(got, want) {
		m.t.Errorf("it did %q, want %q", got, want)
	}
}

// pets returns how often the watchdog was petted.
func (m *machine) pets() int {
	return len(slices.DeleteFunc(slices.Clone(m.history), func(s string) bool { return s[len(s)-3:] != "pet" }))
}

// TestHeld: an address that is asked for again and again stays, for longer than the kernel holds it by itself.
func TestHeld(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	for at := 50; at <= 10000; at += 50 {
		m.runs(at)
		m.holds(0, false)
	}
	m.says("0 add")
	if !m.has || m.pets() < 10 {
		t.Errorf("the machine has the address: %t; the watchdog was petted %d times in 10 s", m.has, m.pets())
	}
}

// TestSilence: the daemon dies or hangs. The address goes after Patience, and who has connected meanwhile is reset when another node has it.
func TestSilence(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	m.runs(50)
	m.holds(0, false)
	m.runs(5000)
	m.says("0 add", "350 remove", "850 reset")
	if m.pets() < 5 {
		t.Errorf("the watchdog was petted %d times in 5 s: nothing is held that nobody asks for", m.pets())
	}
}

// TestHeard: who has connected is reset as soon as it is known that another machine has the address and this one has not, also if that was heard while
// the address was here still. If the daemon goes on to ask for it, what was heard before says nothing.
func TestHeard(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	m.runs(400)
	if !m.core.Heard(m.now, address) || m.core.Heard(m.now, address) {
		t.Error("it is news, once")
	}
	m.runs(5000)
	m.says("0 add", "300 remove", "400 reset")

	m = newMachine(t)
	m.holds(0, true)
	m.runs(100)
	m.core.Heard(m.now, address)
	m.runs(5000)
	m.says("0 add", "300 remove", "300 reset")

	m = newMachine(t)
	m.holds(0, true)
	m.runs(50)
	m.core.Heard(m.now, address)
	m.runs(100)
	m.holds(0, false)
	m.runs(5000)
	m.says("0 add", "400 remove", "900 reset")

	m = newMachine(t)
	m.stuck = true
	m.holds(0, true)
	m.runs(1000)
	m.core.Heard(m.now, address)
	m.runs(5000)
	m.says("0 add", "2000 dropped by the kernel", "2000 reset")
	if m.core.Heard(m.now, address) {
		t.Error("nobody waits, and the address is not here")
	}
}

// TestLate: what a request is good for counts from when the daemon knew that it was the primary, not from when the request is read: either
// process may have been stopped meanwhile.
func TestLate(t *testing.T) {
	m := newMachine(t)
	if isNew, err := m.core.Hold(m.now, address, m.now-Patience); err == nil || isNew || m.core.Holds(m.now, address) {
		t.Errorf("a request of the past: new %t, error %v", isNew, err)
	}
	m.holds(200, true)
	m.runs(90)
	m.holds(299, false) // that is older than the other one, and does not shorten it
	m.runs(1000)
	m.says("0 add", "100 remove", "600 reset")

	m = newMachine(t)
	m.holds(-3600000, true) // a time that has not come yet is that of a broken daemon
	m.runs(1000)
	m.says("0 add", "300 remove", "800 reset")
}

// TestStopped: a keeper that was stopped for so long that the kernel has dropped the address begins with what the clock says, and does not
// go on as if it had been there.
func TestStopped(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	m.now += time.Minute
	m.has = false
	m.do(m.core.Tick(m.now, nil))
	if m.core.Holds(m.now, address) || m.has {
		t.Error("the address is held after a minute")
	}
	m.holds(0, true)
	if !m.has {
		t.Error("the address is not added again")
	}
}

// TestBack: a daemon that is back and leads has the address and those who wait; one that does not lead begins without them.
func TestBack(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	m.runs(400)
	m.holds(0, true)
	m.runs(600)
	m.holds(0, false)
	m.runs(850)
	m.says("0 add", "300 remove", "400 add")

	m.runs(1000)
	m.do(m.core.Listen(address, nil))
	m.says("0 add", "300 remove", "400 add", "900 remove", "1000 reset")
	m.runs(5000)
	m.says("0 add", "300 remove", "400 add", "900 remove", "1000 reset")
}

// TestDropped: what the daemon itself removes has nobody reset: it has told them.
func TestDropped(t *testing.T) {
	m := newMachine(t)
	m.holds(0, true)
	m.runs(100)
	m.core.Drop(address)
	m.has = false
	m.runs(5000)
	m.says("0 add")
}

// TestStuck: as long as an address that nobody asks for cannot be removed the watchdog gets no sign of life, and nobody is reset.
func TestStuck(t *testing.T) {
	m := newMachine(t)
	m.stuck = true
	m.holds(0, true)
	m.runs(1900)
	if n := m.pets(); n != 1 {
		t.Errorf("the watchdog was petted %d times, with an address on the machine that nobody asks for", n)
	}
	m.runs(5000)
	m.says("0 add", "2000 dropped by the kernel", "2000 reset")
	if n := m.pets(); n < 3 {
		t.Errorf("the watchdog was petted %d times", n)
	}

	m.holds(0, true)
	m.runs(6000)
	m.stuck = false
	m.runs(9000)
	m.says("0 add", "2000 dropped by the kernel", "2000 reset", "5000 add", "6000 remove", "6000 reset")
}
