// Package fab runs nvmFabTest, a suite of cases for controllers of NVMe over Fabrics, against the daemon: in a virtual machine whose kernel and
// programs are those of a newer Debian, because the suite needs Python 3.12.
//
// That part of it is built with the tag nvmfabtest. NVMFABTEST names the directory of the suite, as make nvmfabtest NVMFABTEST=DIR does. A case
// that does not pass must be listed in exceptions.go with the reason, and a listed one that passes is an error, too, so that the list stays true.
package fab

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// verdict is what became of a case.
type verdict struct {
	status string // passed, failed or skipped
	why    string // in a line, if it has not passed
	text   string // all that pytest says of that
}

// report is what pytest writes with --junit-xml.
type report struct {
	Cases []struct {
		Class   string    `xml:"classname,attr"`
		Failure []outcome `xml:"failure"`
		Error   []outcome `xml:"error"` // of what comes before or after the case
		Skipped []outcome `xml:"skipped"`
	} `xml:"testsuite>testcase"`
}

type outcome struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// verdicts returns what became of each case in a report, by its file: that of test_nvme_read_001.py is nvme_read_001. A case that fails, and then
// cannot clean up, is in there twice: the first failure counts.
func verdicts(text string) (map[string]verdict, error) {
	var r report
	if err := xml.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("the report of pytest: %w\n%s", err, text)
	}
	all := make(map[string]verdict)
	for _, c := range r.Cases {
		name := c.Class // as test_cases.nvme_io_cmds.read_command.test_nvme_read_001.TestNVMeRead
		for part := range strings.SplitSeq(c.Class, ".") {
			if file, is := strings.CutPrefix(part, "test_"); is {
				name = file
			}
		}
		v := verdict{status: "passed"}
		for status, outcomes := range map[string][]outcome{"failed": append(c.Failure, c.Error...), "skipped": c.Skipped} {
			if len(outcomes) > 0 {
				v = verdict{status, outcomes[0].Message, outcomes[0].Text}
			}
		}
		if before, twice := all[name]; !twice || before.status == "passed" {
			all[name] = v
		}
	}
	return all, nil
}
