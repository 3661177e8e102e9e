package initiator

import (
	"errors"
	"testing"
)

// A command whose disk is in doubt does not fail because its session ends while somebody looks: it goes to the next session, as others do.
func TestLookAtTheEnd(t *testing.T) {
	s := &Session{err: errors.New("the target does not answer"), incoming: true, looking: true} // stop has been called, and lost will be
	c := &Command{unit: &LU{s: s}, heir: new(Lasting), Done: func(*Command) {}}
	s.doubted.push(c)
	s.look()
	if s.finished.head != nil || s.doubted.head != c {
		t.Errorf("it ends with %v", c.Err)
	}
}
