package keeper

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// WatchdogTimeout is how long the device waits for a sign of life before it resets the machine.
const WatchdogTimeout = 10 * time.Second

// Watchdog is a device that resets the machine when nobody pets it (Linux, Documentation/watchdog/watchdog-api.rst).
type Watchdog struct {
	Path string
	f    *os.File
}

// OpenWatchdog opens a device, which is armed from then on.
func OpenWatchdog(path string) (*Watchdog, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("the watchdog %s is in use: another program pets it (RuntimeWatchdogSec= of systemd, perhaps); choose another one", path)
	case err != nil:
		return nil, fmt.Errorf("the watchdog cannot be opened: %w", err)
	}
	w := &Watchdog{path, f}
	switch _, err := unix.IoctlGetInt(int(f.Fd()), unix.WDIOC_GETTIMEOUT); {
	case errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL): // Close would write to whatever it is
		return nil, errors.Join(fmt.Errorf("%s is no watchdog", path), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("the watchdog %s says nothing of its timeout: %w", path, err), w.Close())
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, int(WatchdogTimeout/time.Second)); err != nil {
		return nil, errors.Join(fmt.Errorf("the watchdog %s does not take a timeout of %v: %w", path, WatchdogTimeout, err), w.Close())
	}
	return w, nil
}

// pet gives a sign of life.
func (w *Watchdog) pet() error {
	if err := unix.IoctlWatchdogKeepalive(int(w.f.Fd())); err != nil {
		return fmt.Errorf("the watchdog cannot be petted: %w", err)
	}
	return nil
}

// Close disarms the device, unless the kernel was told to never do that (nowayout): a last 'V' says that the end is meant.
func (w *Watchdog) Close() error {
	_, err := w.f.WriteString("V")
	return errors.Join(err, w.f.Close())
}
