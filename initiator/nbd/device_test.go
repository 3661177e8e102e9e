package nbd

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// failingDevice cannot write back, and notes what is done with it. It is its kernel, too.
type failingDevice struct{ said []string }

func (d *failingDevice) say(what string) error {
	d.said = append(d.said, what)
	return nil
}

func (d *failingDevice) Sync() error                { return errors.Join(d.say("sync"), unix.EIO) }
func (d *failingDevice) Close() error               { return errors.Join(d.say("close"), unix.EIO) }
func (*failingDevice) Connect(Setting) (int, error) { return 0, unix.ENOTSUP }
func (*failingDevice) Reconfigure(Setting) error    { return unix.ENOTSUP }
func (d *failingDevice) Disconnect(int) error       { return d.say("disconnect") }

// A device whose data cannot be written back stays, unless it is to end all the same.
func TestEnd(t *testing.T) {
	d := new(failingDevice)
	if err := end(d, d, 0, false); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("end returns %v", err)
	}
	if want := []string{"sync", "close"}; !slices.Equal(d.said, want) {
		t.Errorf("without force: %v, want %v", d.said, want)
	}
	d = new(failingDevice)
	if err := end(d, d, 0, true); err != nil {
		t.Errorf("end with force returns %v", err)
	}
	if want := []string{"disconnect", "close"}; !slices.Equal(d.said, want) {
		t.Errorf("with force: %v, want %v", d.said, want)
	}
}
