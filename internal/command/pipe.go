package command

import (
	"os/signal"
	"syscall"
)

// OutliveReaders has a process that serves others go on when nobody reads what it writes any more, a pipe of the shell or a collector of logs that
// has ended. Else the first line after that would kill it (os/signal, SIGPIPE), and nothing would be drained.
func OutliveReaders() { signal.Ignore(syscall.SIGPIPE) }
