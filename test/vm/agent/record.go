package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
)

// RecordLen is the length of a record in bytes.
const RecordLen = 4096

// Record is the number n and what follows from it, so that host and guest know
// each record that @records wrote.
func Record(n uint64) []byte {
	b := make([]byte, RecordLen)
	src := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = src.Read(b)
	binary.BigEndian.PutUint64(b, n)
	return b
}

// CheckRecords says which of the first count records in r is the first that is
// missing or differs.
func CheckRecords(r io.Reader, count uint64) error {
	b := make([]byte, RecordLen)
	for n := range count {
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("record %d of %d: %w", n, count, err)
		}
		if string(b) != string(Record(n)) {
			return fmt.Errorf("record %d of %d: %w", n, count, ErrRecord)
		}
	}
	return nil
}

// ErrRecord says that the bytes of a record are others than were written.
var ErrRecord = errors.New("not what was written")
