package main

import (
	"fmt"

	"oneshot/bench/harness"
)

var colours = map[string]string{ours: harness.Blue, "LIO": harness.Orange, "tgt": harness.Green}

// picture draws a group of bars for each transport and point: IOPS relative to the better peer.
func picture(results []result) string {
	c := harness.Chart{
		Title: "Linux's initiator in a guest: IOPS relative to the better of LIO and tgt",
		Width: 860, Labels: 290, Bar: 14, Gap: 14, Scale: 170, Widest: 3, Ticks: harness.Percents(50, 300),
	}
	for _, t := range targets {
		c.Legend = append(c.Legend, harness.Key{Name: t, Colour: colours[t]})
	}
	for _, transport := range transports {
		for _, r := range results {
			if g, ok := group(r, transport); ok {
				c.Groups = append(c.Groups, g)
			}
		}
	}
	return c.SVG()
}

// group returns the bars of one point. False: no peer was measured.
func group(r result, transport string) (harness.Group, bool) {
	var better float64
	for _, p := range peers {
		if w := r.row(p, transport); w != nil {
			better = max(better, w.IOPS)
		}
	}
	g := harness.Group{Label: fmt.Sprintf("%s, %s", transport, r.point)}
	for _, t := range targets {
		if w := r.row(t, transport); w != nil && better > 0 {
			g.Bars = append(g.Bars, harness.Bar{Value: w.IOPS / better, Colour: colours[t], Text: harness.Ratio(w.IOPS, better)})
		}
	}
	return g, better > 0
}
