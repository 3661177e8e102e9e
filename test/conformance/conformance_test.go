package conformance

import (
	"slices"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

// A logical unit of each kind has a target of its own: the tests of one reset
// and reconfigure it, while those of another run beside them.
const (
	iqnPrefix = "iqn.2026-11.example.oneshot:"
	user      = "initiator"
	secret    = "correct-horse-1"

	config = `
state: $DIR/state
stores:
  memory:   {type: memory, size: 64MiB}
  file:     {type: file, path: $DIR/file.img, size: 64MiB, sparse: true}
  blocks4k: {type: memory, size: 64MiB}
  readonly: {type: memory, size: 64MiB}
  removable: {type: file, path: $DIR/removable.img, size: 64MiB, sparse: true}
  chap:     {type: memory, size: 64MiB}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:memory", luns: {0: memory}}
  - {iqn: "iqn.2026-11.example.oneshot:file", luns: {0: file}}
  - {iqn: "iqn.2026-11.example.oneshot:blocks4k", luns: {0: {store: blocks4k, block_size: 4096}}}
  - {iqn: "iqn.2026-11.example.oneshot:readonly", luns: {0: {store: readonly, readonly: true}}}
  - {iqn: "iqn.2026-11.example.oneshot:removable", luns: {0: {store: removable, removable: true}}}
  - iqn: "iqn.2026-11.example.oneshot:chap"
    luns: {0: chap}
    auth: {chap: {user: initiator, secret: correct-horse-1}}
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: tcp, listen: $PORTAL2}
`
)

// TestConformance runs every test the tool has against every kind of writable
// logical unit; the kinds run side by side.
func TestConformance(t *testing.T) {
	tests, err := listTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tg := targettest.Start(t, config)
	for _, kind := range []string{"memory", "file", "blocks4k"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := tg.URL(iqnPrefix+kind, 0)
			second := strings.Replace(url, tg.Portals[0], tg.Portals[1], 1)
			for _, test := range tests {
				urls := []string{url}
				if strings.HasPrefix(test, "MultipathIO.") {
					urls = append(urls, second)
				}
				check(t, test, find(kind, test), urls...)
			}
		})
	}
}

// TestReadOnly runs what reads, and what must be refused, against a
// write-protected logical unit.
func TestReadOnly(t *testing.T) {
	tg := targettest.Start(t, config)
	url := tg.URL(iqnPrefix+"readonly", 0)
	for _, test := range []string{
		"ReadOnly.ReadOnlySBC",
		"Inquiry.Standard", "Inquiry.BlockLimits", "Inquiry.SupportedVPD", "Mandatory.MandatorySBC",
		"ModeSense6.AllPages", "ModeSense6.Control", "ModeSense6.Residuals",
		"Read6.Simple", "Read10.Simple", "Read12.Simple", "Read16.Simple", "Read16.BeyondEol",
		"ReadCapacity10.Simple", "ReadCapacity16.Simple", "ReportSupportedOpcodes.Simple",
		"Prefetch16.Simple", "TestUnitReady.Simple", "iSCSIResiduals.Read10Residuals",
	} {
		check(t, test, nil, url)
	}
}

// TestRemovable runs what ejects the medium against a logical unit that allows it.
func TestRemovable(t *testing.T) {
	tests, err := listTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tg := targettest.Start(t, config)
	for _, test := range tests {
		switch suite, _, _ := strings.Cut(test, "."); suite {
		case "NoMedia", "PreventAllow", "StartStopUnit":
			check(t, test, nil, tg.URL(iqnPrefix+"removable", 0))
		}
	}
}

// TestCHAP runs a few tests through a login with CHAP, and one with a wrong
// secret, without any, and under another name.
func TestCHAP(t *testing.T) {
	tg := targettest.Start(t, config)
	iqn := iqnPrefix + "chap"
	for _, test := range []string{
		"TestUnitReady.Simple", "Read16.Simple", "Write16.Simple", "iSCSIcmdsn.iSCSICmdSnTooHigh",
		"iSCSITMF.AbortTaskSimpleAsync", "Reserve6.Logout",
	} {
		check(t, test, find("chap", test), tg.CHAPURL(user, secret, iqn, 0))
	}
	for name, url := range map[string]string{
		"wrong secret": tg.CHAPURL(user, "wrong-secret-99", iqn, 0),
		"wrong name":   tg.CHAPURL("somebody", secret, iqn, 0),
		"no CHAP":      tg.URL(iqn, 0),
	} {
		t.Run(name, func(t *testing.T) {
			r := runTest(t.Context(), "TestUnitReady.Simple", url)
			if r.verdict != fail || !strings.Contains(r.output, "Failed to connect") {
				t.Errorf("%s %s: want a refused login\n%s", r.verdict, r.reason, r.output)
			}
		})
	}
}

// check runs one test as a subtest: it passes, or comes to what the exception says.
func check(t *testing.T, test string, except *exception, urls ...string) {
	t.Run(test, func(t *testing.T) {
		r := runTest(t.Context(), test, urls...)
		switch {
		case except == nil && r.verdict != pass:
			t.Errorf("%s: %s\n%s", r.verdict, r.reason, excerpt(r.output))
		case except != nil && r.verdict == pass:
			t.Errorf("passes, but is listed as an exception (%s): take it off the list", except.because)
		case except != nil && r.verdict != except.verdict:
			t.Errorf("%s: %s; the list says %s: %s\n%s", r.verdict, r.reason, except.verdict, except.because, excerpt(r.output))
		}
	})
}

// excerpt is the end of a transcript, where the first failure mostly is, and
// enough before it to see what was asked.
func excerpt(out string) string {
	const keep = 60
	lines := strings.Split(out, "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "[FAILED]") }); i >= 0 {
		lines = lines[:min(i+10, len(lines))]
	}
	return strings.Join(lines[max(0, len(lines)-keep):], "\n")
}

// TestExceptions: a name that the tool does not have would never be compared.
func TestExceptions(t *testing.T) {
	tests, err := listTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]exception{everywhere, blocks4k} {
		seen := map[string]bool{}
		for _, e := range list {
			if !slices.Contains(tests, e.test) {
				t.Errorf("%s: the tool has no such test", e.test)
			}
			if seen[e.test] {
				t.Errorf("%s is listed twice", e.test)
			}
			seen[e.test] = true
			if e.verdict == pass || e.because == "" {
				t.Errorf("%s: an exception needs another verdict than %s and a reason", e.test, pass)
			}
		}
	}
}
