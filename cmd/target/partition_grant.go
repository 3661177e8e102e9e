package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
)

func partitionGrant() *cobra.Command {
	p := &partitionCmd{
		names: aPartition, words: [2]int{3, 0}, want: `a partition, and who gets which rights, such as "disk1/log name:db1 rwf"`,
		run: func(ctx context.Context, c *mgmt.Client, now *mgmt.Partitions, name string, words []string) (*mgmt.Partitions, error) {
			if len(words)%2 != 0 {
				return nil, wordError{errors.New(`each WHO needs its RIGHTS, such as "name:db1 rwf any r"`)}
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
    uid:N, gid:N  a user, or a group, of this machine, at a portal with transport: local
    name:NAME     a client that proves this name by a secret
and RIGHTS are letters: r read, w write, f flush, a atomic operations, d discard,
m manage. Of several lines that match somebody, all count. Who loses a right while
he has an endpoint open loses the endpoint.

LUNs do not ask for these rights: who may log in is a matter of their target.`
	p.Example = `  target partition grant disk1/log name:db1 rwf
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
		names: aPartition, words: [2]int{2, 0}, want: `a partition, and who loses his rights of it, such as "disk1/log name:db1"`,
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
	p.Example = `  target partition revoke disk1/log name:db1`
	return p.build()
}
