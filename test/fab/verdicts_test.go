package fab

import (
	"maps"
	"testing"
)

// TestVerdicts: a report of pytest has one verdict for each case, also if it fails before it begins, or fails and cannot clean up.
func TestVerdicts(t *testing.T) {
	got, err := verdicts(`<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="2" failures="1" skipped="1" tests="6">
<testcase classname="test_cases.nvme_io_cmds.read_command.test_nvme_read_001.TestNVMeRead" name="test_read_cmd" time="0.3" />
<testcase classname="test_cases.error_injection.test_link_failure.TestLinkFailure" name="test_link_failure"><error message="failed on setup">no interface</error></testcase>
<testcase classname="test_cases.c.test_nvme_connect_001.TestNVMeConnect" name="test"><failure message="assert False">the lines</failure></testcase>
<testcase classname="test_cases.c.test_nvme_connect_001.TestNVMeConnect" name="test"><error message="failed on teardown">more lines</error></testcase>
<testcase classname="test_cases.c.test_nvme_connect_004.TestNVMeConnect" name="test"><skipped type="pytest.skip" message="not here">file.py:7</skipped></testcase>
<testcase classname="test_cases.c.test_nvme_connect_006.TestNVMeConnect" name="test" />
<testcase classname="test_cases.c.test_nvme_connect_006.TestNVMeConnect" name="test"><error message="failed on teardown">disconnect</error></testcase>
<testcase classname="test_cases.test_session_setup" name="test_session_setup" /></testsuite></testsuites>`)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]verdict{
		"nvme_read_001":    {status: "passed"},
		"link_failure":     {"failed", "failed on setup", "no interface"},
		"nvme_connect_001": {"failed", "assert False", "the lines"},
		"nvme_connect_004": {"skipped", "not here", "file.py:7"},
		"nvme_connect_006": {"failed", "failed on teardown", "disconnect"},
		"session_setup":    {status: "passed"},
	}
	if !maps.Equal(got, want) {
		t.Errorf("the verdicts are %+v, want %+v", got, want)
	}
	if _, err := verdicts("Segmentation fault"); err == nil {
		t.Error("what is no report has verdicts")
	}
}
