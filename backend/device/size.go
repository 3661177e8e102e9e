package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// sizeOf reconciles the size that was asked for with that of the device; bytes. What is left
// of a block at the end of the device is not served.
func sizeOf(want, device, block int64) (int64, error) {
	whole := device / block * block
	switch {
	case device == 0:
		return 0, errors.New("the device has no bytes: there is no medium in it, or it is not attached")
	case want < 0 || want%block != 0:
		return 0, fmt.Errorf("a size of %d bytes is not a multiple of the block size %d", want, block)
	case want > whole:
		return 0, fmt.Errorf("the device has %d bytes and the size is set to %d: leave it out to serve all of the device", whole, want)
	case want == 0:
		return whole, nil
	}
	return want, nil
}

// Resize makes the store size bytes long, within the device, or with 0 as long as the device
// has become; see backend.Resizer.
func (s *Store) Resize(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.grow(size); err != nil {
		return fmt.Errorf("device store %s: %w", s.Path(), err)
	}
	return nil
}

func (s *Store) grow(size int64) error {
	have := s.Info().Size
	device, err := deviceSize(s.fd)
	if err != nil {
		return err
	}
	now, err := sizeOf(size, device, s.block)
	switch {
	case err != nil:
		return err
	case now < have:
		return fmt.Errorf("%d bytes are served and %d are left: initiators would lose what is beyond; take the LUN away first", have, now)
	}
	s.limit = size
	s.SetSize(now)
	return nil
}

// watch looks at the size of the device until Close.
func (s *Store) watch(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			if s.look() && s.resized != nil {
				s.resized()
			}
		}
	}
}

// look follows the device, and reports whether the store has another size now. It follows
// also when the device has shrunk: what was beyond its end is gone.
func (s *Store) look() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	device, err := deviceSize(s.fd)
	if err != nil || device < s.block {
		return false // gone, or without medium: operations say so
	}
	have, now := s.Info().Size, device/s.block*s.block
	if s.limit > 0 {
		now = min(now, s.limit)
	}
	if now == have {
		return false
	}
	s.SetSize(now)
	level := slog.LevelInfo
	if now < have {
		level = slog.LevelError
	}
	s.log.Log(context.Background(), level, "device store: the device has another size", slog.Int64("bytes_before", have), slog.Int64("bytes", now))
	return true
}
