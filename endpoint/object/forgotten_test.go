//go:build !race

package object_test

import (
	"errors"
	"testing"

	"oneshot/endpoint/object"
	"oneshot/ha/heap"
)

// TestForgotten: a change of a client that the heap has forgotten is sent under a new ID, if it cannot have been done.
func TestForgotten(t *testing.T) {
	c := newCluster(t, 1)
	x, ctx := c.client(object.Options{}), t.Context()
	p, err := x.Insert(ctx, []byte("x"))
	check(t, err)
	for range heap.Clients {
		y, err := object.Open(ctx, object.Options{Nodes: []string{c.nodes[0].l.Addr().String()}, Name: "app", Secret: []byte("secret")})
		check(t, err)
		_, err = y.Update(ctx, p, []byte("y"))
		check(t, errors.Join(err, y.Close()))
	}
	q, err := x.Insert(ctx, []byte("z"))
	if err != nil || q.Addr != p.Addr+64 {
		t.Errorf("%v, %v", q, err)
	}
}
