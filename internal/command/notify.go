package command

import (
	"net"
	"os"
)

// Notify tells systemd the state of this process (sd_notify(3)): lines of NAME=VALUE, in one datagram. Without
// systemd it does nothing. It ignores errors.
func Notify(lines string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = c.Write([]byte(lines))
	_ = c.Close()
}
