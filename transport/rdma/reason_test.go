package rdma

import (
	"errors"
	"fmt"
	"testing"
)

func TestReason(t *testing.T) {
	offence, cut := errors.New("an offence"), errors.New("cut")
	late := fmt.Errorf("post: %w", ErrDisconnected)
	for _, c := range []struct{ heard, told, want error }{
		{nil, nil, nil},
		{nil, cut, cut},
		{offence, nil, offence},
		{offence, cut, offence},
		{late, nil, errEnded},
		{late, cut, cut},
	} {
		if got := Reason(c.heard, c.told); !errors.Is(got, c.want) {
			t.Errorf("heard %v, told %v: %v", c.heard, c.told, got)
		}
	}
}
