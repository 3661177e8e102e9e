// Command pictures draws docs/images/speed.svg from the tables that `make bench` has written.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	from = "bench/results/iscsi-tcp.md"
	to   = "docs/images/speed.svg"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("run it in the project's directory: %w", err)
	}
	svg, err := speed(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, []byte(svg), 0o644)
}

// point is one kind of load: IOPS by contender.
type point struct {
	name string
	rows []row
}

type row struct {
	contender string
	iops      float64
}

// points reads the tables of a report: a heading for each point, and a table whose first two
// columns are contender and IOPS.
func points(report string) (list []point, err error) {
	for line := range strings.Lines(report) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			list = append(list, point{name: name})
			continue
		}
		cells := strings.Split(line, "|")
		if len(list) == 0 || len(cells) < 4 {
			continue
		}
		contender := strings.TrimSpace(cells[1])
		if contender == "target" || strings.HasPrefix(contender, "---") {
			continue
		}
		iops, err := strconv.ParseFloat(strings.TrimSpace(cells[2]), 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		p := &list[len(list)-1]
		p.rows = append(p.rows, row{contender, iops})
	}
	return list, nil
}

// iops returns the IOPS of a contender, or 0.
func (p point) iops(contender string) float64 {
	for _, r := range p.rows {
		if r.contender == contender {
			return r.iops
		}
	}
	return 0
}

// What the picture shows: colours are told apart by colour-blind eyes too (Okabe and Ito).
var bars = []struct{ contender, name, colour string }{
	{"oneshot", "oneshot, memory", "#0072b2"},
	{"oneshot, file", "oneshot, file", "#56b4e9"},
	{"gotgt", "gotgt", "#cc79a7"},
	{"istgt", "istgt", "#009e73"},
	{"tgt", "tgt", "#e69f00"},
}

const (
	width     = 860
	labels    = 230 // where bars begin
	barHeight = 13
	gap       = 14
	top       = 84
	axis      = width - labels - 70
)

// speed draws IOPS relative to tgt, a group of bars for each point with one session.
func speed(report string) (string, error) {
	all, err := points(report)
	if err != nil {
		return "", err
	}
	var shown []point
	highest := 0.0
	for _, p := range all {
		if strings.Contains(p.name, "sessions") {
			continue
		}
		for _, b := range bars {
			if p.iops(b.contender) == 0 {
				return "", fmt.Errorf("%s has no %s", p.name, b.contender)
			}
			highest = max(highest, p.iops(b.contender)/p.iops("tgt"))
		}
		shown = append(shown, p)
	}
	if len(shown) == 0 {
		return "", fmt.Errorf("there are no tables")
	}
	ticks := int(highest) + 1
	height := top + len(shown)*(len(bars)*barHeight+gap) + 26
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	s.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	s.WriteString(`<text x="16" y="26" font-size="16" font-weight="bold">Commands per second beside other targets in user space</text>` + "\n")
	s.WriteString(`<text x="16" y="44" fill="#555">iSCSI over TCP, one session, loopback interface; tgt = 1; longer is better</text>` + "\n")
	x := labels
	for _, b := range bars {
		fmt.Fprintf(&s, `<rect x="%d" y="56" width="12" height="12" fill="%s"/><text x="%d" y="66">%s</text>`+"\n", x, b.colour, x+16, b.name)
		x += 34 + 7*len(b.name)
	}
	for i := 0; i <= ticks; i++ {
		x := labels + i*axis/ticks
		fmt.Fprintf(&s, `<line x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d" stroke="#ddd"/>`, x, top-6, height-24)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%d ×</text>`+"\n", x, height-8, i)
	}
	y := top
	for _, p := range shown {
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labels-10, y+len(bars)*barHeight/2+4, p.name)
		for _, b := range bars {
			ratio := p.iops(b.contender) / p.iops("tgt")
			w := ratio * axis / float64(ticks)
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labels, y, w, barHeight-2, b.colour)
			fmt.Fprintf(&s, `<text x="%.1f" y="%d" font-size="10">%.2f × (%s)</text>`+"\n", labels+w+4, y+barHeight-3, ratio, thousands(p.iops(b.contender)))
			y += barHeight
		}
		y += gap
	}
	s.WriteString("</svg>\n")
	return s.String(), nil
}

// thousands writes 111451 as 111,451.
func thousands(v float64) string {
	text := strconv.Itoa(int(v + 0.5))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
