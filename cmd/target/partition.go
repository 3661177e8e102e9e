package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
and durable, when the command ends. LUNs show partitions as STORE/PARTITION; grant
and revoke say who may use one without a LUN, as an RDMA endpoint.

The command reads the table before it changes it. The change is refused if somebody
else has changed the table in the meantime.`,
		Example: `  target partition init disk1
  target partition create disk1/log --size 256MiB
  target partition ls`,
		Args: cobra.ArbitraryArgs,
		RunE: unknownCommand,
	}
	cmd.AddCommand(partitionList(), partitionInit(), partitionCreate(), partitionResize(), partitionGrant(), partitionRevoke(), partitionCache(), partitionRename(), partitionDelete())
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
		now, err = p.run(cmd.Context(), c, now, name, args[1:])
		if wrong, ok := errors.AsType[wordError](err); ok {
			return &usageError{cmd.CommandPath(), wrong.Error()}
		}
		if err != nil {
			return err
		}
		return p.show(cmd.OutOrStdout(), now, func() error { return writePartitions(cmd.OutOrStdout(), now) })
	}
	p.socketFlag(&p.Command)
	p.outputFlag(&p.Command)
	return &p.Command
}

// wordError is an error of run for a word of the command line that makes no sense.
type wordError struct{ error }

// parseSize reads a size from the command line.
func parseSize(text string) (int64, error) {
	size, err := config.ParseSize(text)
	if err != nil {
		return 0, wordError{err}
	}
	return size, nil
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
	var size, offset, cache string
	var access []string
	p := &partitionCmd{
		names: aPartition, words: [2]int{1, 1}, want: `a partition that is to be made, such as disk1/log`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, _ []string) (*mgmt.Partitions, error) {
			n := mgmt.NewPartition{Name: name}
			var err error
			if n.Size, err = parseSize(size); err != nil {
				return nil, err
			}
			if offset != "" {
				if n.Offset, err = parseSize(offset); err != nil {
					return nil, err
				}
				if n.Offset == 0 { // in the API that is where it fits
					return nil, wordError{errors.New("the table takes the first MiB: a partition begins at 1MiB or later")}
				}
			}
			if cache != "" {
				if n.Cache, err = parseCache(cache); err != nil {
					return nil, err
				}
			}
			for _, a := range access {
				who, rights, ok := strings.Cut(a, "=")
				if !ok {
					return nil, wordError{fmt.Errorf("%q is no access line: write WHO=RIGHTS, such as name:db1=rwf", a)}
				}
				n.Access = append(n.Access, mgmt.PartitionAccess{Who: who, Rights: rights})
			}
			return c.CreatePartitions(ctx, now.Store, now.Tag, n)
		},
	}
	p.Use, p.Short = "create STORE/NAME --size SIZE [--offset SIZE] [--cache TIME] [--access WHO=RIGHTS]", "Make a partition"
	p.Long = `create makes a partition where it fits, or at --offset. Names have 1 to 63 of
a-z, 0-9, dot, underscore and dash. What a deleted partition left at this place can be
read in the new one, unless it was deleted with --erase.

Without --access nobody may use it as an endpoint. WHO and RIGHTS are as for grant.`
	p.Example = `  target partition create disk1/log --size 256MiB --access name:db1=rwf
  target partition create disk1/db --size 100GiB --offset 1GiB`
	cmd := p.build()
	cmd.Flags().StringVar(&size, "size", "", "the `SIZE`, a multiple of 4096 bytes, such as 64MiB")
	cmd.Flags().StringVar(&offset, "offset", "", "where it begins, as a `SIZE` (default: the first multiple of 1MiB where it fits)")
	cmd.Flags().StringVar(&cache, "cache", "", "how long a write may wait to be durable, as a `TIME`, none or off (see cache)")
	cmd.Flags().StringArrayVar(&access, "access", nil, "who may do what, as `WHO=RIGHTS`; may be given several times")
	words := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := words(cmd, args); err != nil {
			return err
		}
		if size == "" {
			return &usageError{cmd.CommandPath(), "say how large the partition is to be, such as --size 256MiB"}
		}
		return nil
	}
	return cmd
}

func partitionResize() *cobra.Command {
	force := false
	p := &partitionCmd{
		names: aPartition, words: [2]int{2, 2}, want: `a partition and its new size, such as "disk1/log 512MiB"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			size, err := parseSize(words[0])
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

// parseCache reads how a partition may be cached.
func parseCache(text string) (*mgmt.PartitionCache, error) {
	switch text {
	case "none":
		return &mgmt.PartitionCache{Write: "none"}, nil
	case "off":
		return &mgmt.PartitionCache{}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minCacheTime || d > maxCacheTime || d%time.Millisecond != 0 {
		return nil, wordError{fmt.Errorf("%q is no time that a write may wait: write one from %v to %v in milliseconds, such as 200ms, or none, or off", text, minCacheTime, maxCacheTime)}
	}
	return &mgmt.PartitionCache{WriteMS: uint32(d.Milliseconds())}, nil
}

// Shorter windows flush without end. The table has 32 bits.
const (
	minCacheTime = 2 * time.Millisecond
	maxCacheTime = 24 * time.Hour
)

func partitionCache() *cobra.Command {
	p := &partitionCmd{
		names: aPartition, words: [2]int{2, 2}, want: `a partition and a time, such as "disk1/log 200ms"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			cache, err := parseCache(words[0])
			if err != nil {
				return nil, err
			}
			return c.AlterPartition(ctx, now.Store, name, now.Tag, mgmt.PartitionChange{Cache: cache}, false)
		},
	}
	p.Use, p.Short = "cache STORE/NAME TIME|none|off", "Say how long a write may wait to be durable"
	p.Long = `cache says what happens to writes to a partition that nobody flushes. With a TIME they
are flushed so often that each is durable that long after its completion, as long as a
flush takes less than half of it: a power cut takes at most what completed in that time.
With none, each write is durable before it completes. With off, they wait until somebody
flushes. A shorter time of the whole store (aging in the configuration) counts in any
case. The change is in force for writes that come after it, also while the partition is
in use.`
	p.Example = `  target partition cache disk1/log 200ms`
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
