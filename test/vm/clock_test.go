package vm

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/test/vm/machine"
)

// TestClock: the guest's kernel has been told how quickly its time stamp counter runs, and believes it.
func TestClock(t *testing.T) {
	want := fmt.Sprintf("tsc: Detected %d.%03d MHz", machine.TSC()/1000, machine.TSC()%1000)
	if said := guest.run(t, "dmesg"); !strings.Contains(said, want) {
		t.Errorf("the kernel does not say %q:\n%s", want, said)
	}
}
