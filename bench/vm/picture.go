package main

import (
	"fmt"
	"strings"
)

// The picture is a group of bars for each transport and point: IOPS as a share of the better
// peer's. Colours are told apart by colour-blind eyes too (Okabe and Ito).
var colours = map[string]string{ours: "#0072b2", "LIO": "#e69f00", "tgt": "#009e73"}

const (
	pictureWidth = 860
	labelWidth   = 290
	barHeight    = 14
	groupGap     = 14
	topMargin    = 70
	axisWidth    = (pictureWidth - labelWidth - 60) / 3 // of 100 %
	widest       = 3.0
)

func picture(results []result) string {
	var body strings.Builder
	y := topMargin
	for _, transport := range transports {
		for _, r := range results {
			y = group(&body, r, transport, y)
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", pictureWidth, y+30)
	s.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	s.WriteString(`<text x="16" y="24" font-size="16" font-weight="bold">Linux's initiator in a guest: IOPS relative to the better of LIO and tgt</text>` + "\n")
	for i, t := range targets {
		x := labelWidth + 100*i
		fmt.Fprintf(&s, `<rect x="%d" y="38" width="12" height="12" fill="%s"/><text x="%d" y="48">%s</text>`+"\n", x, colours[t], x+16, t)
	}
	for percent := 0; percent <= 300; percent += 50 {
		x := labelWidth + percent*axisWidth/100
		fmt.Fprintf(&s, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="middle">%d %%</text>`+"\n",
			x, topMargin-6, x, y-8, x, y+10, percent)
	}
	s.WriteString(body.String())
	s.WriteString("</svg>\n")
	return s.String()
}

// group draws the bars of one point from y on and says where it ends.
func group(s *strings.Builder, r result, transport string, y int) int {
	var better float64
	for _, p := range peers {
		if w := r.row(p, transport); w != nil {
			better = max(better, w.IOPS)
		}
	}
	if better == 0 {
		return y
	}
	fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="end">%s, %s</text>`+"\n", labelWidth-10, y+len(targets)*barHeight/2+4, transport, r.point)
	for _, t := range targets {
		w := r.row(t, transport)
		if w == nil {
			continue
		}
		share := w.IOPS / better
		width := min(share, widest) * axisWidth
		fmt.Fprintf(s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y, width, barHeight-2, colours[t])
		fmt.Fprintf(s, `<text x="%.1f" y="%d" font-size="10">%.2f</text>`+"\n", labelWidth+width+4, y+barHeight-4, share)
		y += barHeight
	}
	return y + groupGap
}
