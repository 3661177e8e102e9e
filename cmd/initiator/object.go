package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/endpoint/object"
)

const (
	envObjectUser   = "ONESHOT_OBJECT_USER"
	envObjectSecret = "ONESHOT_OBJECT_SECRET"
)

func objectCommand(fl *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "object",
		Short: "Keep objects in the memory of a target, by pointers that outlive a node",
		Long: `object inserts, updates, reads and deletes objects that a target keeps at a portal with
"serve: objects". NODES is HOST:PORT of one node of a cluster, or of several, with commas between
them; one that does not answer, or is not the primary, is passed over. A pointer is what insert has
printed: it stays the same when another node takes over. An object has up to 262112 bytes.

If the portal has clients, name and secret are in ` + envObjectUser + ` and ` + envObjectSecret + `,
where other users cannot see them.`,
		Example: `  echo hello | initiator object insert 192.0.2.1:7261,192.0.2.2:7261
  initiator object read 192.0.2.1:7261,192.0.2.2:7261 os1:500000000000:fff1a3b7:1`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return misused(c, "nothing to do: name a command, such as insert or read")
		},
	}
	c.AddCommand(objectInsert(fl), objectUpdate(fl), objectDelete(fl),
		objectGet(fl, "read", "Print an object", `read writes an object to FILE, or to standard output. It is what was written last.`, (*object.Client).Read),
		objectGet(fl, "peek", "Print an object, which may be an old one", `peek writes an object to FILE, or to standard output. It is read by RDMA Read from the
memory of the node, and nobody looks whether that node is still the primary: the object may be an
old one.`, (*object.Client).Peek))
	return c
}

// objects opens a client, and calls f with it.
func (fl *flags) objects(c *cobra.Command, nodes string, f func(context.Context, *object.Client) error) (err error) {
	for _, name := range []string{"initiator-name", "host-nqn", "flow", "opcodes", "immediate", "nic", "nic-poll"} {
		if c.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s is for disks, not for objects", name)}
		}
	}
	o := object.Options{Nodes: strings.Split(nodes, ","), Name: os.Getenv(envObjectUser), Secret: []byte(os.Getenv(envObjectSecret))}
	for _, n := range o.Nodes {
		if host, port, err := net.SplitHostPort(n); err != nil || host == "" || port == "" {
			return &usageError{fmt.Errorf("%q is not the address of a node: write HOST:PORT, such as 192.0.2.1:7261", n)}
		}
	}
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	client, err := object.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return f(ctx, client)
}

// objectPointer reads the argument that is a pointer.
func objectPointer(text string) (object.Pointer, error) {
	p, err := object.ParsePointer(text)
	if err != nil {
		return p, &usageError{err}
	}
	return p, nil
}

// objectInput reads an object from the file of the arguments, or from standard input.
func objectInput(c *cobra.Command, args []string) (b []byte, err error) {
	r := readUntil(c.Context(), c.InOrStdin())
	if len(args) > 0 && args[0] != "-" {
		f, err := open(c.Context(), args[0])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = readUntil(c.Context(), f)
	}
	if b, err = io.ReadAll(io.LimitReader(r, object.MaxObject+1)); err == nil && len(b) > object.MaxObject {
		err = object.ErrTooLong
	}
	return b, err
}

// sayPointer prints the pointer of an object.
func (fl *flags) sayPointer(c *cobra.Command, p object.Pointer) (err error) {
	if fl.json {
		err = printJSON(c.OutOrStdout(), struct {
			Pointer string `json:"pointer"`
		}{p.String()})
	} else {
		_, err = fmt.Fprintln(c.OutOrStdout(), p)
	}
	if err != nil {
		return fmt.Errorf("the object is kept as %v: %w", p, err) // without its pointer nobody finds it
	}
	return nil
}

func objectInsert(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "insert NODES [FILE]",
		Short: "Insert an object and print its pointer",
		Long:  `insert keeps FILE, or standard input, as an object, and prints the pointer by which it is found.`,
		Example: `  echo hello | initiator object insert 192.0.2.1:7261,192.0.2.2:7261
  initiator object insert 192.0.2.1:7261 record.bin`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := objectInput(c, args[1:])
			if err != nil {
				return err
			}
			return fl.objects(c, args[0], func(ctx context.Context, o *object.Client) error {
				p, err := o.Insert(ctx, b)
				if err != nil {
					return err
				}
				return fl.sayPointer(c, p)
			})
		},
	}
}

func objectUpdate(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "update NODES POINTER [FILE]",
		Short: "Replace an object and print its pointer",
		Long: `update replaces an object by FILE, or standard input. It prints the pointer, which is another one if
the object has outgrown its place; then the old pointer names nothing any more.`,
		Example: `  echo more | initiator object update 192.0.2.1:7261 os1:500000000000:fff1a3b7:1`,
		Args:    cobra.RangeArgs(2, 3),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := objectPointer(args[1])
			if err != nil {
				return err
			}
			b, err := objectInput(c, args[2:])
			if err != nil {
				return err
			}
			return fl.objects(c, args[0], func(ctx context.Context, o *object.Client) error {
				p, err := o.Update(ctx, p, b)
				if err != nil {
					return err
				}
				return fl.sayPointer(c, p)
			})
		},
	}
}

func objectDelete(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:     "delete NODES POINTER",
		Short:   "Delete an object",
		Long:    `delete ends an object. Its pointer names nothing any more, and is never given to another object.`,
		Example: `  initiator object delete 192.0.2.1:7261,192.0.2.2:7261 os1:500000000000:fff1a3b7:1`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := objectPointer(args[1])
			if err != nil {
				return err
			}
			return fl.objects(c, args[0], func(ctx context.Context, o *object.Client) error { return o.Delete(ctx, p) })
		},
	}
}

func objectGet(fl *flags, name, short, long string, get func(*object.Client, context.Context, object.Pointer) ([]byte, error)) *cobra.Command {
	return &cobra.Command{
		Use:     name + " NODES POINTER [FILE]",
		Short:   short,
		Long:    long,
		Example: "  initiator object " + name + " 192.0.2.1:7261,192.0.2.2:7261 os1:500000000000:fff1a3b7:1",
		Args:    cobra.RangeArgs(2, 3),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := objectPointer(args[1])
			if err != nil {
				return err
			}
			return fl.objects(c, args[0], func(ctx context.Context, o *object.Client) error {
				b, err := get(o, ctx, p)
				if err != nil {
					return err
				}
				_, err = copyTo(c, args[2:], func(w io.Writer) error {
					_, err := w.Write(b)
					return err
				})
				return err
			})
		},
	}
}
