package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend/backendtest"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The example does what it says, over the wire, and is short.
func TestExample(t *testing.T) {
	disk := backendtest.NewDisk(64<<10, 4096)
	h := endpointtest.New(t, disk)
	url := h.Listen()
	say := func(in, want string) {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), url, endpoint.Options{Sole: true, Durable: true}, strings.NewReader(in), &out); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("%q, want %q at the end", out.String(), want)
		}
	}
	say("one\ntwo\n", "1 is durable\n2 is durable\n")
	say("three", "1: one\n2: two\n3 is durable\n")
	var many strings.Builder
	for i := range 40 { // more than there is room for
		fmt.Fprintf(&many, "line %d\n", i)
	}
	say(many.String(), "43 is durable\n")
	say("", "43: line 39\n")
	if b := disk.Crash(nil, 0); !bytes.Contains(b, []byte("line 39")) {
		t.Error("the last line is not durable")
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(source, []byte("\n")); n >= 100 {
		t.Errorf("the example has %d lines", n)
	}
}
