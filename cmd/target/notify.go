package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notify tells systemd of the state of this process (sd_notify(3)): lines of NAME=VALUE, in
// one datagram. Without systemd it does nothing, and nobody misses anything if systemd does not listen.
func notify(lines string) {
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

// notifyReloading begins a reload. systemd tells by the time which reload it was.
func notifyReloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
	}
}

// watchdogInterval is how often systemd wants to hear from us, halved to be in time; 0: never.
func watchdogInterval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}

// watchdog tells systemd that we live, until stop is closed: each time after health has
// returned, whatever it said. A target that stops is ill, but not hanging.
func watchdog(every time.Duration, health func() error, stop <-chan struct{}) {
	if every == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		_ = health()
		notify("WATCHDOG=1")
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}
