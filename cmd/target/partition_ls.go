package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/mgmt"
)

func partitionList() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "ls [STORE…] [--watch] [-o table|json]",
		Short: "Show the partitions of divided stores, and who uses them",
		Long: `ls shows the partitions of all divided stores, or of those named: place and size,
who may use them as endpoints, the LUNs that show them, how many endpoints are
open, how many writes came through endpoints, and how many of these are not
known to be durable yet.

Rights are letters: r read, w write, f flush, a atomic operations, d discard,
m manage.`,
		Example: `  target partition ls
  target partition ls disk1 -o json | jq '.[].partitions[].uuid'`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completePartitions(cmd.Context(), v.client(), aStore), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := func(c *mgmt.Client, ctx context.Context) (*[]*mgmt.Partitions, error) { return tables(ctx, c, args) }
			return look(cmd, v, ask, func(w io.Writer, now, _ *[]*mgmt.Partitions) error {
				if len(*now) == 0 {
					_, err := fmt.Fprintln(w, `no store is divided: write "partitioned: true" at one in the configuration, and reload`)
					return err
				}
				for i, t := range *now {
					if i > 0 {
						fmt.Fprintln(w)
					}
					if err := writePartitions(w, t); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	v.flags(cmd, watchAgain)
	return cmd
}

// tables asks for the tables of the stores named, or of all that are divided.
func tables(ctx context.Context, c *mgmt.Client, stores []string) (*[]*mgmt.Partitions, error) {
	if len(stores) == 0 {
		all, err := c.Stores(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range all.Stores {
			if s.Partitioned {
				stores = append(stores, s.Name)
			}
		}
	}
	list := []*mgmt.Partitions{}
	for _, s := range stores {
		p, err := c.Partitions(ctx, s)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return &list, nil
}

func writePartitions(w io.Writer, p *mgmt.Partitions) error {
	free := int64(0)
	for _, r := range p.Free {
		free += r.Size
	}
	if p.Problem != "" {
		_, err := fmt.Fprintf(w, "%s: %s, without a partition table: %s\n", p.Store, config.FormatSize(p.Size), p.Problem)
		return err
	}
	fmt.Fprintf(w, "%s: %s, %s free, generation %d\n", p.Store, config.FormatSize(p.Size), config.FormatSize(free), p.Generation)
	for _, text := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", text)
	}
	if len(p.Partitions) == 0 {
		_, err := fmt.Fprintln(w, "no partitions")
		return err
	}
	t := newTable(w)
	fmt.Fprintln(t, "PARTITION\tSIZE\tOFFSET\tACCESS\tLUNS\tENDPOINTS\tWRITES\tNOT DURABLE")
	for i := range p.Partitions {
		q := &p.Partitions[i]
		var access, luns []string
		for _, a := range q.Access {
			access = append(access, a.Who+" "+a.Rights)
		}
		for _, l := range q.LUNs {
			luns = append(luns, fmt.Sprintf("%s %d", l.Target, l.LUN))
		}
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", p.Store, q.Name, config.FormatSize(q.Size), config.FormatSize(q.Offset),
			dash(strings.Join(access, ", ")), dash(strings.Join(luns, ", ")), q.Endpoints, q.Writes, lag(q))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range p.Partitions {
		if q := &p.Partitions[i]; q.Problem != "" {
			fmt.Fprintf(w, "%s/%s: %s\n", p.Store, q.Name, q.Problem)
		}
	}
	return nil
}

// lag is how many writes could be lost.
func lag(p *mgmt.Partition) string {
	if p.Lost {
		return fmt.Sprintf("%d, and no flush succeeds", p.Lag)
	}
	return fmt.Sprint(p.Lag)
}
