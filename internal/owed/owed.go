// Package owed notices a peer that does not send the data that it was asked for, however alive it is otherwise.
//
// Peers send what they are asked for in about the order in which they are asked. So data of one command are not missing while those of
// commands are on their way that came before it: over a slow link they may wait long.
package owed

// List is what the peer of one connection owes. The zero value is empty. It has one owner.
type List struct {
	asked uint64 // how often was asked
	came  uint64 // the oldest of which something has come in this second; 0: nothing has
}

// Item is the data of one command.
type Item struct {
	at     uint64 // its place in the order; from 1 on
	silent uint32 // seconds
}

// Ask notes that the peer is asked for the data of x now.
func (l *List) Ask(x *Item) {
	l.asked++
	*x = Item{at: l.asked}
}

// Came notes that some of the data of x have come, for which the peer was asked.
func (l *List) Came(x *Item) {
	if l.came == 0 || x.at < l.came {
		l.came = x.at
	}
}

// Longest says that a second has passed. It returns whose data the peer has owed for the most seconds in which nothing has come of them, nor of what it was
// asked for before them. item returns the data of a command, or nil if they are not owed.
func Longest[T any](l *List, commands []T, item func(T) *Item) (worst T, seconds uint32) {
	for _, c := range commands {
		x := item(c)
		if x == nil {
			continue
		}
		if x.silent++; l.came != 0 && l.came <= x.at {
			x.silent = 0
		}
		if x.silent > seconds {
			worst, seconds = c, x.silent
		}
	}
	l.came = 0
	return worst, seconds
}
