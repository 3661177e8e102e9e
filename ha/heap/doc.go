// Package heap keeps objects in a store, and in memory that others may read. An object has a place, whose address is in the
// pointer to it; the store may be a mirror, and another node that takes it over has every object at the same address.
//
//	requests ─► Core ─► journal ─► answers           Core      decides: no goroutine, no clock, no store
//	              │         │                         Heap      has a Core work on a store
//	              └► memory ┴► places, checkpoints
//
// A change is a record with all of its data. It is written to the journal before the memory changes and before it is answered.
// The places of the store get it later, with a checkpoint:
//
//	flush       the journal is durable, so whatever the next step leaves half-done can be done again
//	write       what has changed since the last checkpoint: blocks of places, the table of clients
//	flush
//	superblock  begins another epoch, in which the journal is empty
//	flush       only now the journal is written from its beginning again
//
// Who opens a heap reads all places and the table, does the records of the journal's epoch again, in their order, up to the first
// batch that is not whole, and makes a checkpoint.
//
// # In the store
//
//	    0  superblock of even epochs   4 KiB
//	 4096  superblock of odd epochs    4 KiB
//	 8192  table of clients           64 KiB   1,024 entries of 64 octets: who sent what last, and the answer
//	73728  journal                     1/8 of the store, 1 to 64 MiB
//	  ...  places                      the memory, as it was at a checkpoint
//
// A write may be torn between sectors of 512 octets, and writes after the last flush may be lost one by one. All numbers
// are big-endian.
//
// # Exactly once
//
// A client joins with an ID, and numbers its requests. The table has the last change of each client and its answer, so a request
// that is sent again gets the same answer. When a client more than 1,024 joins, the one is forgotten whose last change is the
// oldest; it hears Unknown, and has to tell its user that it does not know what has become of the request that it repeats.
//
// # Places
//
// Places have the sizes of package wire. A place keeps its size for ever; a deleted one is given to objects that fit, small
// places first. So a heap may be full of free places that are too small.
package heap
