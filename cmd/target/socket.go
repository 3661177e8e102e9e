package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oneshot/config"
)

// socketVariable is the environment variable that holds the path of the management socket: for serve without a
// configuration, and for the commands that ask a daemon.
const socketVariable = "ONESHOT_SOCKET"

// ownSocket returns the path of the management socket of a daemon without a configuration. Each user has one.
func ownSocket() string {
	if path := os.Getenv(socketVariable); path != "" {
		return path
	}
	uid := os.Geteuid()
	if uid == 0 {
		return config.DefaultSocket
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "oneshot", filepath.Base(config.DefaultSocket))
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("oneshot-%d", uid), filepath.Base(config.DefaultSocket))
}

// socketToAsk returns the management socket for a command without --socket: that of the user's own daemon, if
// there is one, or that of the system.
func socketToAsk() string {
	own := ownSocket()
	if os.Getenv(socketVariable) != "" || own == config.DefaultSocket {
		return own
	}
	if _, err := os.Stat(own); err == nil && private(filepath.Dir(own)) == nil {
		return own
	}
	return config.DefaultSocket
}

// makeOwnSocket makes the directory of ownSocket. It fails if there can be no socket of this process in it.
func makeOwnSocket() (string, error) {
	path := ownSocket()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := private(dir); err != nil {
		return "", err
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return "", fmt.Errorf("another daemon answers at %s", path)
	}
	return path, nil
}

// private returns an error if other users could put something into dir.
func private(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 || int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write to", dir)
	}
	return nil
}
