package backend

import "fmt"

// Termed is a store whose bytes several processes show, of which one at a time serves them: a mirror, say. What a
// process keeps about the bytes besides is worth nothing when another one has served them in between.
type Termed interface {
	Store
	// Term numbers the time in which this process serves the bytes, and nobody else; 0: it does not serve them now.
	// Later times have greater numbers.
	Term() uint64
}

// Prove returns nil if this process served s, which is Termed, in a term when Prove was called, and the error of the store otherwise. It reads a block, and
// needs no byte of it.
func Prove(s Store, term uint64) error {
	n := s.Info().BlockSize
	over := make(proof, 1)
	op := &Op{Kind: Read, Len: int64(n), Segs: [][]byte{make([]byte, n)}, Term: term, Done: over}
	if !s.Submit(op) {
		<-over
	}
	return op.Err
}

// proof is a Completer that can be waited for, of a read that nobody wants the bytes of.
type proof chan struct{}

func (p proof) OpDone(*Op) { p <- struct{}{} }

// Leave implements Leaver.
func (p proof) Leave() (free func(), ok bool) { return func() {}, true }

// MovedError says that this process does not serve the store's bytes: another one does, or none, or it did in
// between. What the operation was to write may have been written, or not.
type MovedError struct {
	Name string // of the store
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("this node does not serve %s: use the path to the one that does", e.Name)
}
