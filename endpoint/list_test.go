package endpoint_test

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/backend/backendtest"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
)

// A list of more partitions than a message holds arrives complete and in order, for those who may see it.
func TestList(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	url := strings.TrimSuffix(h.Listen(), "/disk/log")
	h.Secret("owner", "the secret of the owner")
	if list, err := endpoint.List(t.Context(), url, endpoint.Options{}); err != nil || len(list) != 0 {
		t.Fatalf("%v, %v", list, err)
	}
	for n := range 40 {
		h.Listed = append(h.Listed, rdma.Endpoint{
			Name: fmt.Sprintf("disk/%d", n), UUID: h.Info.UUID, Size: int64(n) << 20, Unit: 512, Rights: rdma.RightRead, Durability: rdma.DurabilityMedium,
		})
	}
	o := endpoint.Options{User: "owner", Secret: []byte("the secret of the owner")}
	list, err := endpoint.List(t.Context(), url, o)
	if err != nil || len(list) != len(h.Listed) {
		t.Fatalf("%d partitions, %v", len(list), err)
	}
	for n := range list {
		if list[n] != h.Listed[n] {
			t.Errorf("%+v, want %+v", list[n], h.Listed[n])
		}
	}
	for want, c := range map[string]struct {
		url string
		o   endpoint.Options
	}{
		"does not know the user": {url, endpoint.Options{User: "owner", Secret: []byte("another")}},
		"without a secret":       {url, endpoint.Options{User: "owner"}},
		"names no partition":     {url + "/disk/log", o},
		"target partition ls":    {"rdma+local://", o},
		"begins with":            {"iscsi://h", o},
	} {
		if _, err := endpoint.List(t.Context(), c.url, c.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
