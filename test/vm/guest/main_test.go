package main

import (
	"slices"
	"testing"
	"time"
)

// TestRunForeign: all that a program has written is said before it is said to have ended, also where that takes long, and also if it
// leaves a process behind that keeps its output.
func TestRunForeign(t *testing.T) {
	for _, c := range []struct {
		script string
		want   []string
		exit   int
	}{
		{"echo one; echo; echo two >&2; exit 3", []string{"one", "", "two"}, 3},
		{"sleep 600 & echo $!; printf 'no end'", []string{"", "no end"}, 0},
		{"exit 0", nil, 0},
	} {
		var said []string
		exit := runForeign(func(line string) {
			time.Sleep(400 * time.Millisecond) // the way to the host is slow
			said = append(said, line)
		}, []string{"bash", "-c", c.script})
		if len(said) > 1 && c.want[0] == "" {
			runForeign(func(string) {}, []string{"kill", said[0]})
			said[0] = ""
		}
		if exit != c.exit || !slices.Equal(said, c.want) {
			t.Errorf("%s: %q, %d", c.script, said, exit)
		}
	}
}
