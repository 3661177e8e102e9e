package mirror

import "time"

// renew sets a deadline that lies within, unless that was done a moment ago, and returns when.
func renew(set time.Time, within time.Duration, f func(time.Time) error) time.Time {
	now := time.Now()
	if now.Sub(set) < within/16 {
		return set
	}
	_ = f(now.Add(within))
	return now
}

// patient reads from a connection that ends when it has brought nothing for too long. A frame may take longer than that, if its bytes come: if its
// length was damaged, what a node sends that has nothing to say would keep the connection, and be taken for the rest of the frame.
type patient struct {
	c      *conn
	set    time.Time // the deadline
	within bool      // a frame
	got    int       // bytes since the deadline was set
}

// least is how many bytes of a frame have to come while a connection may be silent. It is more than all idle frames of that time.
const least = 1 << 10

// enters says that the rest of a frame is to come.
func (p *patient) enters() { p.within, p.got = true, least }

// leaves says that all of it is there.
func (p *patient) leaves() { p.within = false }

func (p *patient) Read(b []byte) (int, error) {
	if !p.within || p.got >= least {
		was := p.set
		if p.set = renew(was, p.c.m.silence(), p.c.c.SetReadDeadline); p.set != was {
			p.got = 0
		}
	}
	n, err := p.c.c.Read(b)
	p.got += n
	return n, err
}
