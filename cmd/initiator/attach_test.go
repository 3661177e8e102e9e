package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// attach, which serves a device, does not die of a line that nobody reads.
func TestAttachOutlivesReaders(t *testing.T) {
	r, w, err := os.Pipe()
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "attach", "iscsi://127.0.0.1:1/"+iqn+"/0") // where nobody listens
	cmd.Args[0] = "initiator"
	cmd.Stderr = w
	err = cmd.Run()
	_ = w.Close()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != exitError {
		t.Errorf("it ends with %v", err)
	}
}
