package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

// envAll has all tools look at all kinds.
const envAll = "ONESHOT_CONFORMANCE_ALL"

// TestConformance runs every test of the installed tool against logical units of every kind, those that are made for it, and every
// test of the newer one against memory; tools and kinds run side by side.
func TestConformance(t *testing.T) {
	used, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	for _, tl := range used {
		t.Run(tl.name, func(t *testing.T) {
			t.Parallel()
			tests, err := tl.list(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			r := releaseOf(tests)
			kinds := kinds(t)
			tg := targettest.Start(t, configuration(kinds))
			for _, k := range kinds {
				if tl.name == newer && k.name != "memory" && os.Getenv(envAll) == "" {
					continue // the installed one has nearly the same tests: they look at what the other kinds do differently
				}
				t.Run(k.name, func(t *testing.T) {
					t.Parallel()
					count := make(map[verdict]int)
					for _, test := range tests {
						count[check(t, tl, test, find(r, k.name, test.name), urls(tg, k.name, test.name)...)]++
					}
					t.Logf("%d tests: %d %s, %d %s, %d %s", len(tests), count[pass], pass, count[fail]+count[hang], fail, count[skip], skip)
				})
			}
		})
	}
}

// TestReadOnly runs what reads, and what must be refused, against a
// write-protected logical unit.
func TestReadOnly(t *testing.T) {
	tg := targettest.Start(t, configuration(kinds(t)))
	url := tg.URL(iqnPrefix+"memory", readOnly)
	for _, name := range []string{
		"Inquiry.Standard", "Inquiry.BlockLimits", "Inquiry.SupportedVPD", "Mandatory.MandatorySBC",
		"ModeSense6.AllPages", "ModeSense6.Control", "ModeSense6.Residuals",
		"Read6.Simple", "Read10.Simple", "Read12.Simple", "Read16.Simple", "Read16.BeyondEol",
		"ReadCapacity10.Simple", "ReadCapacity16.Simple", "ReportSupportedOpcodes.Simple",
		"Prefetch16.Simple", "TestUnitReady.Simple", "iSCSIResiduals.Read10Residuals",
	} {
		check(t, installed, test{"ALL", name}, nil, url)
	}
}

// TestCHAP runs a few tests through a login with CHAP, and one with a wrong
// secret, without any, and under another name.
func TestCHAP(t *testing.T) {
	tg := targettest.Start(t, configuration(kinds(t)))
	iqn := chapIQN("memory", hexUser)
	for _, name := range []string{
		"TestUnitReady.Simple", "Read16.Simple", "Write16.Simple", "iSCSIcmdsn.iSCSICmdSnTooHigh", "Reserve6.Logout",
	} {
		check(t, installed, test{"ALL", name}, nil, tg.CHAPURL(hexUser, secret, iqn, 0))
	}
	for name, url := range map[string]string{
		"wrong secret": tg.CHAPURL(hexUser, "wrong-secret-99", iqn, 0),
		"wrong name":   tg.CHAPURL("somebody", secret, iqn, 0),
		"no CHAP":      tg.URL(iqn, 0),
	} {
		t.Run(name, func(t *testing.T) {
			r := installed.run(t.Context(), testTimeout, test{"ALL", "TestUnitReady.Simple"}, url)
			if r.verdict != fail || !strings.Contains(r.output, "Failed to connect") {
				t.Errorf("%s %s: want a refused login\n%s", r.verdict, r.reason, r.output)
			}
		})
	}
}

// check runs one test as a subtest: it passes, or comes to what the exception says.
func check(t *testing.T, tl tool, ts test, except *exception, urls ...string) verdict {
	var r result
	t.Run(ts.name, func(t *testing.T) {
		limit := testTimeout
		if except != nil && except.verdict == hang {
			limit = hangTimeout
		}
		r = tl.run(t.Context(), limit, ts, urls...)
		switch {
		case except == nil && r.verdict != pass:
			t.Errorf("%s: %s\n%s", r.verdict, r.reason, excerpt(r.output))
		case except != nil && r.verdict == pass:
			t.Errorf("passes, but is listed as an exception (%s): take it off the list", except.because)
		case except != nil && r.verdict != except.verdict:
			t.Errorf("%s: %s; the list says %s: %s\n%s", r.verdict, r.reason, except.verdict, except.because, excerpt(r.output))
		}
	})
	return r.verdict
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
	used, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	for _, tl := range used {
		tests, err := tl.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := releaseOf(tests)
		for _, l := range lists {
			for _, e := range l.exceptions {
				if r >= l.from && r <= l.to && !slices.ContainsFunc(tests, func(ts test) bool { return ts.name == e.test }) {
					t.Errorf("%s: %s has no such test", e.test, tl.name)
				}
				if e.verdict == pass || e.because == "" {
					t.Errorf("%s: an exception needs another verdict than %s and a reason", e.test, pass)
				}
			}
		}
	}
}
