package initiator

// StartIn begins c in s, as Start does that has seen s and was overtaken by the end of s.
func (l *Lasting) StartIn(s *Session, c *Command) {
	c.heir = l
	s.start(list{c, c})
}
