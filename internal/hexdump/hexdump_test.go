package hexdump

import (
	"bytes"
	"testing"
)

func TestParse(t *testing.T) {
	got := Parse(t, `00 01 # the first two
		0a0B	ff # 99
		# nothing`)
	if want := []byte{0, 1, 10, 11, 255}; !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
