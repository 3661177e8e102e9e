package main

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
)

// Of linux/input.h and linux/input-event-codes.h: events of 24 bytes, two words of time first.
const (
	eventLen  = 24
	offType   = 16
	offCode   = 18
	offValue  = 20
	typeKey   = 1
	codePower = 116
)

// watchPower sends to halt when the power button is pressed.
func watchPower(halt chan<- int) {
	devices, _ := filepath.Glob("/dev/input/event*")
	for _, d := range devices {
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		go func() {
			defer f.Close()
			b := make([]byte, eventLen)
			for {
				if _, err := io.ReadFull(f, b); err != nil {
					return
				}
				if isPower(b) {
					select {
					case halt <- 0:
					default:
					}
				}
			}
		}()
	}
}

// isPower reports whether an event says that the power button is pressed.
func isPower(event []byte) bool {
	return binary.LittleEndian.Uint16(event[offType:]) == typeKey && binary.LittleEndian.Uint16(event[offCode:]) == codePower &&
		binary.LittleEndian.Uint32(event[offValue:]) == 1
}
