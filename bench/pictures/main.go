// Command pictures draws docs/images/speed.svg from the tables that `make bench` has written.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"oneshot/bench/harness"
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

// bars lists the contenders that the picture shows.
var bars = []struct{ contender, name, colour string }{
	{"oneshot", "oneshot, memory", harness.Blue},
	{"oneshot, file", "oneshot, file", harness.Sky},
	{"gotgt", "gotgt", harness.Pink},
	{"istgt", "istgt", harness.Green},
	{"tgt", "tgt", harness.Orange},
}

// speed draws IOPS relative to tgt, a group of bars for each point with one session.
func speed(report string) (string, error) {
	all, err := points(report)
	if err != nil {
		return "", err
	}
	const width, labels = 860, 230
	c := harness.Chart{
		Title:    "Commands per second beside other targets in user space",
		Subtitle: "iSCSI over TCP, one session, loopback interface; tgt = 1; longer is better",
		Width:    width, Labels: labels, Bar: 13, Gap: 14,
	}
	for _, b := range bars {
		c.Legend = append(c.Legend, harness.Key{Name: b.name, Colour: b.colour})
	}
	highest := 0.0
	for _, p := range all {
		if strings.Contains(p.name, "sessions") {
			continue
		}
		g := harness.Group{Label: p.name}
		for _, b := range bars {
			iops, base := p.iops(b.contender), p.iops("tgt")
			if iops == 0 || base == 0 {
				return "", fmt.Errorf("%s has no %s", p.name, b.contender)
			}
			ratio := iops / base
			highest = max(highest, ratio)
			g.Bars = append(g.Bars, harness.Bar{Value: ratio, Colour: b.colour, Text: fmt.Sprintf("%.2f × (%s)", ratio, thousands(iops))})
		}
		c.Groups = append(c.Groups, g)
	}
	if len(c.Groups) == 0 {
		return "", errors.New("there are no tables")
	}
	last := int(highest) + 1
	c.Scale = (width - labels - 70) / float64(last)
	for i := range last + 1 {
		c.Ticks = append(c.Ticks, harness.Tick{At: float64(i), Label: fmt.Sprintf("%d ×", i)})
	}
	return c.SVG(), nil
}

// thousands writes 111451 as 111,451.
func thousands(v float64) string {
	text := strconv.Itoa(int(v + 0.5))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
