package mgmt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// partitioner is a divided store "d" of made-up figures; it notes what is asked of it.
type partitioner struct {
	asked []string
	stale bool // somebody else has changed the table
}

func (f *partitioner) Stores() []Store {
	return []Store{
		{Name: "d", Type: "file", Open: true, Size: 1 << 20, Unit: 512, Durability: "medium", Partitioned: true, Free: []Range{{4096, 8192}}, Tag: "t-7", Aging: &Aging{200e6, 1500e6, 7, true}},
		{Name: "m", Type: "memory"},
	}
}

func (f *partitioner) Partitions(store string) (*Partitions, error) {
	if store != "d" {
		return nil, &NotFoundError{"there is no store " + store}
	}
	return &Partitions{
		Time: time.Unix(5, 0).UTC(), Store: store, UUID: "u", Generation: 7, Tag: "t-7", Free: []Range{{0, 4096}, {8192, 4096}},
		Partitions: []Partition{{
			UUID: "v", Name: "log", Offset: 1 << 20, Size: 4096, Cache: &PartitionCache{200, ""}, Access: []PartitionAccess{{"any", "rw"}},
			LUNs: []PartitionLUN{{"iqn.t:t", 3}}, Endpoints: 2, Writes: 9, Lag: 4,
			Aging: &Aging{WindowNS: 3e8, LongestNS: 25e8, Flushes: 6, Lost: true},
			IO:    &IO{Write: Class{Bytes: 512, SumNS: 100, Latency: []uint64{3, 0, 0, 0}}, InFlight: 1, Failed: map[string]uint64{"denied": 2}},
		}, {UUID: "w", Name: "new", Size: 8192}},
	}, nil
}

func (f *partitioner) note(match, format string, args ...any) (*Partitions, error) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...)+" if "+match)
	if f.stale {
		return nil, &StaleError{"look again"}
	}
	return f.Partitions("d")
}

func (f *partitioner) InitPartitions(_ context.Context, store, match string, force bool) (*Partitions, error) {
	return f.note(match, "init %s %v", store, force)
}

func (f *partitioner) CreatePartitions(_ context.Context, store, match string, news []NewPartition) (*Partitions, error) {
	if news[0].Name == "full" {
		return nil, errors.New("no room")
	}
	return f.note(match, "create %s %+v", store, news)
}

func (f *partitioner) AlterPartition(_ context.Context, store, name, match string, c PartitionChange, force bool) (*Partitions, error) {
	switch name {
	case "used":
		return nil, &ConflictError{"in use"}
	case "worn":
		return nil, &FailedError{"the medium"}
	}
	text := ""
	if c.Name != nil {
		text += " name " + *c.Name
	}
	if c.Size != nil {
		text += fmt.Sprint(" size ", *c.Size)
	}
	if c.Access != nil {
		text += fmt.Sprint(" access ", *c.Access)
	}
	return f.note(match, "alter %s/%s%s %v", store, name, text, force)
}

func (f *partitioner) DeletePartition(_ context.Context, store, name, match string, erase, force bool) (*Partitions, error) {
	return f.note(match, "delete %s/%s %v %v", store, name, erase, force)
}

func (f *partitioner) Endpoints() []Endpoint {
	return []Endpoint{{ID: 4, Store: "d", Partition: "log", Identity: "uid:7", Rights: "rw", Order: "strict", IO: IO{InFlight: 3}}}
}

func (f *partitioner) DropEndpoint(id uint64) bool {
	f.asked = append(f.asked, fmt.Sprint("drop ", id))
	return id == 4
}

// What the client asks for arrives, with the tag, and the answer comes back.
func TestPartitions(t *testing.T) {
	f := new(fake)
	c := serve(t, f)
	ctx := t.Context()
	want, _ := f.Partitions("d")
	table := func(p *Partitions, err error) {
		t.Helper()
		if diff := cmp.Diff(want, p); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	name, size := "x", int64(8192)
	table(c.Partitions(ctx, "d"))
	table(c.InitPartitions(ctx, "d", "t-7", false))
	table(c.InitPartitions(ctx, "d", "*", true))
	table(c.CreatePartitions(ctx, "d", "t-7", NewPartition{Name: "a", Size: 4096}, NewPartition{Name: "b", Size: 1, Offset: 2, Access: []PartitionAccess{{"any", "r"}}}))
	table(c.AlterPartition(ctx, "d", "log", "t-7", PartitionChange{Name: &name, Size: &size, Access: &[]PartitionAccess{}}, true))
	table(c.DeletePartition(ctx, "d", "a b/?c", "t-7", true, false))
	asked := []string{
		"init d false if t-7", "init d true if *",
		"create d [{Name:a Size:4096 Offset:0 Cache:<nil> Access:[]} {Name:b Size:1 Offset:2 Cache:<nil> Access:[{Who:any Rights:r}]}] if t-7",
		"alter d/log name x size 8192 access [] true if t-7", "delete d/a b/?c true false if t-7",
	}
	if diff := cmp.Diff(asked, f.asked); diff != "" {
		t.Error(diff)
	}
	stores, err := c.Stores(ctx)
	if diff := cmp.Diff(f.Stores(), stores.Stores); err != nil || diff != "" {
		t.Error(err, diff)
	}
	list, err := c.Endpoints(ctx)
	if diff := cmp.Diff(f.partitioner.Endpoints(), list.Endpoints); err != nil || diff != "" || len(list.BoundsNS) != 3 {
		t.Error(err, diff)
	}
	if err := c.DropEndpoint(ctx, 4); err != nil {
		t.Error(err)
	}
	if _, missing := errors.AsType[*NotFoundError](c.DropEndpoint(ctx, 5)); !missing {
		t.Error("an endpoint that is not there is ended")
	}
	_, err = c.AlterPartition(ctx, "d", "used", "*", PartitionChange{Name: &name}, false)
	if _, conflict := errors.AsType[*ConflictError](err); !conflict || err.Error() != "in use" {
		t.Error(err)
	}
	_, err = c.AlterPartition(ctx, "d", "worn", "*", PartitionChange{Name: &name}, false)
	if _, failed := errors.AsType[*FailedError](err); !failed {
		t.Error(err)
	}
	f.stale = true
	_, err = c.DeletePartition(ctx, "d", "log", "t-6", false, false)
	if _, stale := errors.AsType[*StaleError](err); !stale || err.Error() != "look again" {
		t.Error(err)
	}
}

// Requests that make no sense are refused before anybody is asked.
func TestPartitionMistakes(t *testing.T) {
	const path = "/v1/stores/d/partitions"
	const tag = `"t-7"`
	for _, c := range []struct {
		method, path, match, body string
		status                    int
		want                      string
	}{
		{"GET", "/v1/stores/e/partitions", "", "", 404, "no store e"},
		{"POST", path, "", `{"name": "a", "size": 4096}`, 428, "If-Match"},
		{"PATCH", path + "/a", "", `{"size": 4096}`, 428, "If-Match"},
		{"DELETE", path + "/a", "", "", 428, "If-Match"},
		{"POST", path + "?init", "", "", 428, "If-Match"},
		{"DELETE", path + "/a", "t-7", "", 400, "quotation marks"},
		{"DELETE", path + "/a", `"t-6", "t-7"`, "", 400, "one ETag"},
		{"DELETE", path + "/a", `W/"t-7"`, "", 400, "one ETag"},
		{"DELETE", path + "/a?destroy", tag, "", 400, "known are erase, force"},
		{"DELETE", path + "/a?erase=perhaps", tag, "", 400, "true or false"},
		{"DELETE", path + "/a?erase&erase", tag, "", 400, "once"},
		{"DELETE", path + "/a?%zz", tag, "", 400, "invalid URL escape"},
		{"DELETE", path + "/a", tag, "{}", 400, "body"},
		{"POST", path + "?init", tag, "{}", 400, "body"},
		{"POST", path + "?force", tag, "{}", 400, "nothing to force"},
		{"POST", path, tag, `{"name": "a", "length": 4096}`, 400, `unknown field \"length\"`},
		{"POST", path, tag, `[{"name": "a", "access": [{"who": "any", "right": "r"}]}]`, 400, `unknown field \"right\"`},
		{"POST", path, tag, `[]`, 400, "empty"},
		{"POST", path, tag, ``, 400, "the body of the request is not valid"},
		{"POST", path, tag, `{"name": "a"} {"name": "b"}`, 400, "something follows"},
		{"POST", path, tag, `{"name": "` + strings.Repeat("a", maxRequest) + `"}`, 400, "too large"},
		{"POST", path, tag, `{"name": "full", "size": 4096}`, 422, "no room"},
		{"PATCH", path + "/a", tag, `{}`, 400, "changes nothing"},
		{"PATCH", path + "/a", tag, `{"size": null}`, 400, "changes nothing"},
		{"PATCH", path + "/a", tag, `{"size": "1GiB"}`, 400, "the body of the request is not valid"},
		{"PATCH", path + "/a", tag, `{"offset": 4096}`, 400, "unknown field"},
		{"PUT", path + "/a", tag, `{}`, 404, "no PUT"},
		{"DELETE", "/v1/endpoints/x", "", "", 400, "no such endpoint"},
		{"DELETE", "/v1/endpoints/5", "", "", 404, "no endpoint 5"},
	} {
		f := new(fake)
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		if c.match != "" {
			r.Header.Set("If-Match", c.match)
		}
		w := httptest.NewRecorder()
		NewAPI(f).ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, w.Code, w.Body)
		}
		if len(f.asked) > 0 && c.status != 404 {
			t.Errorf("%s %s %.60s has asked for %q", c.method, c.path, c.body, f.asked)
		}
	}
}

// A change without a body is made of a whole request only, not of one that was given up while its body was to come.
func TestChangeOfHalfARequest(t *testing.T) {
	for _, c := range []struct{ method, path string }{
		{"DELETE", "/v1/stores/d/partitions/log?erase&force"},
		{"POST", "/v1/stores/d/partitions?init&force"},
	} {
		f := new(fake)
		for _, why := range []error{io.ErrUnexpectedEOF, os.ErrDeadlineExceeded} {
			r := httptest.NewRequest(c.method, c.path, iotest.ErrReader(why))
			r.Header.Set("If-Match", "*")
			w := httptest.NewRecorder()
			NewAPI(f).ServeHTTP(w, r)
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "has not come whole") || len(f.asked) > 0 {
				t.Errorf("%s %s, whose body ends with %v: %d %s; asked for %q", c.method, c.path, why, w.Code, w.Body, f.asked)
			}
		}
	}
}

// Whoever has read the table can change it with what the header says, by a client of any make.
func TestETag(t *testing.T) {
	h := NewAPI(new(fake))
	get := httptest.NewRecorder()
	h.ServeHTTP(get, httptest.NewRequest(http.MethodGet, "/v1/stores/d/partitions", nil))
	r := httptest.NewRequest(http.MethodPost, "/v1/stores/d/partitions", strings.NewReader(`{"name": "a", "size": 4096}`))
	r.Header.Set("If-Match", get.Header().Get("ETag"))
	post := httptest.NewRecorder()
	h.ServeHTTP(post, r)
	if get.Code != 200 || post.Code != 201 || post.Header().Get("ETag") != `"t-7"` {
		t.Errorf("GET %d %v, POST %d %v", get.Code, get.Header(), post.Code, post.Header())
	}
}

func TestPartitionMetrics(t *testing.T) {
	w := httptest.NewRecorder()
	NewMetrics(new(fake), false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`oneshot_store_free_bytes{store="d"} 8192`, `oneshot_partition_size_bytes{partition="log",store="d"} 4096`,
		`oneshot_partition_size_bytes{partition="new",store="d"} 8192`, `oneshot_partition_endpoints{partition="log",store="d"} 2`,
		`oneshot_store_aging_window_seconds{store="d"} 0.2`, `oneshot_store_aging_longest_flush_seconds{store="d"} 1.5`,
		`oneshot_store_aging_flushes_total{store="d"} 7`, `oneshot_store_aging_lost{store="d"} 1`,
		`oneshot_partition_aging_window_seconds{partition="log",store="d"} 0.3`, `oneshot_partition_aging_longest_flush_seconds{partition="log",store="d"} 2.5`,
		`oneshot_partition_aging_flushes_total{partition="log",store="d"} 6`, `oneshot_partition_aging_lost{partition="log",store="d"} 1`,
		`oneshot_partition_lag_writes{partition="log",store="d"} 4`, `oneshot_partition_bytes_total{op="write",partition="log",store="d"} 512`,
		`oneshot_partition_operation_duration_seconds_count{op="write",partition="log",store="d"} 3`,
		`oneshot_partition_failures_total{kind="denied",partition="log",store="d"} 2`, `oneshot_partition_operations_in_flight{partition="log",store="d"} 1`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("no %s in\n%s", line, w.Body)
		}
	}
}
