package blktests

import (
	"errors"
	"slices"
	"testing"
)

// fakePlace is a place whose tests do what is written; hangs is one that does not end.
type fakePlace struct {
	says    map[string]string
	ran     *[]string
	number  int
	stopped *[]int
}

const hangs = "hangs"

func (p *fakePlace) check(name string) (string, error) {
	*p.ran = append(*p.ran, name)
	out := p.says[name]
	if out == hangs {
		return "half a line", errors.New("it hangs")
	}
	return out, nil
}

func (p *fakePlace) stop() { *p.stopped = append(*p.stopped, p.number) }

// TestSuite: verdicts are read from what blktests prints, and a test that hangs, or has no verdict, takes its machine with it, but not the
// tests after it.
func TestSuite(t *testing.T) {
	says := map[string]string{
		"004": "nvme/004 (tr=tcp) (names)                                \nnvme/004 (tr=tcp) (names)                                [passed]\n    runtime  ...  34.870s\n",
		"005": hangs,
		"006": "nvme/006 (tr=tcp bd=file) (create)                       [not run]\n    kernel option X has not been enabled\n    and\n",
		"007": "", // as of one for drives, without any
		"008": "bash: ./check: No such file or directory\n",
		"010": "nvme/010 (tr=tcp bd=file) (fio)                          [failed]\n    runtime  ...  1s\n    --- tests/nvme/010.out\n    +FAIL\n",
	}
	var ran []string
	var stopped []int
	booted := 0
	s := &suite{boot: func() (place, error) {
		if booted++; booted == 3 {
			return nil, errors.New("no machine")
		}
		return &fakePlace{says, &ran, booted, &stopped}, nil
	}}
	for _, c := range []struct{ name, status, detail string }{
		{"004", "passed", "runtime ... 34.870s"},
		{"005", none, "it does not end"},
		{"006", "not run", "kernel option X has not been enabled and"},
		{"007", "not run", "it is for drives of this machine, of which blktests was told none"},
		{"008", none, "blktests has ended without one"},
		{"010", none, "the machine does not boot"},
		{"010", "failed", "runtime ... 1s --- tests/nvme/010.out +FAIL"},
	} {
		if v := s.run(c.name); v.status != c.status || v.detail != c.detail {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, v.status, v.detail, c.status, c.detail)
		}
	}
	s.stop()
	s.stop() // there is none any more
	if want := []string{"004", "005", "006", "007", "008", "010"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	if want := []int{1, 2, 4}; booted != 4 || !slices.Equal(stopped, want) {
		t.Errorf("%d machines, %v stopped; want 4, %v", booted, stopped, want)
	}
}
