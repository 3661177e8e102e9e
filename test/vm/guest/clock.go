package main

import (
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	commands["@clock"] = clock
	commands["@rate"] = rate
}

// clock: @clock SECONDS sets the wall clock ahead, or back.
func clock(_ func(string), a []string) error {
	t := unix.NsecToTimeval(time.Now().UnixNano() + int64(number(a[0]))*int64(time.Second))
	return unix.Settimeofday(&t)
}

// rate: @rate PERCENT has all clocks but CLOCK_MONOTONIC_RAW go faster or slower than they should, by 10 % at most.
func rate(_ func(string), a []string) error {
	const microseconds = 10_000 // of a tick of USER_HZ
	_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: int64(microseconds + microseconds*number(a[0])/100)})
	return err
}
