// Package scsi is the SCSI architecture model of the target: logical units, task sets, the
// command set of a direct access block device (SAM-5, SPC-4, SBC-3) and its sense data. It
// does not know which transport asks, nor how a store keeps its bytes.
//
// A command is a Task that the transport owns and drives as a step function:
//
//	      Start                    Pull: fill Out, then Pulled
//	───────────────►  Next  ───►   Wait: Owner.TaskReady comes, then Resume
//	                               Done: send In and Status, then Release
//	                               Aborted: send nothing, then Release
//
// Nothing here blocks. Each task is driven by one goroutine at a time.
package scsi

import (
	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume"
)

// Next is what the transport has to do with a task.
type Next = volume.Next

// What a step of a task asks for.
const (
	// Done: Status, Sense, In and Transfer are final. The transport sends them, and calls
	// Release when the bytes of In have left.
	Done = volume.Done
	// Pull: the transport fills Out (or, with PlaceUnit, places) the command's first bytes of
	// data-out, in order, and calls Pulled.
	Pull = volume.Pull
	// Wait: nothing to do until Owner.TaskReady is called for the task.
	Wait = volume.Wait
	// Aborted: task management ended the task. The transport sends no answer and calls
	// Release.
	Aborted = volume.Aborted
)

// Owner is the side of the transport that drives a task.
type Owner interface {
	// TaskReady says that the task wants Resume to be called. It is called from any
	// goroutine, also from within a step of this task or of another one, and must not block.
	// It may drive the task itself if no step of it is under way: no lock of this package is
	// held. Several calls may be folded into one Resume. A call may be late and find the task
	// finished, released or in use again; Resume then does nothing.
	TaskReady(t *Task)
	// Lease returns n bytes of I/O memory (1 to mem.MaxLease) that the task then owns, or
	// nil when the share of this transport connection is used up. After nil the owner
	// calls Resume on the task once memory may be had. Called only from within Start,
	// Pulled and Resume.
	Lease(t *Task, n int) *mem.Lease
}

// Corker is an Owner that acts on several calls of TaskReady more cheaply than on each by
// itself: those between Cork and Uncork, which come from one goroutine.
type Corker interface {
	Owner
	Cork() Uncorker
}

// Uncorker ends what Corker.Cork has begun, with one call for each.
type Uncorker = backend.Uncorker

// Attr is a task attribute (SAM-5 §8.6).
type Attr uint8

// Task attributes.
const (
	Simple Attr = iota // also for untagged tasks
	Ordered
	HeadOfQueue
	ACA // refused: no ACA condition is ever established
)

// Status is a SCSI status code (SAM-5 §5.3).
type Status uint8

// Status codes.
const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	ConditionMet        Status = 0x04
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	ACAActive           Status = 0x30
	TaskAborted         Status = 0x40
)

// Task is one command on its way through a logical unit. The zero value is ready for use;
// after Release it may be used again. Everything it points to stays valid until Release.
type Task struct {
	// Set by the transport before Start.
	Owner      Owner
	Nexus      *Nexus
	LUN        uint64 // as on the wire (SAM-5 §4.7), big-endian
	CDB        []byte // 6 to 260 bytes; not kept after Release
	Attr       Attr
	DataOutLen uint32 // bytes the initiator offers
	DataInLen  uint32 // bytes the initiator has room for
	// NoLend asks that In never be memory of a store that other commands can change while
	// the answer is on its way (a transport that sends a digest over the bytes needs it),
	// and that Out never be memory of a store (so that a digest can be checked first).
	NoLend bool

	// Results, valid after Done.
	Status Status
	Sense  []byte   // sense data for CHECK CONDITION, else empty
	In     [][]byte // the data-in, already cut to DataInLen
	// Transfer is the length the CDB asks for (SPDTL of RFC 7143 §11.4.5), from which the
	// transport computes the residual; bytes. TransferOut says in which direction.
	Transfer    uint64
	TransferOut bool

	// Valid after Pull: where the data-out goes; OutLen bytes in all, at most DataOutLen.
	Out    [][]byte
	OutLen int
	// PlaceUnit, unless it is 0, says that the data-out goes to the store's own memory, and Out is
	// empty: the transport places whole blocks of so many bytes with BeginPlace, in order, and
	// keeps a part of a block until the rest has come. OutLen is a multiple of it.
	PlaceUnit int

	taskState
}

// A task is what its request works for.
var _ volume.Client = (*Task)(nil)
