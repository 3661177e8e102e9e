package mgmt

import "github.com/prometheus/client_golang/prometheus"

var (
	descNodeUp      = desc("cluster_node_up", "1: this node hears that one.", "node")
	descNodeDrained = desc("cluster_node_drained", "1: the node is to serve nothing.", "node")
	descNodeStuck   = desc("cluster_node_stuck", "1: the node takes no part in consensus, as it says: the disk of its log takes nothing, or the others refuse it.", "node")
	descNodeLeads   = desc("cluster_node_leads", "1: the node leads consensus, as far as this one knows.", "node")

	descMirrorPrimary  = desc("mirror_primary", "1: this node serves the mirror.", "mirror")
	descMirrorTerm     = desc("mirror_term", "Grows with each primary.", "mirror")
	descMirrorLog      = desc("mirror_log_used_bytes", "What the node's memory for writes holds.", "mirror")
	descMirrorLogSize  = desc("mirror_log_size_bytes", "The node's memory for writes.", "mirror")
	descMirrorRecords  = desc("mirror_log_records", "Writes that the node keeps because not all copies in sync have them durably.", "mirror")
	descMirrorLeast    = desc("mirror_min_copies", "Copies in sync that it takes for a write; with fewer, writes wait.", "mirror")
	descMirrorWaiting  = desc("mirror_operations_waiting", "Operations of initiators under way.", "mirror")
	descMirrorCopied   = desc("mirror_resync_bytes_total", "Bytes that this node has sent to copies that are brought level.", "mirror")
	descMirrorMissing  = desc("mirror_missing_bytes", "What the copy of this node goes without, because no copy could read it, and nobody has written it since.", "mirror")
	descMirrorLost     = desc("mirror_lost_bytes_total", "What copies that this node has brought level go without for that reason.", "mirror")
	descMirrorTakes    = desc("mirror_takeovers_total", "How often this node became the primary, by order or not.", "mirror")
	descMirrorTook     = desc("mirror_takeover_duration_seconds", "How long each step took when this node became the primary last; 0 after a planned switch.", "mirror", "step")
	descMirrorVerified = desc("mirror_verify_end_time_seconds", "When this primary has last compared the copies.", "mirror")
	descMirrorDiffer   = desc("mirror_verify_ranges", "Ranges that differ, as the last comparison of this primary, or the one under way, has found them, by kind: repaired, unknown, unreadable, left.", "mirror", "kind")

	descCopyState = desc("mirror_copy_state", "1 for the state that a copy is in, as this node knows.", "mirror", "node", "state")
	descCopyLacks = desc("mirror_copy_lacks_bytes", "What a copy that is not in sync lacks, at most, as this node knows.", "mirror", "node")
	descCopyLag   = desc("mirror_copy_lag_seconds", "How long the oldest write waits that the disk of a copy in sync does not have, as the primary knows.", "mirror", "node")
)

var mirrorDescs = []*prometheus.Desc{
	descNodeUp, descNodeDrained, descNodeStuck, descNodeLeads,
	descMirrorPrimary, descMirrorTerm, descMirrorLog, descMirrorLogSize, descMirrorRecords, descMirrorLeast, descMirrorWaiting, descMirrorCopied, descMirrorMissing, descMirrorLost, descMirrorTakes,
	descMirrorTook, descMirrorVerified, descMirrorDiffer, descCopyState, descCopyLacks, descCopyLag,
}

// collectCluster sends what the node knows of its cluster.
func collectCluster(ch chan<- prometheus.Metric, c *Cluster) {
	byName := make(map[string]*Member)
	for i := range c.Members { // a node that is replaced is a member until the one that takes its place is level
		if m := &c.Members[i]; byName[m.Name] == nil || !m.Leaving {
			byName[m.Name] = m
		}
	}
	for _, m := range byName {
		for _, x := range []struct {
			desc *prometheus.Desc
			is   bool
		}{
			{descNodeUp, m.Up},
			{descNodeDrained, m.Drained},
			{descNodeStuck, m.Stuck || m.Name == c.Node && c.Trouble != ""},
			{descNodeLeads, m.Leads},
		} {
			ch <- prometheus.MustNewConstMetric(x.desc, prometheus.GaugeValue, one(x.is), m.Name)
		}
	}
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; m.Role != RoleNoCopy && m.Role != RoleGivenUp {
			collectMirror(ch, m)
		}
	}
}

func collectMirror(ch chan<- prometheus.Metric, m *Mirror) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{m.Name}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, m.Name)
	}
	gauge(descMirrorPrimary, one(m.Role == RolePrimary))
	gauge(descMirrorTerm, float64(m.Term))
	gauge(descMirrorLog, float64(m.LogBytes))
	gauge(descMirrorLogSize, float64(m.LogSize))
	gauge(descMirrorRecords, float64(m.Records))
	gauge(descMirrorLeast, float64(m.MinCopies))
	gauge(descMirrorWaiting, float64(m.Waiting))
	counter(descMirrorCopied, float64(m.Copied))
	var missing int64 // other copies have none that is known
	for _, c := range m.Copies {
		missing += c.Missing
	}
	gauge(descMirrorMissing, float64(missing))
	counter(descMirrorLost, float64(m.Lost))
	counter(descMirrorTakes, float64(m.Takeovers))
	if t := m.Takeover; t != nil {
		gauge(descMirrorTook, float64(t.Silence)/1e9, "silence")
		gauge(descMirrorTook, float64(t.Promises)/1e9, "promises")
		gauge(descMirrorTook, float64(t.Agreed)/1e9, "consensus")
	}
	if v := m.Verify; v != nil {
		gauge(descMirrorDiffer, float64(v.Repaired), "repaired")
		gauge(descMirrorDiffer, float64(v.Unknown), "unknown")
		gauge(descMirrorDiffer, float64(v.Unreadable), "unreadable")
		gauge(descMirrorDiffer, float64(v.Differ-v.Repaired), "left")
		if !v.Ended.IsZero() {
			gauge(descMirrorVerified, seconds(v.Ended))
		}
	}
	for _, c := range m.Copies {
		for _, s := range []CopyState{CopyInSync, CopyResync, CopyAway, CopyStale, CopyDoubted, CopyUnknown} {
			gauge(descCopyState, one(s == c.State), c.Node, string(s))
		}
		gauge(descCopyLacks, float64(c.Lacks), c.Node)
		gauge(descCopyLag, float64(c.Lag)/1e9, c.Node)
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
