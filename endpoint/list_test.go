package endpoint_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"oneshot/backend/backendtest"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
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
		"nobody answers at":      {"rdma+local://?socket=/no/such", o},
		"begins with":            {"iscsi://h", o},
	} {
		if _, err := endpoint.List(t.Context(), c.url, c.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// deaf is a device over whose connections nothing arrives until there is something behind it, as with siw.
type deaf struct{ rdma.Device }

type deafPair struct {
	rdma.QueuePair
	held  []rdma.Work
	awake bool
}

func (d deaf) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Device.NewQueuePair(c)
	return &deafPair{QueuePair: qp}, err
}

func (d deaf) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp.(*deafPair).QueuePair, addr, p)
}

func (q *deafPair) Post(ws []rdma.Work) (int, error) {
	if !q.awake && len(q.held) == 0 {
		q.held = slices.Clone(ws)
		return len(ws), nil
	}
	q.awake = true
	n := len(q.held)
	all := append(q.held, ws...)
	q.held = nil
	taken, err := q.QueuePair.Post(all)
	return taken - n, err
}

// Over siw the first question may lie unread until something comes behind it.
func TestListOverDeafDevice(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	url := strings.TrimSuffix(h.Listen(), "/disk/log")
	below, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := below.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, address, _ := strings.Cut(url, "://")
	if _, err := endpoint.List(t.Context(), "rdma+verbs://"+address, endpoint.Options{Network: deaf{below}}); err != nil {
		t.Error(err)
	}
}
