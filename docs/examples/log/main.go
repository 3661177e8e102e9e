// Log keeps lines in a partition. It prints the lines that are there, then appends those of its standard input,
// and says of each when it is durable.
//
//	log oneshot+iwarp://192.0.2.1/disk1/log
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"oneshot/endpoint"
	"oneshot/endpoint/wal"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: log URL")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], endpoint.Options{Sole: true, Durable: true}, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "log:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, o endpoint.Options, in io.Reader, out io.Writer) (err error) {
	e, err := endpoint.Open(ctx, url, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	l, err := wal.Open(ctx, e, wal.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()

	err = l.Replay(ctx, l.First(), func(lsn uint64, line []byte) error {
		_, err := fmt.Fprintf(out, "%d: %s\n", lsn, line)
		return err
	})
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		lsn, w := l.Append(lines.Bytes())
		if errors.Is(w.Wait(), wal.ErrFull) { // the older half may go
			if err := l.Truncate((l.First() + l.Durable()) / 2); err != nil {
				return err
			}
			lsn, w = l.Append(lines.Bytes())
		}
		if err := w.Wait(); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%d is durable\n", lsn); err != nil {
			return err
		}
	}
}
