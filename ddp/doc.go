// Package ddp holds the bytes of iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP
// (RFC 5040) and the one-shot extension. It does no I/O and keeps no state; a [Format]
// holds what depends on a connection.
//
//	FPDU     +--------+------------------------+---------+-----+--------+
//	         | length | DDP header             | payload | pad | CRC32C |
//	         |   2    | 14 or 18               |         | 0-3 |   4    |
//	         +--------+------------------------+---------+-----+--------+
//	                  |<------- ULPDU, "length" octets ->|
//
//	tagged   | control 2 | STag 4        | TO 8                      |   14 octets
//	untagged | control 2 | STag or 0   4 | QN 4  | MSN 4   | MO 4    |   18 octets
//	untagged | control 2 |                 QN 4  | MSN 4   | MO 4    |   14 octets, see HeaderValidated
//
//	control  15 T  14 L  13 close*  12 advertise*  11..10 0  9..8 DV  7..6 RV  5..4 0  3..0 opcode
//	         (* only where [EncodingFlags] was negotiated, otherwise reserved)
//
// All integers are big-endian, except the CRC32C, which is stored little-endian. All functions may be called from any goroutine. Views and decoded
// values that hold a slice alias the buffer they were read from; encoders append to a slice
// that the caller owns, write every octet and allocate nothing when the slice has room.
//
// A peer's mistake is an [*Error] with the Terminate code of the answer. The connection checks
// what only it can know (MSN and MO of Sends, posted receives, outstanding Reads, memory); the
// [Cause] constants include the answers to these mistakes, too.
package ddp
