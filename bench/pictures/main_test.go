package main

import (
	"os"
	"testing"
)

// The picture that is checked in shows the report that is checked in.
func TestSpeed(t *testing.T) {
	report, err := os.ReadFile("../../" + from)
	if err != nil {
		t.Fatal(err)
	}
	want, err := speed(string(report))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../" + to)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s does not show %s: go run ./bench/pictures", to, from)
	}
}

func TestBadReports(t *testing.T) {
	for _, report := range []string{
		"", "## 4 KiB\n", "## 4 KiB\n| target | IOPS |\n| --- | --- |\n| tgt | many |\n",
		"## 4 KiB\n| target | IOPS |\n| --- | --- |\n| tgt | 1000 |\n",
	} {
		if svg, err := speed(report); err == nil {
			t.Errorf("%q: %d octets of picture", report, len(svg))
		}
	}
}
