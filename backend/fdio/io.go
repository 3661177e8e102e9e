package fdio

// IO says by which means reads and writes reach the kernel.
type IO uint8

const (
	// Auto: io_uring where it is there and is the faster way, else Threads.
	Auto IO = iota
	// Uring: io_uring; a kernel without it is an error.
	Uring
	// Threads: a pool of threads, one for each operation under way.
	Threads
)

// wantsRing says whether a ring is to be tried. Through the page cache reads that it can
// answer need no other thread in any case, and the rest waits in threads of the kernel
// instead of ours.
func (io IO) wantsRing(direct bool) bool { return io == Uring || io == Auto && direct }
