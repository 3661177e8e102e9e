package replica

// made has the actions of a step that each I/O needs, and the records of its posts, so that they are allocated once.
type made struct {
	posts   slab[Post]
	acks    slab[SendAck]
	beats   slab[SendBeat]
	echoes  slab[SendEcho]
	answers slab[Answer]
	applies slab[Apply]
	reads   slab[ReadFor]
	recs    []Record
}

func (m *made) reset() {
	m.posts.reset()
	m.acks.reset()
	m.beats.reset()
	m.echoes.reset()
	m.answers.reset()
	m.applies.reset()
	m.reads.reset()
	m.recs = m.recs[:0]
}

type slab[T any] struct{ list []T }

// add returns a place with v, which stays where it is when the slab grows.
func (s *slab[T]) add(v T) *T {
	s.list = append(s.list, v)
	return &s.list[len(s.list)-1]
}

func (s *slab[T]) reset() { s.list = s.list[:0] }
