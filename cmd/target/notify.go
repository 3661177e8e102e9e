package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/command"
)

// notifyReloading tells systemd that a reload begins. systemd recognizes the reload by its time.
func notifyReloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		command.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
	}
}

// watchdogInterval returns half of the interval in which systemd expects a message; 0: it expects none.
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

// watchdog tells systemd that this process works, until stop is closed. It does so each time that
// health has returned, with an error or without: a target that is stopping reports an error, but does not hang.
func watchdog(every time.Duration, health func() error, stop <-chan struct{}) {
	if every == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		_ = health()
		command.Notify("WATCHDOG=1")
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}
