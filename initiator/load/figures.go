package load

// Figure is how many crossings the source of one-shot RDMA has for one command of an arrangement
// (docs/protocols/one-shot.md §7). Its figures show a storage write that is pulled.
type Figure struct {
	Name                      string
	InitiatorOut, InitiatorIn int
	TargetOut, TargetIn       int
}

// Initiator, Target and Sum are both ways together, of one end and of both.
func (f Figure) Initiator() int { return f.InitiatorOut + f.InitiatorIn }
func (f Figure) Target() int    { return f.TargetOut + f.TargetIn }
func (f Figure) Sum() int       { return f.Initiator() + f.Target() }

// Figures are those of a write or of a read. A read is pushed, and what is pushed goes out together
// with the answer: there is no completion of a pull, and one post less.
func Figures(write bool) []Figure {
	target := 2
	if !write {
		target = 1
	}
	return []Figure{
		{"FIG 2, iSCSI offload", 1, 1, target, target},
		{"FIG 3, RDMA", 5, 5, target, target},
		{"FIG 3, no windows", 3, 3, target, target},
		{"FIG 4, one-shot", 1, 1, target, target},
	}
}
