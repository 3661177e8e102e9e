package service

// Look has the service look for clients that take nothing.
func (s *Service) Look() { s.look() }
