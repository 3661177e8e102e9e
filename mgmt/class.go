package mgmt

import "time"

// Commands is the number of commands.
func (c *Class) Commands() (n uint64) {
	for _, b := range c.Latency {
		n += b
	}
	return n
}

// Since returns what was added to c since an earlier reading of it. A counter that went back,
// as after a restart of the daemon, counts from zero.
func (c *Class) Since(earlier *Class) Class {
	d := Class{Bytes: since(c.Bytes, earlier.Bytes), SumNS: since(c.SumNS, earlier.SumNS), Latency: make([]uint64, len(c.Latency))}
	for i, n := range c.Latency {
		if i < len(earlier.Latency) {
			n = since(n, earlier.Latency[i])
		}
		d.Latency[i] = n
	}
	return d
}

func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// Mean is the mean latency; 0 without commands.
func (c *Class) Mean() time.Duration {
	n := c.Commands()
	if n == 0 {
		return 0
	}
	return time.Duration(c.SumNS / n)
}

// Quantile returns a latency that the part q of the commands (0 to 1) did not exceed: the
// upper bound of the bucket in which it lies, which for the last bucket is the lower. bounds
// are in nanoseconds. Without commands it is 0.
func (c *Class) Quantile(q float64, bounds []int64) time.Duration {
	n := c.Commands()
	if n == 0 || len(bounds) == 0 {
		return 0
	}
	rank, seen := max(uint64(q*float64(n)+0.5), 1), uint64(0)
	for i, b := range c.Latency {
		if seen += b; seen >= rank {
			return time.Duration(bounds[min(i, len(bounds)-1)])
		}
	}
	return time.Duration(bounds[len(bounds)-1])
}
