package backend

// Ability is something that can be done with a store beyond Store: an interface of this package.
type Ability uint8

// The abilities.
const (
	NoAbility         Ability = iota
	Lending                   // Lender
	Batching                  // Batcher, Awaiter
	Resizing                  // Resizer
	Metering                  // Meter
	Identifying               // Identifier
	Aging                     // Ager
	Serving                   // Termed
	WritingAtomically         // AtomicWriter
	ReadingNow                // Prompt
)

// Wrapper is a store before another one. It says itself what can be done with it beyond Store: it
// implements what it has a part in, and passes on what the other store does without it. A wrapper
// that has to see every write passes no Lending, for instance.
type Wrapper interface {
	Store
	// Pass returns the other store if callers may use the ability a of that store directly, past
	// this one. Otherwise it returns nil.
	Pass(a Ability) Store
}

// As returns s as a T, which is an interface of one ability: s itself, or what s, a wrapper, passes
// that ability on to.
func As[T Store](s Store) (t T, ok bool) {
	a := abilityOf((*T)(nil))
	for s != nil {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(Wrapper)
		if !wraps {
			break
		}
		s = w.Pass(a)
	}
	return t, false
}

// abilityOf takes a pointer to an interface.
func abilityOf(p any) Ability {
	switch p.(type) {
	case *Lender:
		return Lending
	case *Batcher, *Awaiter:
		return Batching
	case *Resizer:
		return Resizing
	case *Meter:
		return Metering
	case *Identifier:
		return Identifying
	case *Ager:
		return Aging
	case *Termed:
		return Serving
	case *AtomicWriter:
		return WritingAtomically
	case *Prompt:
		return ReadingNow
	}
	return NoAbility
}
