package conformance

import (
	"slices"
	"testing"
)

func TestParseList(t *testing.T) {
	const out = `ALL
ALL.Read6
ALL.Read6.Simple
ALL.Read6.BeyondEol
SCSI
SCSI.Read6
SCSI.Read6.Simple
iSCSI.iSCSITMF.AbortTaskSimpleAsync
`
	want := []test{{"ALL", "Read6.Simple"}, {"ALL", "Read6.BeyondEol"}, {"iSCSI", "iSCSITMF.AbortTaskSimpleAsync"}}
	if got := parseList(out); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

const (
	probing = `    Send REPORT_SUPPORTED_OPCODE (Expecting SUCCESS) RCTD:1 OPTIONS:0 OPCODE:0x00 SA:0 ALLOC_LEN:65535
    [SKIPPED] REPORT_SUPPORTED_OPCODES is not implemented.
    [FAILED] MODESENSE6 command failed

Suite: Read10
`
	cleanUp = `    Send PRIN/READ_KEYS
    [SKIPPED] PRIN is not implemented.
    [FAILED] PRIN failed

`
	ranGood = `Run Summary:    Type  Total    Ran Passed Failed Inactive
              suites      1      1    n/a      0        0
               tests      1      1      1      0        0
             asserts      2      2      2      0      n/a
`
	ranBad = `Run Summary:    Type  Total    Ran Passed Failed Inactive
              suites      1      1    n/a      0        0
               tests      1      1      0      1        0
             asserts      2      2      0      2      n/a
`
)

func TestParseOutput(t *testing.T) {
	for _, tc := range []struct {
		name, out string
		verdict   verdict
		reason    string
	}{
		{
			"only probing and cleaning up complain",
			probing + "  Test: Simple ...\n    [OK] READ10 returned SUCCESS\npassed" + cleanUp + ranGood,
			pass, "",
		},
		{
			"skipped on the line of the name",
			probing + "  Test: Simple ...    [SKIPPED] Logical unit is not removable.\npassed" + cleanUp + ranGood,
			skip, "Logical unit is not removable.",
		},
		{
			"skipped half way",
			probing + "  Test: Simple ...\n    [OK] one\n    [SKIPPED] no READ10.\n    [SKIPPED] more.\npassed" + cleanUp + ranGood,
			skip, "no READ10.",
		},
		{
			"failed",
			probing + "  Test: Simple ...\n    [SKIPPED] part.\n    [FAILED] READ10 failed.\nFAILED\n" +
				"    1. test_read10.c:42  - CU_ASSERT_EQUAL(ret,0)" + cleanUp + ranBad,
			fail, "READ10 failed. (test_read10.c:42 CU_ASSERT_EQUAL(ret,0))",
		},
		{
			"no login",
			"Failed to log in to target\n",
			fail, "the test did not run: Failed to log in to target",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := parseOutput(tc.out)
			if got.verdict != tc.verdict || got.reason != tc.reason {
				t.Errorf("%s %q, want %s %q", got.verdict, got.reason, tc.verdict, tc.reason)
			}
		})
	}
}
