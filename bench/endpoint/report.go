package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

func table(o options, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Endpoints

Written by make bench-endpoint on %s: Linux %s, %s, %d processors, %d rounds of %g s. Medians; the range is over the rounds.
In each round every contender has its turn. Both of a point use the same file, written in full before. A read of memory is
one copy by the processor; "syncs" are flushes of the store and durable writes, or calls of fdatasync, per operation. Client and daemon of the
remote points are one process, on the loopback interface: processor time is that of both, and copies and syncs are not counted.
Why a goal is missed stands in [Performance](../../docs/performance.md#endpoints).
`, harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), o.Rounds, o.Seconds)
	for _, r := range results {
		fmt.Fprintf(&b, "\n## %s\n\n%s| | operations/s | range | ratio | ns each | processor µs | copies | syncs |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n", r.point.name, r.verdict())
		base := r.base()
		for i, c := range r.point.contenders {
			s := r.samples[i]
			all := harness.Sorted(s, rate)
			m := harness.Median(s, rate)
			fmt.Fprintf(&b, "| %s | %.0f | %.0f – %.0f | %s | %.0f | %.2f | %.2f | %.3f |\n", c.name, m, all[0], all[len(all)-1], harness.Ratio(m, base), 1e9/m,
				harness.Median(s, func(s sample) float64 { return s.cpu }), harness.Median(s, func(s sample) float64 { return s.copies }),
				harness.Median(s, func(s sample) float64 { return s.syncs }))
		}
	}
	return b.String()
}

// verdict is a paragraph about the goal, if there is one.
func (r result) verdict() string {
	if r.point.goal == 0 || len(r.samples) == 1 {
		return ""
	}
	word := "missed"
	if harness.Median(r.samples[0], rate) >= r.point.goal*r.base() {
		word = "met"
	}
	return fmt.Sprintf("Goal: a ratio of %.2f, %s.\n\n", r.point.goal, word)
}

func rate(s sample) float64 { return s.rate }

// picture has a bar for each point: our rate as a share of the other one's.
func picture(results []result) string {
	c := harness.Chart{
		Title: "Endpoints: operations per second relative to what they are compared with",
		Width: 1000, Labels: 330, Bar: 14, Gap: 12, Scale: 400, Widest: 1.5, Ticks: harness.Percents(50, 150),
	}
	for _, r := range results {
		v := harness.Median(r.samples[0], rate) / r.base()
		c.Groups = append(c.Groups, harness.Group{Label: r.point.name, Bars: []harness.Bar{{
			Value: v, Colour: harness.Blue, Text: fmt.Sprintf("%.2f × %s", v, r.point.contenders[min(1, len(r.samples)-1)].name),
		}}})
	}
	return c.SVG()
}
