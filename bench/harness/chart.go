package harness

import (
	"fmt"
	"strings"
)

// Chart is a picture of horizontal bars in groups, as SVG.
type Chart struct {
	Title, Subtitle string
	Width, Labels   int // pixels in all, and left of the bars
	Bar, Gap        int // height of a bar, and of the gap between groups
	Scale           float64
	Widest          float64 // longer bars are cut here; 0: no bar is cut
	Ticks           []Tick
	Legend          []Key
	Groups          []Group
}

// Tick is a line across the picture; 1 is Scale pixels.
type Tick struct {
	At    float64
	Label string
}

// Key says what a colour stands for.
type Key struct{ Name, Colour string }

// Group is bars with one label.
type Group struct {
	Label string
	Bars  []Bar
}

// Bar is a bar of a group; 1 is Scale pixels.
type Bar struct {
	Value        float64
	Colour, Text string
}

// Colours that colour-blind people can distinguish, too (Okabe and Ito).
const (
	Blue, Sky, Orange, Green = "#0072b2", "#56b4e9", "#e69f00", "#009e73"
	Black                    = "#000000"
	Pink, Red, Yellow, Grey  = "#cc79a7", "#d55e00", "#f0e442", "#999999"
)

const top = 84 // where bars begin

// SVG returns the picture.
func (c Chart) SVG() string {
	height := top + 26
	for _, g := range c.Groups {
		height += len(g.Bars)*c.Bar + c.Gap
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", c.Width, height)
	s.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	fmt.Fprintf(&s, `<text x="16" y="26" font-size="16" font-weight="bold">%s</text>`+"\n", c.Title)
	if c.Subtitle != "" {
		fmt.Fprintf(&s, `<text x="16" y="44" fill="#555">%s</text>`+"\n", c.Subtitle)
	}
	c.legend(&s)
	for _, t := range c.Ticks {
		x := c.Labels + int(t.At*c.Scale)
		fmt.Fprintf(&s, `<line x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d" stroke="#ddd"/>`, x, top-6, height-24)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", x, height-8, t.Label)
	}
	y := top
	for _, g := range c.Groups {
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", c.Labels-10, y+len(g.Bars)*c.Bar/2+4, g.Label)
		for _, b := range g.Bars {
			w := b.Value * c.Scale
			if c.Widest > 0 {
				w = min(b.Value, c.Widest) * c.Scale
			}
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, c.Labels, y, w, c.Bar-2, b.Colour)
			fmt.Fprintf(&s, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", float64(c.Labels)+w+4, y+c.Bar-3, b.Text)
			y += c.Bar
		}
		y += c.Gap
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// legend writes the legend above the bars. A long one begins further to the left.
func (c Chart) legend(s *strings.Builder) {
	width := func(k Key) int { return 34 + 7*len(k.Name) }
	x := c.Labels
	for _, k := range c.Legend {
		if x += width(k); x > c.Width {
			x = 16
			break
		}
	}
	if x != 16 {
		x = c.Labels
	}
	for _, k := range c.Legend {
		fmt.Fprintf(s, `<rect x="%d" y="56" width="12" height="12" fill="%s"/><text x="%d" y="66">%s</text>`+"\n", x, k.Colour, x+16, k.Name)
		x += width(k)
	}
}

// Percents returns ticks at every step per cent, from 0 to last.
func Percents(step, last int) (ticks []Tick) {
	for p := 0; p <= last; p += step {
		ticks = append(ticks, Tick{float64(p) / 100, fmt.Sprintf("%d %%", p)})
	}
	return ticks
}
