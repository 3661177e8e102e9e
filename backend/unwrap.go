package backend

// Wrapper is a store that passes everything on to another one but what it is there for. What
// can be done with the other one beyond Store can be done past it.
type Wrapper interface {
	Store
	Unwrap() Store
}

// As returns s, or what it wraps, as a T: a Lender, say.
func As[T Store](s Store) (t T, ok bool) {
	for {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(Wrapper)
		if !wraps {
			return t, false
		}
		s = w.Unwrap()
	}
}
