// Package harnesstest holds what the tests of the benchmarks share.
package harnesstest

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// Rects returns how many rectangles a picture has. The test fails if svg is not XML.
func Rects(t *testing.T, svg string) (n int) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			n++
		}
	}
}
