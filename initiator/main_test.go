package initiator_test

import (
	"testing"

	"go.uber.org/goleak"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

// noLeaks fails the test if a goroutine is left at its end.
func noLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}
