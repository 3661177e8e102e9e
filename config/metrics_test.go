package config

import (
	"strings"
	"testing"
)

const operated = `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: a}}]
`

func TestOperations(t *testing.T) {
	c, err := Parse("/etc/oneshot/x.yaml", []byte(operated+`
metrics: {listen: "127.0.0.1:9327", pprof: true}
management: {socket: run/target.sock}
`))
	if err != nil || len(c.Warnings) != 0 {
		t.Fatalf("%v %v", err, c.Warnings)
	}
	if m := c.Metrics; !m.Given || m.Address() != "127.0.0.1:9327" || m.Network() != "tcp4" || !m.Pprof {
		t.Errorf("%+v", m)
	}
	if got := c.Management.Socket; got != "/etc/oneshot/run/target.sock" {
		t.Error(got)
	}
	if c, err = Parse("x.yaml", []byte(operated)); err != nil || c.Metrics.Given || c.Management.Socket != "" {
		t.Errorf("without the keys: %v", err)
	}
	c, err = Parse("x.yaml", []byte(operated+`metrics: {listen: "*:9327", pprof: true}`))
	if err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Message, "profiles") {
		t.Errorf("profiles for everybody: %v %v", err, c.Warnings)
	}
}

func TestOperationsProblems(t *testing.T) {
	for text, want := range map[string]string{
		`metrics: {}`:                  "no address",
		`metrics: {pprof: true}`:       "no address",
		`metrics: {listen: 127.0.0.1}`: "127.0.0.1:9327",
		`metrics: {listen: "x:1"}`:     "not an IP address",
		`management: {}`:               "no socket",
		`management: {socket: ""}`:     "empty",
		`management: {socket: /` + strings.Repeat("x", 100) + `}`: "at most 100",
		`management: {path: /x}`:                                  "unknown key",
	} {
		if _, err := Parse("x.yaml", []byte(operated+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, which does not say %q", text, err, want)
		}
	}
}
