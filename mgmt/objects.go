package mgmt

import "github.com/prometheus/client_golang/prometheus"

// Objects are those of a store that a portal serves.
type Objects struct {
	Store       string           `json:"store"`
	Served      bool             `json:"served"` // by this node; without it Objects, Bytes, Memory and Free are 0
	Objects     int              `json:"objects"`
	Bytes       int64            `json:"bytes"`        // of the objects themselves
	Memory      int64            `json:"memory_bytes"` // that places of objects can have
	Free        int64            `json:"free_bytes"`   // of it
	Connections int              `json:"connections"`
	Requests    []ObjectRequests `json:"requests"` // since the store is used for objects, by operation and end; Peek is not seen
}

// ObjectRequests counts requests of clients, by operation and end.
type ObjectRequests struct {
	Op    string `json:"op"`
	End   string `json:"end"` // good, or what was wrong
	Count uint64 `json:"count"`
}

var (
	descObjectsServed   = desc("objects_served", "1: this node serves the objects of the store.", "store")
	descObjects         = desc("objects", "Objects in the store.", "store")
	descObjectBytes     = desc("objects_bytes", "Bytes of the objects in the store, without what is left of their places.", "store")
	descObjectMemory    = desc("objects_memory_bytes", "Memory that places of objects can have.", "store")
	descObjectFree      = desc("objects_free_bytes", "Memory that no object has.", "store")
	descObjectConns     = desc("objects_connections", "Connections of clients of objects.", "store")
	descObjectsRequests = desc("objects_requests_total", "Requests of clients of objects, by operation and end. Peek, an RDMA Read, is not seen.", "store", "op", "end")
)

var objectDescs = []*prometheus.Desc{
	descObjectsServed, descObjects, descObjectBytes, descObjectMemory, descObjectFree, descObjectConns, descObjectsRequests,
}

func collectObjects(ch chan<- prometheus.Metric, o *Objects) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, o.Store)
	}
	gauge(descObjectsServed, one(o.Served))
	gauge(descObjectConns, float64(o.Connections))
	if o.Served {
		gauge(descObjects, float64(o.Objects))
		gauge(descObjectBytes, float64(o.Bytes))
		gauge(descObjectMemory, float64(o.Memory))
		gauge(descObjectFree, float64(o.Free))
	}
	for _, r := range o.Requests {
		ch <- prometheus.MustNewConstMetric(descObjectsRequests, prometheus.CounterValue, float64(r.Count), o.Store, r.Op, r.End)
	}
}
