package pdu

import "oneshot/internal/crc32c"

// DigestLen is the length of a header or data digest in bytes.
const DigestLen = crc32c.Len

// Digest is a running CRC32C, as header and data digests are (§13.1). The zero
// value is the digest of nothing:
//
//	d := pdu.Digest(0).Update(bhs).Update(ahs)
//	d := pdu.Digest(0).Update(data).Update(pdu.Padding(len(data)))
type Digest = crc32c.Digest

// Padding returns the zero bytes that pad a segment of n bytes. A data digest covers them
// (§11.2.3); what was received is to be checked with the padding as received.
func Padding(n int) []byte { return zeroBHS[:PaddedLen(n)-n] }
