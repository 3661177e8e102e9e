// Package stag holds the table of steering tags (STags): which memory a peer may read or
// write, over which stream, and for how long (RFC 5041 §5, §8; one-shot RDMA).
//
// An STag is a slot index in its upper 24 bits and a key in its lower 8. The key grows each time
// that the slot is given out, so that an STag of an earlier use is recognized.
//
//	conventional memory regions
//
//	  Register ──► Valid ──Invalidate, Revoke──► Invalid
//	                 └────────────────Deregister───┴──► Free
//
//	one-shot STags, Host 1
//
//	  Reserve ──► Reserved ──Bind──► Bound ──Advertised──► Advertised
//	                 │                 │                     │ Close, Invalidate
//	                 │                 │                     ▼
//	                 │                 │                  Closing ──last Ref released──► Released
//	                 │                 │                     │                             │
//	                 └─────────────────┴──Revoke, End────────┴──► Revoked ──── Consume ────┴──► Free
//
// Grant does Reserve and Bind at once. Host 2 keeps what was advertised to it in a [Peer].
//
// Access takes no lock: a slot is one atomic word (state, rights, key, generation, references) and
// a few fields that change only while the word says that nobody may read them. Connections share
// a lock only when a stream's stock of free slots is used up or too large, once in dozens of
// allocations.
//
// A [Ref] stands for memory that is in use. As long as a Ref is held, the memory of the region
// stays the same: closing, invalidating and revoking stop new access at once, but complete when
// the last Ref is released. That Release reports it.
package stag
