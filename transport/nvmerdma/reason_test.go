package nvmerdma

import (
	"errors"
	"strings"
	"testing"

	"oneshot/nvme"
	"oneshot/transport/rdma/rdmatest"
)

// logLines are the lines of a log.
type logLines chan string

func (l logLines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestReasonOfOffence: the log says why a connection has ended, also if the target has noticed first that it cannot send an
// answer any more.
func TestReasonOfOffence(t *testing.T) {
	log := make(logLines, 100)
	b := newBenchOf(t, rdmatest.NewFake(), log)
	p := b.queue()
	check(t, p.Close()) // so the answer is refused
	p.Say(b.command(nvme.Command{Opcode: nvme.Flush, NSID: 1}, 0))
	p.EndFor(errors.New("the message was too long"))
	line := <-log
	for ; !strings.Contains(line, "connection lost"); line = <-log {
	}
	if !strings.Contains(line, "too long") {
		t.Errorf("the log says %s", line)
	}
}
