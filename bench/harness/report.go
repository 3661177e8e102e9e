package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Load is what initiator bench --json says of a load. Samples embed it.
type Load struct {
	IOPS      float64 `json:"iops"`
	IOs       float64 `json:"ios"`
	P50       float64 `json:"latency_p50_us"`
	P99       float64 `json:"latency_p99_us"`
	Initiator struct {
		CPU       float64 `json:"cpu_us"` // per I/O
		Crossings float64 `json:"crossings"`
	} `json:"initiator"`
}

// Rate is what samples are compared by.
func (l Load) Rate() float64 { return l.IOPS }

// Rated is a sample that embeds Load.
type Rated interface{ Rate() float64 }

// Row is a contender at a point: the median sample by IOPS, and the extremes.
type Row[S Rated] struct {
	Contender string
	Sample    S
	Low, High float64
}

// Result has the rows of a point.
type Result[S Rated] struct {
	Point Point
	Rows  []Row[S]
}

// CompareAll gives every contender that o selects its turn in every round of a point. It calls said for each row.
func CompareAll[C fmt.Stringer, S Rated](ctx context.Context, o *Options, p Point, contenders []C, once func(C) (S, error), said func(Row[S])) (Result[S], error) {
	r := Result[S]{Point: p}
	err := Compare(ctx, o, p, contenders, once, S.Rate, func(c C, median S, low, high float64) {
		r.Rows = append(r.Rows, Row[S]{c.String(), median, low, high})
		said(r.Rows[len(r.Rows)-1])
	})
	return r, err
}

// Row returns that of a contender; nil: it has none.
func (r Result[S]) Row(contender string) *Row[S] {
	for i := range r.Rows {
		if r.Rows[i].Contender == contender {
			return &r.Rows[i]
		}
	}
	return nil
}

// Ratio is the row's IOPS in units of those of another contender, or a dash.
func (r Result[S]) Ratio(w Row[S], to string) string {
	if b := r.Row(to); b != nil {
		return Ratio(w.Sample.Rate(), b.Sample.Rate())
	}
	return Ratio(w.Sample.Rate(), 0)
}

// Relative draws a group of bars for each point: the IOPS of the contenders in units of those of one of them.
func Relative[C fmt.Stringer, S Rated](c Chart, results []Result[S], to string, contenders []C, colours []string) string {
	for i, k := range contenders {
		c.Legend = append(c.Legend, Key{k.String(), colours[i]})
	}
	for _, r := range results {
		base := r.Row(to)
		if base == nil {
			continue
		}
		g := Group{Label: r.Point.String()}
		for i, k := range contenders {
			if w := r.Row(k.String()); w != nil {
				g.Bars = append(g.Bars, Bar{w.Sample.Rate() / base.Sample.Rate(), colours[i], r.Ratio(*w, to)})
			}
		}
		c.Groups = append(c.Groups, g)
	}
	return c.SVG()
}

// Allocations asks the daemon whose metrics are at addr how often it has allocated memory of its heap.
func Allocations(addr string) (float64, error) {
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, errors.New("the metrics of the daemon do not have go_memstats_mallocs_total")
}
