package command

import "testing"

func TestRoff(t *testing.T) {
	if got, want := roff("a\\b --x\n.dot\n'quote"), "a\\eb \\-\\-x\n\\&.dot\n\\&'quote"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
