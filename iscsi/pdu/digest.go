package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestLen is the length of a header or data digest in bytes.
const DigestLen = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest is a running CRC32C, as header and data digests are (§13.1). The zero
// value is the digest of nothing:
//
//	d := pdu.Digest(0).Update(bhs).Update(ahs)
//	d := pdu.Digest(0).Update(data).Pad(len(data))
type Digest uint32

// Update returns the digest of what d covers followed by p.
func (d Digest) Update(p []byte) Digest { return Digest(crc32.Update(uint32(d), castagnoli, p)) }

// Pad returns the digest of what d covers followed by the zero bytes that pad a
// segment of n bytes; a data digest covers them (§11.2.3). What was received is
// to be checked with the padding as received, by Update.
func (d Digest) Pad(n int) Digest { return d.Update(zeroBHS[:PaddedLen(n)-n]) }

// AppendTo appends the four bytes of the digest as they go over the wire:
// least significant byte first, unlike all other numbers of iSCSI.
func (d Digest) AppendTo(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, uint32(d)) }

// Matches reports whether the four bytes at the start of wire are this digest.
// It panics if wire is shorter.
func (d Digest) Matches(wire []byte) bool { return binary.LittleEndian.Uint32(wire) == uint32(d) }
