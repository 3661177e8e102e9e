package backend

// Queue is a first-in, first-out list of operations that a store has, linked through the
// operations themselves: it allocates nothing, and an operation is in one queue at a time.
// The zero value is empty. It has no lock of its own.
type Queue struct {
	head, tail *Op
	n          int
}

// Push appends op.
func (q *Queue) Push(op *Op) {
	if op.next = nil; q.tail == nil {
		q.head = op
	} else {
		q.tail.next = op
	}
	q.tail = op
	q.n++
}

// Pop takes the oldest operation out, or returns nil when there is none.
func (q *Queue) Pop() *Op {
	op := q.head
	if op == nil {
		return nil
	}
	if q.head = op.next; q.head == nil {
		q.tail = nil
	}
	op.next = nil
	q.n--
	return op
}

// Unpop puts op, which Pop has returned, back to where it was.
func (q *Queue) Unpop(op *Op) {
	if op.next = q.head; q.head == nil {
		q.tail = op
	}
	q.head = op
	q.n++
}

// Len returns how many operations are in the queue.
func (q *Queue) Len() int { return q.n }
