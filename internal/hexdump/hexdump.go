// Package hexdump reads the octets that tests lay out as their standards do.
package hexdump

import (
	"encoding/hex"
	"strings"
	"testing"
)

// Parse reads hexadecimal digits. White space does not count, nor does what follows a #.
func Parse(t testing.TB, text string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}
