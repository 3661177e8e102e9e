package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"oneshot/test/targettest"
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

// Nor does it stay for one: an error that nobody reads, because the pipe is full, does not keep it from its end.
func TestAttachEndsThoughNobodyReads(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "attach", "iscsi://127.0.0.1:1/"+iqn+"/0") // where nobody listens
	cmd.Args[0] = "initiator"
	cmd.Stderr = targettest.FullPipe(t)
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitError {
		t.Errorf("it ends with %v", err)
	}
}
