package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"oneshot/test/vm/agent"
)

// commands of the guest's own.
var commands = map[string]func(say func(string), args []string) error{
	"@mount":     mount,
	"@umount":    umount,
	"@cat":       cat,
	"@write":     write,
	"@sync":      func(func(string), []string) error { unix.Sync(); return nil },
	"@fill":      fill,
	"@space":     space,
	"@sum":       sum,
	"@drop":      drop,
	"@remove":    remove,
	"@records":   records,
	"@check":     check,
	"@signal":    signal,
	"@held":      held,
	"@allocated": allocated,
	"@direct":    direct,
	"@busy":      busy,
}

// mount: @mount TYPE DEVICE DIR
func mount(_ func(string), a []string) error {
	if err := os.MkdirAll(a[2], 0o755); err != nil {
		return err
	}
	return unix.Mount(a[1], a[2], a[0], 0, "")
}

// umount: @umount DIR
func umount(_ func(string), a []string) error { return unix.Unmount(a[0], 0) }

// cat: @cat FILE
func cat(say func(string), a []string) error {
	b, err := os.ReadFile(a[0])
	if err == nil {
		say(string(b))
	}
	return err
}

// write: @write FILE TEXT
func write(_ func(string), a []string) error {
	if err := os.MkdirAll(filepath.Dir(a[0]), 0o755); err != nil {
		return err
	}
	return os.WriteFile(a[0], []byte(a[1]), 0o644)
}

// fill: @fill DIR FILES BYTES SEED makes files of BYTES in all with what SEED gives, and
// syncs them.
func fill(_ func(string), a []string) error {
	files, bytes, seed := number(a[1]), number(a[2]), number(a[3])
	src := agent.NewBytes(uint64(seed), 0)
	for i := range files {
		name := filepath.Join(a[0], fmt.Sprintf("d%d", i%16), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, src, int64(bytes/files+i%7))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	unix.Sync()
	return nil
}

// space: @space DIR says how many bytes the file system has for files.
func space(say func(string), a []string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(a[0], &st); err != nil {
		return err
	}
	say(strconv.FormatUint(st.Blocks*uint64(st.Bsize), 10))
	return nil
}

// sum: @sum DIR says a digest of all names and bytes below DIR.
func sum(say func(string), a []string) error {
	h := crc64.New(crc64.MakeTable(crc64.ECMA)) // SHA-256 takes several times as long in QEMU
	err := filepath.Walk(a[0], func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintln(h, strings.TrimPrefix(path, a[0]), info.Size())
		_, err = io.Copy(h, f)
		return err
	})
	say(hex.EncodeToString(h.Sum(nil)))
	return err
}

// drop: @drop forgets what the page cache holds.
func drop(func(string), []string) error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// remove: @remove DIR
func remove(_ func(string), a []string) error {
	defer unix.Sync()
	return os.RemoveAll(a[0])
}

// records: @records FILE COUNT [STOP] appends records, and says the number of each after fsync. With STOP it
// goes on until there is a file of that name, and appends COUNT records then.
func records(say func(string), a []string) error {
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	count, stopped := uint64(number(a[1])), len(a) < 3
	for n := uint64(0); n < count || !stopped; n++ {
		if !stopped {
			if _, err := os.Stat(a[2]); err == nil {
				stopped, count = true, n+count
			}
		}
		if _, err := f.Write(agent.Record(n)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		say(strconv.FormatUint(n, 10))
	}
	return nil
}

// check: @check FILE COUNT looks for the first COUNT records.
func check(_ func(string), a []string) error {
	f, err := os.Open(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	return agent.CheckRecords(f, uint64(number(a[1])))
}

// allocated: @allocated FILE says how many bytes a file takes on its medium.
func allocated(say func(string), a []string) error {
	var st unix.Stat_t
	err := unix.Stat(a[0], &st)
	say(strconv.FormatInt(st.Blocks*512, 10))
	return err
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}
