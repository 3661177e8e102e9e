package config

// State names the directory for what has to outlive the daemon, such as persistent reservations.
type State struct {
	Dir string   // made if it does not exist; empty: nothing is kept
	Pos Position // of the path
}

func (d *decoder) state(v value, s *State) {
	if set(v, &s.Dir, "the path of a directory", parsePath) {
		s.Pos, s.Dir = v.pos(), resolvePath(d.src.file, s.Dir)
	}
}
