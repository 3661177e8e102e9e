// Package crc32c is the checksum that storage protocols over TCP put behind headers and data.
package crc32c

import (
	"encoding/binary"
	"hash/crc32"
)

// Len is the length of a digest on the wire, bytes.
const Len = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest is a running CRC32C (RFC 7143 §13.1, NVMe/TCP 1.0 §3.3.1.1). The zero value is the digest of nothing:
//
//	d := crc32c.Digest(0).Update(header).Update(data)
type Digest uint32

// Update returns the digest of what d covers, followed by p.
func (d Digest) Update(p []byte) Digest { return Digest(Update(uint32(d), p)) }

// AppendTo appends the four bytes of the digest as they go over the wire: least significant byte first.
func (d Digest) AppendTo(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, uint32(d)) }

// Matches reports whether the four bytes at the start of wire are this digest. It panics if wire is shorter.
func (d Digest) Matches(wire []byte) bool { return binary.LittleEndian.Uint32(wire) == uint32(d) }
