package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/mgmt"
)

func partitionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "partition",
		Short: "Divide a store into partitions, and say who may use them",
		Long: `partition shows and changes the tables of divided stores, those with
"partitioned: true" in the configuration of a serving daemon. A change is in force,
and durable, when the command ends. LUNs show partitions as STORE/PARTITION; who
may use one without a LUN, as an RDMA endpoint, is what grant and revoke say.

A change is refused if somebody else has changed the table between the look that
the command takes and the change.`,
		Example: `  target partition init disk1
  target partition create disk1/log --size 256MiB
  target partition ls`,
		Args: cobra.ArbitraryArgs,
		RunE: unknownCommand,
	}
	cmd.AddCommand(partitionList(), partitionInit(), partitionCreate(), partitionResize(), partitionGrant(), partitionRevoke(), partitionRename(), partitionDelete())
	return cmd
}

// what says what the words of a command line name.
type what int

const (
	aStore     what = iota // STORE
	aPartition             // STORE/NAME
)

// partitionCmd is a command about a store or a partition, the first of its words.
type partitionCmd struct {
	view
	cobra.Command
	names what
	words [2]int // how many there have to be, and may be
	want  string // what they are, for people
	// run makes the change of now, the table as it is.
	run func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error)
}

func (p *partitionCmd) build() *cobra.Command {
	p.DisableFlagsInUseLine = true
	p.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) < p.words[0] || p.words[1] > 0 && len(args) > p.words[1] {
			return &usageError{cmd.CommandPath(), "name " + p.want}
		}
		store, name, divided := strings.Cut(args[0], "/")
		if divided != (p.names == aPartition) || store == "" || divided && name == "" {
			return &usageError{cmd.CommandPath(), fmt.Sprintf("%q: name %s", args[0], p.want)}
		}
		return nil
	}
	p.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completePartitions(cmd.Context(), p.client(), p.names), cobra.ShellCompDirectiveNoFileComp
	}
	p.RunE = func(cmd *cobra.Command, args []string) error {
		if err := p.check(cmd); err != nil {
			return err
		}
		c := p.client()
		defer c.Close()
		store, name, _ := strings.Cut(args[0], "/")
		now, err := c.Partitions(cmd.Context(), store)
		if err != nil {
			return err
		}
		if now, err = p.run(cmd.Context(), c, now, name, args[1:]); err != nil {
			return err
		}
		return p.show(cmd.OutOrStdout(), now, func() error { return writePartitions(cmd.OutOrStdout(), now) })
	}
	p.socketFlag(&p.Command)
	p.outputFlag(&p.Command)
	return &p.Command
}

// completePartitions lists what the daemon has, if it answers.
func completePartitions(ctx context.Context, c *mgmt.Client, names what) (words []string) {
	defer c.Close()
	stores, err := c.Stores(ctx)
	if err != nil {
		return nil
	}
	for _, s := range stores.Stores {
		switch {
		case !s.Partitioned:
		case names == aStore:
			words = append(words, s.Name)
		default:
			if p, err := c.Partitions(ctx, s.Name); err == nil {
				for i := range p.Partitions {
					words = append(words, s.Name+"/"+p.Partitions[i].Name)
				}
			}
		}
	}
	return words
}

func partitionList() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "ls [STORE…] [--watch] [-o table|json]",
		Short: "Show the partitions of divided stores, and who uses them",
		Long: `ls shows the partitions of all divided stores, or of those named: place and size,
who may use them as endpoints, the LUNs that show them, how many endpoints are
open, how many writes came through endpoints, and how many of these no flush has
made durable yet.

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
	v.flags(cmd)
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

func partitionInit() *cobra.Command {
	force := false
	p := &partitionCmd{
		names: aStore, words: [2]int{1, 1}, want: `a divided store, such as disk1`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, _ string, _ []string) (*mgmt.Partitions, error) {
			return c.InitPartitions(ctx, now.Store, now.Tag, force)
		},
	}
	p.Use, p.Short = "init STORE [--force]", "Make an empty partition table on a store"
	p.Long = `init writes an empty partition table to the first MiB of a store, which has to hold
zeroes. With --force whatever stands there is lost; if that is a partition table,
its partitions are lost with it, and none of them may be in use.`
	p.Example = `  target partition init disk1`
	cmd := p.build()
	cmd.Flags().BoolVar(&force, "force", false, "also if the store is not empty: what it holds is lost")
	return cmd
}

func partitionCreate() *cobra.Command {
	var size, offset string
	var access []string
	p := &partitionCmd{
		names: aPartition, words: [2]int{1, 1}, want: `a partition that is to be made, such as disk1/log`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, _ []string) (*mgmt.Partitions, error) {
			n := mgmt.NewPartition{Name: name}
			var err error
			if n.Size, err = config.ParseSize(size); err != nil {
				return nil, err
			}
			if offset != "" {
				if n.Offset, err = config.ParseSize(offset); err != nil {
					return nil, err
				}
			}
			for _, a := range access {
				who, rights, ok := strings.Cut(a, "=")
				if !ok {
					return nil, fmt.Errorf("%q is no access line: write WHO=RIGHTS, such as uid:998=rwf", a)
				}
				n.Access = append(n.Access, mgmt.PartitionAccess{Who: who, Rights: rights})
			}
			return c.CreatePartitions(ctx, now.Store, now.Tag, n)
		},
	}
	p.Use, p.Short = "create STORE/NAME --size SIZE [--offset SIZE] [--access WHO=RIGHTS]", "Make a partition"
	p.Long = `create makes a partition where it fits, or at --offset. Names have 1 to 63 of
a-z, 0-9, dot, underscore and dash. What a deleted partition left at this place can be
read in the new one, unless it was deleted with --erase.

Without --access nobody may use it as an endpoint. WHO and RIGHTS are as for grant.`
	p.Example = `  target partition create disk1/log --size 256MiB --access uid:998=rwf
  target partition create disk1/db --size 100GiB --offset 1GiB`
	cmd := p.build()
	cmd.Flags().StringVar(&size, "size", "", "the `SIZE`, a multiple of 4096 bytes, such as 64MiB")
	cmd.Flags().StringVar(&offset, "offset", "", "where it begins, as a `SIZE` (default: the first multiple of 1MiB where it fits)")
	cmd.Flags().StringArrayVar(&access, "access", nil, "who may do what, as `WHO=RIGHTS`; may be given several times")
	must(cmd.MarkFlagRequired("size"))
	return cmd
}

func partitionResize() *cobra.Command {
	force := false
	p := &partitionCmd{
		names: aPartition, words: [2]int{2, 2}, want: `a partition and its new size, such as "disk1/log 512MiB"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			size, err := config.ParseSize(words[0])
			if err != nil {
				return nil, err
			}
			return c.AlterPartition(ctx, now.Store, name, now.Tag, mgmt.PartitionChange{Size: &size}, force)
		},
	}
	p.Use, p.Short = "resize STORE/NAME SIZE [--force]", "Make a partition larger or smaller"
	p.Long = `resize makes a partition larger, if what follows it is free, or smaller. Larger is
possible at any time: what it gains reads as zeroes, LUNs tell their initiators of the
new size, and endpoints have it when they are opened again. Smaller is possible only
while nobody uses it: --force ends its endpoints. What is cut off is lost.`
	p.Example = `  target partition resize disk1/log 512MiB`
	cmd := p.build()
	cmd.Flags().BoolVar(&force, "force", false, "end endpoints that stand in the way")
	return cmd
}

func partitionGrant() *cobra.Command {
	p := &partitionCmd{
		names: aPartition, words: [2]int{3, 0}, want: `a partition, and who gets which rights, such as "disk1/log uid:998 rwf"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			if len(words)%2 != 0 {
				return nil, errors.New(`each WHO needs its RIGHTS, such as "uid:998 rwf any r"`)
			}
			lines, err := accessOf(now, name)
			if err != nil {
				return nil, err
			}
			for ; len(words) > 0; words = words[2:] {
				lines = slices.DeleteFunc(lines, func(a mgmt.PartitionAccess) bool { return a.Who == words[0] })
				lines = append(lines, mgmt.PartitionAccess{Who: words[0], Rights: words[1]})
			}
			return c.AlterPartition(ctx, now.Store, name, now.Tag, mgmt.PartitionChange{Access: &lines}, false)
		},
	}
	p.Use, p.Short = "grant STORE/NAME WHO RIGHTS…", "Say who may use a partition as an endpoint, and how"
	p.Long = `grant gives somebody rights of a partition, in place of those that he has there.
WHO is
    any           everybody
    uid:N, gid:N  a user, or a group, of this machine
    name:NAME     who proves this name by a secret
and RIGHTS are letters: r read, w write, f flush, a atomic operations, d discard,
m manage. Of several lines that match somebody, all count. Who loses a right while
he has an endpoint open loses the endpoint.

LUNs do not ask for these rights: who may log in is a matter of their target.`
	p.Example = `  target partition grant disk1/log uid:998 rwf
  target partition grant disk1/log any r name:backup rf`
	return p.build()
}

// accessOf returns the access lines of a partition.
func accessOf(now *mgmt.Partitions, name string) ([]mgmt.PartitionAccess, error) {
	for i := range now.Partitions {
		if now.Partitions[i].Name == name {
			return slices.Clone(now.Partitions[i].Access), nil
		}
	}
	return nil, fmt.Errorf("store %q: there is no partition %q", now.Store, name)
}

func partitionRevoke() *cobra.Command {
	p := &partitionCmd{
		names: aPartition, words: [2]int{2, 0}, want: `a partition, and who loses his rights of it, such as "disk1/log uid:998"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			lines, err := accessOf(now, name)
			if err != nil {
				return nil, err
			}
			for _, who := range words {
				n := len(lines)
				if lines = slices.DeleteFunc(lines, func(a mgmt.PartitionAccess) bool { return a.Who == who }); len(lines) == n {
					return nil, fmt.Errorf("%s/%s has no access line for %s: ls shows those that it has", now.Store, name, who)
				}
			}
			lines = append([]mgmt.PartitionAccess{}, lines...) // none is [] rather than null
			return c.AlterPartition(ctx, now.Store, name, now.Tag, mgmt.PartitionChange{Access: &lines}, false)
		},
	}
	p.Use, p.Short = "revoke STORE/NAME WHO…", "Take somebody's rights of a partition away"
	p.Long = `revoke removes the access lines of those named. Their endpoints are ended: operations
under way end, later ones fail. Somebody may keep rights by another line, such as that
of any.`
	p.Example = `  target partition revoke disk1/log uid:998`
	return p.build()
}

func partitionRename() *cobra.Command {
	force := false
	p := &partitionCmd{
		names: aPartition, words: [2]int{2, 2}, want: `a partition and its new name, such as "disk1/log journal"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			return c.AlterPartition(ctx, now.Store, name, now.Tag, mgmt.PartitionChange{Name: &words[0]}, force)
		},
	}
	p.Use, p.Short = "rename STORE/NAME NEW [--force]", "Give a partition another name"
	p.Long = `rename gives a partition another name in the same store, while nobody uses it: --force
ends its endpoints. Its UUID stays, and so does the identity of the disk that
initiators see when a LUN shows it by its new name.`
	p.Example = `  target partition rename disk1/log journal`
	cmd := p.build()
	cmd.Flags().BoolVar(&force, "force", false, "end endpoints that stand in the way")
	return cmd
}

func partitionDelete() *cobra.Command {
	erase, force := false, false
	p := &partitionCmd{
		names: aPartition, words: [2]int{1, 1}, want: `a partition, such as disk1/log`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, _ []string) (*mgmt.Partitions, error) {
			return c.DeletePartition(ctx, now.Store, name, now.Tag, erase, force)
		},
	}
	p.Use, p.Short = "delete STORE/NAME [--erase] [--force]", "Delete a partition"
	p.Long = `delete takes a partition out of the table. Without --erase its bytes stay where they
are, and the next partition at this place can read them. A partition in use is not
deleted: --force ends its endpoints, and LUNs that show it have to be taken out of the
configuration first.`
	p.Example = `  target partition delete disk1/log --erase`
	cmd := p.build()
	cmd.Flags().BoolVar(&erase, "erase", false, "discard its bytes first, so that they read as zeroes")
	cmd.Flags().BoolVar(&force, "force", false, "end endpoints that stand in the way")
	return cmd
}

func endpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Show and end the RDMA endpoints of partitions",
		Long: `endpoint shows and ends the queue pairs that work on partitions. Who may open one
is what target partition grant says.`,
		Example: `  target endpoint ls
  target endpoint drop 3`,
		Args: cobra.ArbitraryArgs,
		RunE: unknownCommand,
	}
	cmd.AddCommand(endpointList(), endpointDrop())
	return cmd
}

func endpointList() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "ls [--watch] [-o table|json]",
		Short: "Show the open endpoints, and what each does",
		Long: `ls shows the endpoints that are open: queue pairs that work on a partition, who uses
them, with which rights, and what each did since it was opened. With --watch it goes
on and shows what happens per second.

Latency is that of operations of the store, from submission to completion. One
operation in 64 is timed, and stands for those before it.`,
		Example: `  target endpoint ls
  target endpoint ls --watch`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Endpoints, writeEndpoints)
		},
	}
	v.flags(cmd)
	return cmd
}

func writeEndpoints(w io.Writer, now, before *mgmt.Endpoints) error {
	if len(now.Endpoints) == 0 {
		_, err := fmt.Fprintln(w, "no endpoints")
		return err
	}
	then := make(map[uint64]*mgmt.IO)
	p := newPeriod(now.Time, nil, now.BoundsNS)
	if before != nil {
		p = newPeriod(now.Time, &before.Time, now.BoundsNS)
		for i := range before.Endpoints {
			then[before.Endpoints[i].ID] = &before.Endpoints[i].IO
		}
	}
	t := newTable(w)
	fmt.Fprintf(t, "ID\tPARTITION\tUSER\tRIGHTS\tORDER\tVIA\tAGE\t%s\n", p.heading())
	for i := range now.Endpoints {
		e := &now.Endpoints[i]
		fmt.Fprintf(t, "%d\t%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.Store, e.Partition, e.Identity, e.Rights, e.Order,
			cmp.Or(e.Via, "-"), age(e.Since, now.Time), p.cells(&e.IO, then[e.ID]))
	}
	return t.Flush()
}

func endpointDrop() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "drop ID",
		Short: "End the endpoint with this number",
		Long: `drop ends an endpoint: operations under way end, later ones fail. ID is what target
endpoint ls shows. Its user may open another one at once: to keep him out, revoke his
rights.`,
		Example:               `  target endpoint drop 3`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{cmd.CommandPath(), "name one endpoint by its number: " + cmd.Root().Name() + " endpoint ls lists them"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return &usageError{cmd.CommandPath(), fmt.Sprintf("%q is not the number of an endpoint", args[0])}
			}
			c := v.client()
			defer c.Close()
			return c.DropEndpoint(cmd.Context(), id)
		},
	}
	v.socketFlag(cmd)
	return cmd
}
