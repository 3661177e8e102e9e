package mgmt

import (
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is how many collect at a time; more are told to come again.
const maxScrapes = 4

// NewMetrics returns the handler of /metrics and /healthz and, if asked for, of Go's profiles
// below /debug/pprof/.
func NewMetrics(t Target, profiles bool) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{t}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := t.Health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// collector reads a target when it is scraped; nothing is kept between scrapes.
type collector struct{ target Target }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("oneshot_"+name, help, labels, nil)
}

var (
	descInfo    = desc("info", "The version of the target.", "version")
	descStarted = desc("start_time_seconds", "When the target started.")
	descLoaded  = desc("config_load_time_seconds", "When the configuration came into force.")

	descLatency  = desc("lun_command_duration_seconds", "From the arrival of a command to the departure of its answer.", "target", "lun", "op")
	descBytes    = desc("lun_bytes_total", "Bytes read and written.", "target", "lun", "op")
	descFailed   = desc("lun_failures_total", "Commands that did not end well, by kind.", "target", "lun", "kind")
	descNews     = desc("lun_unit_attentions_total", "Unit attentions: news for an initiator, such as the one after its login.", "target", "lun")
	descInFlight = desc("lun_commands_in_flight", "Commands that are not answered yet.", "target", "lun")
	descSize     = desc("lun_size_bytes", "Capacity.", "target", "lun", "store")
	descSessions = desc("sessions", "Sessions logged in.", "target")

	descNSLatency   = desc("namespace_command_duration_seconds", "From the arrival of a command to the departure of its answer.", "subsystem", "nsid", "op")
	descNSBytes     = desc("namespace_bytes_total", "Bytes read and written.", "subsystem", "nsid", "op")
	descNSFailed    = desc("namespace_failures_total", "Commands that did not end well, by kind.", "subsystem", "nsid", "kind")
	descNSInFlight  = desc("namespace_commands_in_flight", "Commands that are not answered yet.", "subsystem", "nsid")
	descNSSize      = desc("namespace_size_bytes", "Capacity.", "subsystem", "nsid", "store")
	descControllers = desc("controllers", "Controllers that hosts have made.", "subsystem")

	descWindow  = desc("store_aging_window_seconds", "How long after it a write is durable, as long as flushes take less than half of it.", "store")
	descFlush   = desc("store_aging_longest_flush_seconds", "The longest that a flush has taken.", "store")
	descFlushes = desc("store_aging_flushes_total", "Flushes that the store has made by itself.", "store")
	descLost    = desc("store_aging_lost", "1: a flush has failed, and nothing is promised until the store is opened again.", "store")

	descPartWindow  = desc("partition_aging_window_seconds", "How long after it a write to a partition is durable, as long as flushes take less than half of it.", "store", "partition")
	descPartFlush   = desc("partition_aging_longest_flush_seconds", "The longest that a flush has taken.", "store", "partition")
	descPartFlushes = desc("partition_aging_flushes_total", "Flushes that the partition and its store have made by themselves.", "store", "partition")
	descPartLost    = desc("partition_aging_lost", "1: a flush has failed, and nothing is promised until the store is opened again.", "store", "partition")

	descFree      = desc("store_free_bytes", "Bytes of a divided store that no partition has.", "store")
	descPart      = desc("partition_size_bytes", "Size of a partition.", "store", "partition")
	descEndpoints = desc("partition_endpoints", "Endpoints of a partition that are open.", "store", "partition")
	descLag       = desc("partition_lag_writes", "Writes through endpoints that are not known to be durable.", "store", "partition")

	descPartLatency  = desc("partition_operation_duration_seconds", "From the submission of an operation of an endpoint to its completion.", "store", "partition", "op")
	descPartBytes    = desc("partition_bytes_total", "Bytes read and written through endpoints.", "store", "partition", "op")
	descPartFailed   = desc("partition_failures_total", "Operations of endpoints that failed, by kind.", "store", "partition", "kind")
	descPartInFlight = desc("partition_operations_in_flight", "Operations of endpoints that are not complete yet.", "store", "partition")

	descLimit  = desc("buffer_limit_bytes", "The most that I/O buffers may take.")
	descInUse  = desc("buffer_in_use_bytes", "What I/O buffers take.")
	descMapped = desc("buffer_mapped_bytes", "Address space for I/O buffers.")
	descLeases = desc("buffer_leases", "I/O buffers in use.")

	descPaused = desc("moderation_paused_seconds_total", "The length together of the pauses of connections over TCP for more commands to come.")

	descRDMA = desc("rdma_total", "What has crossed an RDMA device since it was opened, by kind.", "transport", "device", "kind")
)

// counters has one row for each counter without labels.
var counters = []struct {
	desc *prometheus.Desc
	of   func(*Counters) uint64
}{
	{desc("connections_total", "Connections accepted."), func(c *Counters) uint64 { return c.Connections }},
	{desc("connections_refused_total", "Connections over the limit."), func(c *Counters) uint64 { return c.Refused }},
	{desc("logins_total", "Logins completed."), func(c *Counters) uint64 { return c.Logins }},
	{desc("login_failures_total", "Logins refused."), func(c *Counters) uint64 { return c.LoginFailures }},
	{desc("login_redirects_total", "Logins that were sent elsewhere, for the target has moved."), func(c *Counters) uint64 { return c.Redirects }},
	{desc("protocol_errors_total", "Connections dropped for what the initiator did."), func(c *Counters) uint64 { return c.ProtocolErrors }},
	{desc("rejects_total", "Reject PDUs sent."), func(c *Counters) uint64 { return c.Rejects }},
	{desc("ignored_commands_total", "Commands outside the command window."), func(c *Counters) uint64 { return c.IgnoredCommands }},
	{desc("moderation_censuses_total", "Counts of the commands that an initiator over TCP keeps outstanding."), func(c *Counters) uint64 { return c.Moderation.Censuses }},
	{desc("moderation_pauses_total", "Pauses of connections over TCP for more commands to come."), func(c *Counters) uint64 { return c.Moderation.Pauses }},
	{desc("digest_errors_total", "PDUs whose data digest did not match."), func(c *Counters) uint64 { return c.DigestErrors }},
}

// nvmeCounters has one row for each counter of NVMe without labels.
var nvmeCounters = []struct {
	desc *prometheus.Desc
	of   func(*NVMeCounters) uint64
}{
	{desc("nvme_connections_total", "Connections of NVMe accepted."), func(c *NVMeCounters) uint64 { return c.Connections }},
	{desc("nvme_connections_refused_total", "Connections of NVMe over the limit."), func(c *NVMeCounters) uint64 { return c.Refused }},
	{desc("nvme_connects_total", "Controllers made."), func(c *NVMeCounters) uint64 { return c.Connects }},
	{desc("nvme_connect_failures_total", "Connect commands refused."), func(c *NVMeCounters) uint64 { return c.ConnectFailures }},
	{desc("nvme_authentication_failures_total", "Authentications that failed."), func(c *NVMeCounters) uint64 { return c.AuthFailures }},
	{desc("nvme_protocol_errors_total", "Connections dropped for what the host did."), func(c *NVMeCounters) uint64 { return c.ProtocolErrors }},
	{desc("nvme_digest_errors_total", "Commands whose data digest did not match."), func(c *NVMeCounters) uint64 { return c.DigestErrors }},
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descStarted, descLoaded, descLatency, descBytes, descFailed, descNews, descInFlight, descSize, descSessions,
		descNSLatency, descNSBytes, descNSFailed, descNSInFlight, descNSSize, descControllers,
		descLimit, descInUse, descMapped, descLeases, descPaused, descRDMA,
		descWindow, descFlush, descFlushes, descLost, descPartWindow, descPartFlush, descPartFlushes, descPartLost,
		descFree, descPart, descEndpoints, descLag, descPartLatency, descPartBytes, descPartFailed, descPartInFlight,
	} {
		ch <- d
	}
	for _, d := range slices.Concat(mirrorDescs, objectDescs, programDescs) {
		ch <- d
	}
	for _, row := range counters {
		ch <- row.desc
	}
	for _, row := range nvmeCounters {
		ch <- row.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.target.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descInfo, 1, s.Version)
	gauge(descStarted, seconds(s.Started))
	gauge(descLoaded, seconds(s.Loaded))
	gauge(descLimit, float64(s.Buffers.Limit))
	gauge(descInUse, float64(s.Buffers.InUse))
	gauge(descMapped, float64(s.Buffers.Mapped))
	gauge(descLeases, float64(s.Buffers.Leases))
	for _, row := range counters {
		ch <- prometheus.MustNewConstMetric(row.desc, prometheus.CounterValue, float64(row.of(&s.Counters)))
	}
	ch <- prometheus.MustNewConstMetric(descPaused, prometheus.CounterValue, float64(s.Counters.Moderation.PausedNS)/1e9)
	for i := range s.Devices {
		d := &s.Devices[i]
		for kind, n := range d.Counters {
			ch <- prometheus.MustNewConstMetric(descRDMA, prometheus.CounterValue, float64(n), d.Transport, d.Name, kind)
		}
	}
	discovery := s.Connected
	for i := range s.Targets {
		t := &s.Targets[i]
		discovery -= t.Sessions
		gauge(descSessions, float64(t.Sessions), t.Name)
		for j := range t.LUNs {
			collectLUN(ch, t.Name, &t.LUNs[j], s.BoundsNS)
		}
	}
	gauge(descSessions, float64(max(discovery, 0)), "")
	if s.NVMe != nil {
		collectNVMe(ch, s.NVMe, s.BoundsNS)
	}
	if s.Cluster != nil {
		collectCluster(ch, s.Cluster)
	}
	for i := range s.Objects {
		collectObjects(ch, &s.Objects[i])
	}
	for i := range s.Programs {
		collectPrograms(ch, &s.Programs[i], s.BoundsNS)
	}
	for _, store := range c.target.Stores() {
		if a := store.Aging; a != nil {
			lost := 0.0
			if a.Lost {
				lost = 1
			}
			gauge(descWindow, float64(a.WindowNS)/1e9, store.Name)
			gauge(descFlush, float64(a.LongestNS)/1e9, store.Name)
			gauge(descLost, lost, store.Name)
			ch <- prometheus.MustNewConstMetric(descFlushes, prometheus.CounterValue, float64(a.Flushes), store.Name)
		}
		if store.Partitioned {
			c.collectPartitions(ch, store.Name, s.BoundsNS)
		}
	}
}

// collectPartitions sends the figures of the partitions of a store.
func (c *collector) collectPartitions(ch chan<- prometheus.Metric, store string, bounds []int64) {
	t, err := c.target.Partitions(store)
	if err != nil {
		return // it has gone meanwhile
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	free := int64(0)
	for _, r := range t.Free {
		free += r.Size
	}
	gauge(descFree, float64(free), store)
	for i := range t.Partitions {
		p := &t.Partitions[i]
		gauge(descPart, float64(p.Size), store, p.Name)
		if p.IO == nil {
			continue
		}
		gauge(descEndpoints, float64(p.Endpoints), store, p.Name)
		gauge(descLag, float64(p.Lag), store, p.Name)
		if a := p.Aging; a != nil {
			lost := 0.0
			if a.Lost {
				lost = 1
			}
			gauge(descPartWindow, float64(a.WindowNS)/1e9, store, p.Name)
			gauge(descPartFlush, float64(a.LongestNS)/1e9, store, p.Name)
			gauge(descPartLost, lost, store, p.Name)
			ch <- prometheus.MustNewConstMetric(descPartFlushes, prometheus.CounterValue, float64(a.Flushes), store, p.Name)
		}
		collectIO(ch, partDescs, p.IO, bounds, store, p.Name)
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// collectLUN sends the figures of one LUN. What never happened on it is left out: a thousand
// idle LUNs have few series.
func collectLUN(ch chan<- prometheus.Metric, target string, l *LUN, bounds []int64) {
	lun := strconv.Itoa(int(l.Number))
	ch <- prometheus.MustNewConstMetric(descSize, prometheus.GaugeValue, float64(l.Bytes), target, lun, l.Store)
	if n := l.IO.Attentions; n > 0 {
		ch <- prometheus.MustNewConstMetric(descNews, prometheus.CounterValue, float64(n), target, lun)
	}
	collectIO(ch, lunDescs, &l.IO, bounds, target, lun)
}

// collectNVMe sends the figures of what is served over NVMe.
func collectNVMe(ch chan<- prometheus.Metric, n *NVMe, bounds []int64) {
	for _, row := range nvmeCounters {
		ch <- prometheus.MustNewConstMetric(row.desc, prometheus.CounterValue, float64(row.of(&n.Counters)))
	}
	discovery := n.Connected
	for i := range n.Subsystems {
		s := &n.Subsystems[i]
		discovery -= s.Controllers
		ch <- prometheus.MustNewConstMetric(descControllers, prometheus.GaugeValue, float64(s.Controllers), s.NQN)
		for j := range s.Namespaces {
			x := &s.Namespaces[j]
			nsid := strconv.FormatUint(uint64(x.NSID), 10)
			ch <- prometheus.MustNewConstMetric(descNSSize, prometheus.GaugeValue, float64(x.Bytes), s.NQN, nsid, x.Store)
			collectIO(ch, nsDescs, &x.IO, bounds, s.NQN, nsid)
		}
	}
	ch <- prometheus.MustNewConstMetric(descControllers, prometheus.GaugeValue, float64(max(discovery, 0)), "")
}

// ioDescs are the series of an IO.
type ioDescs struct{ inFlight, failed, latency, bytes *prometheus.Desc }

var (
	lunDescs  = ioDescs{descInFlight, descFailed, descLatency, descBytes}
	nsDescs   = ioDescs{descNSInFlight, descNSFailed, descNSLatency, descNSBytes}
	partDescs = ioDescs{descPartInFlight, descPartFailed, descPartLatency, descPartBytes}
)

// collectIO sends what was done with something that two labels name.
func collectIO(ch chan<- prometheus.Metric, d ioDescs, io *IO, bounds []int64, of, which string) {
	ch <- prometheus.MustNewConstMetric(d.inFlight, prometheus.GaugeValue, float64(io.InFlight), of, which)
	for kind, n := range io.Failed {
		ch <- prometheus.MustNewConstMetric(d.failed, prometheus.CounterValue, float64(n), of, which, kind)
	}
	for _, o := range []struct {
		name  string
		class *Class
		bytes bool
	}{{"read", &io.Read, true}, {"write", &io.Write, true}, {"other", &io.Other, false}} {
		n := o.class.Commands()
		if n == 0 {
			continue
		}
		ch <- prometheus.MustNewConstHistogram(d.latency, n, float64(o.class.SumNS)/1e9, cumulative(o.class, bounds), of, which, o.name)
		if o.bytes {
			ch <- prometheus.MustNewConstMetric(d.bytes, prometheus.CounterValue, float64(o.class.Bytes), of, which, o.name)
		}
	}
}

// cumulative are the buckets of a histogram as Prometheus wants them: how many took at most
// the bound. Of the two in each power of two it takes one.
func cumulative(c *Class, bounds []int64) map[float64]uint64 {
	buckets := make(map[float64]uint64, len(bounds)/2+1)
	var n uint64
	for i, b := range c.Latency {
		n += b
		if i < len(bounds) && i%2 == 0 {
			buckets[float64(bounds[i])/1e9] = n
		}
	}
	return buckets
}
