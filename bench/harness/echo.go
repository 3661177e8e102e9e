package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
)

// RawEcho is the name of the 100 % line: bench/c/echo.c, a program that moves the bytes of a load over TCP connections and
// does nothing else.
const RawEcho = "raw echo"

// Compile has gcc make the program at path out of args, sources of bench/c and libraries among them.
func Compile(ctx context.Context, path string, args ...string) error {
	return Make(ctx, append([]string{"gcc", "-O2", "-o", path}, args...)...)
}

// Make runs a command that makes something out of the sources.
func Make(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w (run it in the root of the checkout, after `make deps-bench`)\n%s", args, err, out)
	}
	return nil
}

// EchoLoad returns the command by which the client of the echo at path puts the load of p on the server at a port of the
// loopback interface, for some seconds.
func EchoLoad(path, port string, p Point, seconds float64) []string {
	return []string{
		path, "load", port, p.Mode(), strconv.Itoa(p.Size), strconv.Itoa(p.Depth), strconv.Itoa(max(p.Sessions, 1)),
		strconv.FormatFloat(seconds, 'f', -1, 64),
	}
}

// EchoLoad runs the client of the echo at path on the client's core.
func (b *Pair) EchoLoad(ctx context.Context, path, port string, p Point) (l Load, err error) {
	args := slices.Concat([]string{"taskset", "-c", strconv.Itoa(ClientCore)}, EchoLoad(path, port, p, b.Seconds))
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return l, said(err)
	}
	f, err := ParseFigures(out)
	if err != nil {
		return l, err
	}
	l.IOPS, l.IOs, l.P50, l.P99 = f.IOs/f.Seconds, f.IOs, f.P50, f.P99
	l.Initiator.CPU = f.ClientCPU / f.IOs * 1e6
	return l, nil
}

// Figures are what the load generators of bench/c print.
type Figures struct {
	IOs       float64 `json:"ios"`
	Seconds   float64 `json:"seconds"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	ClientCPU float64 `json:"client_cpu"` // seconds
}

// ParseFigures reads a line of figures. No I/O is an error.
func ParseFigures(line []byte) (f Figures, err error) {
	if err := json.Unmarshal(line, &f); err != nil {
		return f, fmt.Errorf("%w: %s", err, line)
	}
	if f.IOs == 0 {
		return f, errors.New("no I/O")
	}
	return f, nil
}
