package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// RecordLen is the length of a record in bytes.
const RecordLen = 4096

// Record returns the record with the number n. Its content depends only on n, so that
// host and guest can check each record that @records wrote.
func Record(n uint64) []byte {
	b := make([]byte, RecordLen)
	_, _ = NewBytes(n, RecordLen).Read(b)
	binary.BigEndian.PutUint64(b, n)
	return b
}

// CheckRecords checks the first count records in r. Its error names the first one that is
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

// ErrRecord says that the bytes of a record differ from those that were written.
var ErrRecord = errors.New("not what was written")
