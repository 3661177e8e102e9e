//go:build race

package iwarp

import (
	"runtime"
	"unsafe"
)

// A write to a socket happens before the other end reads it. The race detector knows that for the
// system calls of package syscall, but not for raw system calls.
var ioSync int64

func beforeWrite() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func afterRead()   { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
