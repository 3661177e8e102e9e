package service

// Look has the service look for clients that take nothing.
func (s *Service) Look() { s.look() }

// Dead returns how many of the connections have ended, or are about to.
func (s *Service) Dead() (n int) {
	for _, c := range s.conns.List() {
		if c.isDead() {
			n++
		}
	}
	return n
}

// Tick is what the service does once a second.
func (s *Service) Tick() { s.tick() }

// Unsent returns how many messages and responses of all connections have not left.
func (s *Service) Unsent() (n int) {
	for _, c := range s.conns.List() {
		c.mu.Lock()
		n += c.unsent
		c.mu.Unlock()
	}
	return n
}
