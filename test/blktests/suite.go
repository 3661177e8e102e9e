package blktests

import (
	"fmt"
	"regexp"
	"strings"
)

// place is where a test of blktests runs: a virtual machine.
type place interface {
	// check runs a test by its name, as 004, and returns what blktests has printed. An error says that the test has not ended, or
	// that the machine is gone, and what the machine tells of it.
	check(name string) (string, error)
	stop()
}

// suite runs tests one after the other, in one machine as long as that is sound.
type suite struct {
	boot func() (place, error)
	at   place // nil: the next test boots one
}

// verdict is what became of a test.
type verdict struct {
	status string // passed, failed, not run, or none: blktests has said nothing
	detail string // what blktests adds to it, in one line
	out    string // all that was printed
}

// none is the status of a test without a verdict.
const none = "none"

// verdictLine is the one with which a test ends, and the lines that explain it.
var verdictLine = regexp.MustCompile(`(?m)^\w+/\d+ .*\[(passed|failed|not run)\]\s*\n((?: {4}.*\n)*)`)

// run runs a test. One that has no verdict may have left processes and devices that hang: its machine is stopped, and the next test
// gets a new one.
func (s *suite) run(name string) verdict {
	if s.at == nil {
		at, err := s.boot()
		if err != nil {
			return verdict{none, "the machine does not boot", err.Error()}
		}
		s.at = at
	}
	out, err := s.at.check(name)
	if err != nil {
		s.stop()
		return verdict{none, "it does not end", fmt.Sprintf("%s\n%v", out, err)}
	}
	if out == "" {
		return verdict{"not run", "it is for drives of this machine, of which blktests was told none", out}
	}
	m := verdictLine.FindStringSubmatch(out)
	if m == nil {
		s.stop()
		return verdict{none, "blktests has ended without one", out}
	}
	return verdict{m[1], strings.Join(strings.Fields(m[2]), " "), out}
}

// stop ends the machine.
func (s *suite) stop() {
	if s.at != nil {
		s.at.stop()
		s.at = nil
	}
}
