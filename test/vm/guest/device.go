package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	commands["@fetch"] = fetch
	commands["@module"] = module
	commands["@unload"] = func(_ func(string), a []string) error { return unix.DeleteModule(a[0], unix.O_NONBLOCK) } // @unload MODULE
	commands["@disk"] = disk
	commands["@rename"] = func(_ func(string), a []string) error { return os.Rename(a[0], a[1]) } // @rename OLD NEW
}

// fetch: @fetch URL FILE downloads a file that can be run.
func fetch(_ func(string), a []string) error {
	r, err := http.Get(a[0])
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", a[0], r.Status)
	}
	f, err := os.OpenFile(a[1], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r.Body)
	return errors.Join(err, f.Close())
}

// module: @module FILE PARAMETERS loads a module, unless it is there.
func module(_ func(string), a []string) error {
	f, err := os.Open(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), a[1], 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("module %s: %w", a[0], err)
	}
	return nil
}

// disk: @disk MODEL says the path of the first disk of that model, for which it waits.
func disk(say func(string), a []string) error {
	for range 200 {
		models, _ := filepath.Glob("/sys/block/*/device/model")
		for _, m := range models {
			b, _ := os.ReadFile(m)
			path := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(m)))
			if _, err := os.Stat(path); err == nil && strings.TrimSpace(string(b)) == a[0] {
				say(path)
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("there is no disk %q", a[0])
}
