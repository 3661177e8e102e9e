// Package replica decides how the copies of a mirrored store stay equal: who is primary, what has been
// acknowledged, what is applied in which order, who may be promoted, and what a copy that was away lacks.
//
// It is a step function. [Core.Step] takes an event and the node's clock, and returns what is to be done. The
// package has no socket, disk, goroutine, timer or random number, and no clock of its own; so the whole of it runs
// in the simulation of package ha/sim.
//
//	host ── Reserve, Write ──► primary ── Post: data, records, bell ──► members of S
//	                              │  ◄───────────── Ack ───────────────────┤
//	host ◄──────── Answer ── W hold it                                     │ own disk at once
//	                              │ own disk                               │
//	                              └── trim: all of S have it durable ──────┘
//
// S are the copies in sync, and W = min(quorum, |S|). A write is answered when W members of S, of the primary's view
// and of the one that it has proposed, hold its record in memory. Records have one order, their sequence numbers. A
// record is applied when all earlier ones that it overlaps have been, on the primary only when it is committed.
//
// A [View] says who is primary, in which term, and who is in sync. Views are agreed on elsewhere, by
// compare-and-swap on their version. A member that takes over asks others for promises, [Ask]: whoever promises has
// cut the old primary's way into its memory first. |S|−W+1 promises of members that remember meet every W. The new
// primary brings all of them to the longest log, and only then proposes itself.
//
// What a copy outside S lacks is known by bitmaps, which every member of S keeps; what it has too much, by the log
// and the regions of that copy itself, which it reports ([Hello]). A region is set on the disk before anything in it
// is written, and cleared when all of S have it durable.
package replica
