//go:build race

package iwarp

import (
	"runtime"
	"unsafe"
)

// What one end writes to its socket happens before the other end reads it. The race detector
// knows that of the system calls of package syscall, not of raw ones.
var ioSync int64

func beforeWrite() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func afterRead()   { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
