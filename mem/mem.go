// Package mem hands out the memory that I/O goes through: page-aligned leases from arenas
// outside the Go heap, fit for O_DIRECT, writev, io_uring and RDMA registration.
//
//	Pool ── shards ──────── a few free blocks of each size behind a lock that one or two
//	  │                     connections use
//	  └──── buddies ─────── all other free blocks, one lock
//	          └── arenas ── 32 MiB of address space each, mapped when first needed,
//	                        backed by pages when first touched
//
// A block has a power of two of bytes, from PageSize to MaxLease, and is aligned to its
// size. A pool has a limit that leases never exceed together: what a peer's requests can
// make the program hold is bounded by it. Nothing here blocks.
//
// Pages that nobody uses go back to the kernel (Pool.Trim). Where a device has pinned pages, whole
// arenas go back, after whoever registered them has let go (Pool.Arenas). The memory of a shared pool is
// that of a file, which other processes can map: a lease is found there by its arena and its offset.
package mem

import "math/bits"

const (
	// PageSize is the unit and the alignment of leases, in bytes. It is a constant of this
	// package, at most the page size of the machine.
	PageSize = 4 << 10
	// MaxLease is the largest lease, in bytes.
	MaxLease = PageSize << maxOrder
	// ArenaSize is how much address space a pool maps at a time, in bytes.
	ArenaSize = 8 * MaxLease
)

// A block of order o has PageSize<<o bytes.
const (
	maxOrder = 10
	orders   = maxOrder + 1
)

// orderOf returns the order of the smallest block with n bytes; 1 <= n <= MaxLease.
func orderOf(n int) int { return bits.Len(uint(n-1) / PageSize) }

// RoundUp returns how many bytes a lease of n bytes counts against the limit of its pool;
// 1 <= n <= MaxLease.
func RoundUp(n int) int { return PageSize << orderOf(n) }
