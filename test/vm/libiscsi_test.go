package vm

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

// Verdicts of tests of iscsi-test-cu.
const (
	passed  = "passed"
	skipped = "skipped"
	failed  = "failed"
	died    = "died" // and the tool with it
)

// libiscsiTests lists tests of test/conformance that have the same verdict over iSER as over TCP: some for
// each kind of transfer, as many as there is time for. One process runs the tests of a list. The
// lists are short, because libiscsi never frees the memory of a connection.
var libiscsiTests = map[string][]string{
	"reading": {
		"ReadCapacity16.Simple", "ReportSupportedOpcodes.Simple", "GetLBAStatus.Simple", "Read6.Simple", "Read10.BeyondEol",
		"Read10.ZeroBlocks", "Read16.Simple", "Prefetch10.ZeroBlocks",
	},
	"writing": {"Write10.Simple", "Write12.BeyondEol", "Write12.ZeroBlocks", "Write16.DpoFua", "WriteVerify16.Flags", "Verify10.ZeroBlocks"},
	"more than writing": {
		"Verify16.Flags", "WriteSame10.Simple", "Unmap.VPD", "OrWrite.BeyondEol", "CompareAndWrite.Unwritten",
	},
}

// libiscsiCommands lists tests of what the units answer, whatever the way to them. They run if ONESHOT_VERBS is long.
var libiscsiCommands = map[string][]string{
	"about the unit": {
		"TestUnitReady.Simple", "Mandatory.MandatorySBC", "Inquiry.Standard", "Inquiry.EVPD", "Inquiry.MandatoryVPDSBC",
		"Inquiry.SupportedVPD", "Inquiry.VersionDescriptors", "ModeSense6.AllPages", "ModeSense6.Control", "ReadCapacity10.Simple",
	},
	"persistent reservations": {
		"PrinReadKeys.Simple", "PrinReportCapabilities.Simple", "ProutRegister.Simple", "ProutReserve.Simple", "ProutReserve.AccessEA",
	},
	"reservations":      {"ProutPreempt.RemoveRegistration", "Reserve6.Simple", "Reserve6.2Initiators"},
	"reservations, end": {"ProutReserve.OwnershipWE", "Reserve6.Logout"},
}

const (
	noResiduals = "libiscsi 1.19 hands up as many bytes as it had room for, whatever the residual count says"
	noLength    = "libiscsi 1.19 refuses to send the test's READ, which has no transfer length, and never uses its CmdSN again"
	noSilence   = "the test waits for a command that gets no answer, and a second of silence is an error for libiscsi 1.19"
	noTask      = "libiscsi 1.19 takes a task management request for a SCSI command, and follows the task that it has not"
	noWindow    = "the test has more commands outstanding than libiscsi 1.19 has memory for; it does not look at MaxCmdSN"
)

// silence is what libiscsi 1.19 says over iSER when nothing has come for a second. All commands of the connection fail then.
const silence = "revents is not POLLIN"

// libiscsiExceptions lists tests that have another verdict over TCP, one for each reason. They are run if ONESHOT_VERBS is long,
// and the test fails if a verdict is not the listed one.
var libiscsiExceptions = []struct{ test, verdict, because string }{
	{"Inquiry.AllocLength", failed, noLength},
	{"Inquiry.BlockLimits", failed, noResiduals},
	{"iSCSIcmdsn.iSCSICmdSnTooHigh", failed, noSilence},
	{"iSCSIdatasn.iSCSIDataSnInvalid", failed, "there are no Data-Out PDUs over iSER"},
	{"iSCSITMF.AbortTaskSimpleAsync", died, noTask},
	{"Read10.Async", died, noWindow},
}

// TestLibiscsiISER runs tests of libiscsi, which speaks iSER through the kernel's verbs.
func TestLibiscsiISER(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
`)
	startSiw.Do(t)
	url := "iser://" + guestAddr(t, tg.Portal()) + "/" + iqn + "/0"
	testLibiscsi(t, url, libiscsiTests)
	if !long() {
		return
	}
	testLibiscsi(t, url, libiscsiCommands)
	for _, e := range libiscsiExceptions {
		t.Run(e.test, func(t *testing.T) {
			if got, out := testCU(t, url, e.test); got[e.test] != e.verdict {
				t.Errorf("%s, and not %s, as it should because %s\n%s", got[e.test], e.verdict, e.because, out)
			}
		})
	}
}

// testLibiscsi runs the tests of lists.
func testLibiscsi(t *testing.T, url string, lists map[string][]string) {
	t.Helper()
	if out := guest.run(t, append(forgiving, "iscsi-inq", url)...); !strings.Contains(out, "ONESHOT") {
		t.Errorf("iscsi-inq says %q", out)
	}
	for name, tests := range lists {
		t.Run(name, func(t *testing.T) {
			got, out := testCU(t, url, tests...)
			for n := 1; n < 5 && strings.Contains(out, silence); n++ { // of a machine that others keep busy
				got, out = testCU(t, url, tests...)
			}
			for _, test := range tests {
				if got[test] != passed {
					t.Errorf("%s: %s\n%s", test, got[test], out)
				}
			}
		})
	}
}

// libiscsiVerbsTests lists tests for soft-RoCE, over which libiscsi passes more tests. Only a few of them transfer
// much data, because that takes long.
var libiscsiVerbsTests = map[string][]string{
	"copies and comparisons": {
		"ExtendedCopy.ParamHdr", "ExtendedCopy.DescrLimits", "ExtendedCopy.DescrType", "ExtendedCopy.ValidTgtDescr", "ExtendedCopy.ValidSegDescr",
		"CompareAndWrite.DpoFua", "OrWrite.ZeroBlocks", "OrWrite.Protect", "OrWrite.DpoFua",
	},
	"data": {
		"Read16.Simple", "Write16.Simple", "Read10.DpoFua", "Write12.DpoFua", "Verify10.Flags", "Prefetch10.Simple", "WriteSame10.UnmapVPD",
	},
}

// libiscsiVerbsCommands is libiscsiCommands for soft-RoCE.
var libiscsiVerbsCommands = map[string][]string{
	"about the unit": {
		"Inquiry.EVPD", "ModeSense6.Control-D_SENSE", "ModeSense6.Control-SWP", "NoMedia.NoMediaSBC", "GetLBAStatus.BeyondEol",
		"ReadCapacity16.Alloclen", "ReadCapacity16.PI", "ReadCapacity16.Support", "ReadDefectData10.Simple", "ReadDefectData12.Simple",
		"ReceiveCopyResults.CopyStatus", "ReceiveCopyResults.OpParams", "ReportSupportedOpcodes.OneCommand", "ReportSupportedOpcodes.RCTD",
		"ReportSupportedOpcodes.SERVACTV", "StartStopUnit.NoLoej",
	},
	"persistent reservations": {
		"PrinReadKeys.Truncate", "PrinServiceactionRange.Range", "ProutReserve.AccessWE", "ProutReserve.AccessEARO", "ProutReserve.AccessWERO",
		"ProutReserve.AccessEAAR", "ProutReserve.AccessWEAR",
	},
	"owners of reservations": {
		"ProutReserve.OwnershipEA", "ProutReserve.OwnershipEARO", "ProutReserve.OwnershipWERO", "ProutReserve.OwnershipEAAR",
		"ProutReserve.OwnershipWEAR", "ProutClear.Simple", "Reserve6.Simple", "Reserve6.2Initiators",
	},
}

// TestLibiscsiVerbs runs tests of libiscsi over soft-RoCE, the daemon in the guest as well.
func TestLibiscsiVerbs(t *testing.T) {
	d := rdmaDevices[0]
	d.start(t)
	portal := net.JoinHostPort(d.host, "3271")
	startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: %q, luns: {0: d}}]
portals: [{transport: verbs, listen: %q, device: %s}]
`, iqn, portal, d.name), 1)
	url := "iser://" + portal + "/" + iqn + "/0"
	testLibiscsi(t, url, libiscsiVerbsTests)
	if long() {
		testLibiscsi(t, url, libiscsiVerbsCommands)
	}
}

// forgiving is the beginning of a command that needs testdata/forgiving.c.
var forgiving = []string{"env", "LD_PRELOAD=/lib/forgiving.so", "timeout", "150"} // less than runTime

// For libiscsi 1.19 a second of silence, as on a busy machine, is an error, after which it sometimes waits for
// ever. Then it is run again.
const (
	timedOut = 124 // the exit status of timeout
	attempts = 3
)

// testCU runs tests, named Suite.Test, in one process, and returns their verdicts.
func testCU(t *testing.T, url string, tests ...string) (verdicts map[string]string, out string) {
	t.Helper()
	argv := append(forgiving[:len(forgiving):len(forgiving)],
		"iscsi-test-cu", "--dataloss", "--test=ALL."+strings.Join(tests, ",ALL."), url)
	for range attempts {
		var exit int
		if out, exit = guest.start(t, argv...).wait(t, guest); exit != timedOut {
			break
		}
	}
	return cuVerdicts(out), out
}

var (
	cuTest = regexp.MustCompile(`(?m)^  Test: (\S+) \.\.\.`)
	cuEnd  = regexp.MustCompile(`(?m)(passed|FAILED)$`)
)

// cuVerdicts reads the output of CUnit: a line for each suite, and after it one for each test, with notes
// of the tool and the verdict at its end.
func cuVerdicts(out string) map[string]string {
	verdicts := make(map[string]string)
	_, suites, _ := strings.Cut("\n"+out, "\nSuite: ")
	for suite := range strings.SplitSeq(suites, "\nSuite: ") {
		name, rest, _ := strings.Cut(suite, "\n")
		rest, _, _ = strings.Cut(rest, "\nRun Summary:")
		starts := cuTest.FindAllStringSubmatchIndex(rest, -1)
		for i, s := range starts {
			end := len(rest)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			test, notes := name+"."+rest[s[2]:s[3]], rest[s[1]:end]
			switch end := cuEnd.FindString(notes); {
			case end == "":
				verdicts[test] = died
			case end == "FAILED":
				verdicts[test] = failed
			case strings.Contains(notes, "[SKIPPED]"):
				verdicts[test] = skipped
			default:
				verdicts[test] = passed
			}
		}
	}
	return verdicts
}

func TestCUVerdicts(t *testing.T) {
	got := cuVerdicts(`
     CUnit - A unit testing framework for C - Version 2.1-3

Suite: Read10
  Test: Simple ...
passed
  Test: Async ...    [FAILED] a note
FAILED
    1. test_read10_async.c:97  - CU_ASSERT_EQUAL(ret,0)    [FAILED] Failed to send
Suite: ExtendedCopy
  Test: ParamHdr ...    [SKIPPED] not implemented.
passed
  Test: Simple ...passed

Run Summary:    Type  Total    Ran Passed Failed Inactive
Suite: Reserve6
  Test: Logout ...    Take out a RESERVE6
`)
	for test, want := range map[string]string{
		"Read10.Simple": passed, "Read10.Async": failed, "ExtendedCopy.ParamHdr": skipped, "ExtendedCopy.Simple": passed,
		"Reserve6.Logout": died,
	} {
		expect(t, test, got[test], want)
	}
}
