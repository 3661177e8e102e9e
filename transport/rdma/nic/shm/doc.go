// Package shm is what the two halves of an RDMA device in another process share: the driver, in the process of the
// application (package nic), and the card, which runs the queue pairs (package card).
//
//	segment.go  memory of memfds, mapped by both
//	control.go  the pages of a driver: doorbell, completions, who sleeps
//	queue.go    rings of descriptors
//	bell.go     eventfds, for who sleeps
//	message.go  what is told over the socket, where speed does not matter
//
// # Memory
//
//	control   page 0  the driver's words: tails of hints and commands, head of completions, its sleep
//	          page 1  the card's words: head of hints, tail of completions, its sleep, whether it is stalled
//	          hints, 4,096 of 4 octets: numbers of queues that have something new         driver ─► card
//	          completions, 4,096 of 32 octets                                             card ─► driver
//	          commands, 256 of 64 octets: queue 0                                         driver ─► card
//	queue     page 0  the driver's word: tail
//	          page 1  the card's word: how many requests are done
//	          slots of 64 octets, then a page for each slot: lists and inline data that the slot has no room for
//	arena     memory of the application, which both move bytes to and from
//
// Each word has one writer. Positions count up for ever, modulo 2³². Who reads takes a private copy of what the other
// has written and checks that; a position that lies is noticed, as no more than a ring can be between head and tail.
// All numbers are in the byte order of the host.
//
// # Waking
//
// Who has nothing to do says so in its word, looks once more, and sleeps. Who has something for it writes first, then
// looks at the word, and rings the bell if the other sleeps. Atomic operations of Go are sequentially consistent,
// so no bell is missed.
package shm
