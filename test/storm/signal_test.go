package storm

import (
	"regexp"
	"syscall"
	"testing"

	"oneshot/test/targettest"
)

// TestSignalsAreHeard: Linux gives a signal to the first thread of a process. If that thread were in a read of a disk that hangs, nobody
// would hear of SIGTERM and SIGHUP before the read is over. So it is main's alone, and main waits for signals; Go's own list of what a
// process does says so.
func TestSignalsAreHeard(t *testing.T) {
	d := targettest.Start(t, `
stores: {disk: {type: memory, size: 16MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: disk}}]
portals: [{transport: tcp, listen: $PORTAL}]
`)
	if err := syscall.Kill(d.PID(), syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-d.Exited()
	d.Kill() // for targettest: it is down
	if !regexp.MustCompile(`(?m)^goroutine 1 .*, locked to thread\]`).MatchString(d.Log()) {
		t.Error("main is not alone with the first thread")
	}
}
