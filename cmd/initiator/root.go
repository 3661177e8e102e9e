package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oneshot/initiator"
	"oneshot/initiator/host"
	"oneshot/internal/command"
	"oneshot/internal/version"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic"
)

// flags holds the flags that all commands have.
type flags struct {
	name      string
	hostNQN   string
	json      bool
	flow      string
	opcodes   bool
	immediate int
	timeout   time.Duration
	verbose   bool
	nic       string
	nicPoll   time.Duration

	device rdma.Device // of nic, once it is open
}

func versionCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `version prints the version of the program, and the Go version that built it. Begin a bug
report with it.`,
		Example: `  initiator version`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.json {
				return printJSON(c.OutOrStdout(), struct {
					Version string `json:"version"`
					Go      string `json:"go"`
				}{version.String(), runtime.Version()})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "oneshot %s\nbuilt with  %s for %s/%s\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func rootCommand() *cobra.Command {
	f := new(flags)
	root := &cobra.Command{
		Use:   "initiator",
		Short: "Use disks over iSCSI, iSER, one-shot RDMA and NVMe/TCP, all in user space",
		Long: `initiator lists, reads, writes and measures the disks of iSCSI targets and of subsystems of NVMe.

A URL has the form that libiscsi and QEMU use:

  iscsi://[user[%secret]@]host[:port]/iqn/lun   iSCSI over TCP, port 3260
  iser+iwarp://…                                iSER over iWARP, port 3261
  oneshot+iwarp://…                             one-shot RDMA over iWARP, port 3261
  iser+verbs://…?device=rxe0                    iSER over an RDMA device of the kernel, port 3260
  nvme+tcp://host[:port]/nqn/nsid               NVMe over TCP, port 4420

After ? may stand header_digest=crc32c, data_digest=crc32c, target_user=… and
target_password=…, with & between them. Other users can see the command line but not the
environment, so put user and secret into LIBISCSI_CHAP_USERNAME and LIBISCSI_CHAP_PASSWORD,
those of the target into LIBISCSI_CHAP_TARGET_USERNAME and LIBISCSI_CHAP_TARGET_PASSWORD.
Secrets of nvme+tcp:// are in NVME_DHCHAP_SECRET, and the controller's in NVME_DHCHAP_CTRL_SECRET.
RDMA over iWARP needs no card and no kernel module.`,
		Example: `  initiator ls iscsi://127.0.0.1
  initiator read --length 1MiB iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0 | hexdump -C | head
  initiator bench --depth 32 --random oneshot+iwarp://127.0.0.1/iqn.2026-11.example.oneshot:demo/0`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(c *cobra.Command, a []string) error {
			if len(a) == 0 {
				return nil
			}
			near := c.SuggestionsFor(a[0])
			if len(near) == 0 {
				return misused(c, fmt.Sprintf("unknown command %q", a[0]))
			}
			return &usageError{fmt.Errorf("unknown command %q: did you mean %s?", a[0], strings.Join(near, " or "))}
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return misused(c, "nothing to do: name a command, such as ls, read or bench")
		},
	}
	command.ShowVersion(root)
	root.SuggestionsMinimumDistance = 2
	p := root.PersistentFlags()
	p.StringVar(&f.name, "initiator-name", initiator.DefaultName, "iSCSI `NAME` of this initiator, for all but nvme+tcp://")
	p.StringVar(&f.hostNQN, "host-nqn", host.DefaultNQN, "`NQN` of this host, for nvme+tcp://")
	p.BoolVar(&f.json, "json", false, "print JSON instead of text")
	p.StringVar(&f.flow, "flow", "default", "`FLOW` by which memory becomes reachable over RDMA: conventional, register, window, static, one-shot, or default, which is what suits the URL")
	p.BoolVar(&f.opcodes, "opcodes", false, "mark the messages of oneshot+iwarp:// by opcodes of their own instead of by flags")
	p.IntVar(&f.immediate, "immediate", 0, "most `BYTES` of data that a write command carries with it; -1: none; 0: 8192")
	p.DurationVar(&f.timeout, "timeout", 15*time.Second, "`TIME` that connecting and logging in may take")
	p.BoolVar(&f.verbose, "verbose", false, "write a log to standard error")
	p.StringVar(&f.nic, "nic", "", "use the RDMA card in another process that answers at the socket `PATH` (target nic), for iser+iwarp:// and oneshot+iwarp://")
	p.DurationVar(&f.nicPoll, "nic-poll", 0, "with --nic, look for `TIME` for what the card answers before sleeping; 0: sleep at once")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(lsCommand(f), inquiryCommand(f), readCommand(f), writeCommand(f), benchCommand(f))
	root.AddCommand(attachCommand(f), detachCommand(f), attachedCommand(f), partitionCommand(f), objectCommand(f))
	root.AddCommand(versionCommand(f), command.Docs(func(_ *cobra.Command, reason string) error { return errors.New(reason) }))
	checkArgs(root)
	f.closeAfter(root)
	return root
}

// checkArgs makes wrong arguments of the commands below parent errors of usage.
func checkArgs(parent *cobra.Command) {
	for _, c := range parent.Commands() {
		checkArgs(c)
		args := c.Args
		c.Args = func(c *cobra.Command, a []string) error {
			if err := args(c, a); err != nil {
				return &usageError{fmt.Errorf("%w; usage: %s", err, c.UseLine())}
			}
			return nil
		}
	}
}

// closeAfter has the commands below parent close the RDMA device of --nic, if they have opened it.
func (fl *flags) closeAfter(parent *cobra.Command) {
	for _, c := range parent.Commands() {
		fl.closeAfter(c)
		run := c.RunE
		if run == nil {
			continue
		}
		c.RunE = func(c *cobra.Command, a []string) error {
			err := run(c, a)
			if fl.device != nil {
				err = errors.Join(err, fl.device.Close())
			}
			return err
		}
	}
}

// url reads the argument and what the environment adds.
func (fl *flags) url(arg string) (initiator.URL, error) {
	u, err := initiator.ParseURL(arg)
	if err != nil {
		return u, &usageError{err}
	}
	if user, ok := os.LookupEnv("LIBISCSI_CHAP_USERNAME"); ok && u.CHAP == nil {
		u.CHAP = &initiator.Credentials{Name: user}
	}
	if u.CHAP != nil && len(u.CHAP.Secret) == 0 {
		u.CHAP.Secret = []byte(os.Getenv("LIBISCSI_CHAP_PASSWORD"))
		if len(u.CHAP.Secret) == 0 {
			return u, &usageError{errors.New("there is a CHAP user without a secret: set LIBISCSI_CHAP_PASSWORD, or write user%secret@ into the URL")}
		}
	}
	if user, ok := os.LookupEnv("LIBISCSI_CHAP_TARGET_USERNAME"); ok && u.Mutual == nil {
		u.Mutual = &initiator.Credentials{Name: user}
	}
	if u.Mutual != nil && len(u.Mutual.Secret) == 0 {
		u.Mutual.Secret = []byte(os.Getenv("LIBISCSI_CHAP_TARGET_PASSWORD"))
		if len(u.Mutual.Secret) == 0 {
			return u, &usageError{errors.New("there is a user of the target without a secret, which anybody could prove to know: set LIBISCSI_CHAP_TARGET_PASSWORD")}
		}
	}
	if u.Mutual != nil && u.CHAP == nil {
		return u, &usageError{errors.New("the target has to prove who it is (target_user), which takes a CHAP user of the initiator, too: set LIBISCSI_CHAP_USERNAME, or write user%secret@ into the URL")}
	}
	return u, nil
}

func (fl *flags) options(c *cobra.Command, u initiator.URL) (initiator.Options, error) {
	flow, err := initiator.ParseFlow(fl.flow)
	if err != nil {
		return initiator.Options{}, &usageError{err}
	}
	idle := []string{"host-nqn"}
	if u.Transport != initiator.OneShot {
		idle = append(idle, "opcodes")
	}
	if fl.nic == "" {
		idle = append(idle, "nic-poll")
	}
	if err := withoutEffect(c, idle...); err != nil {
		return initiator.Options{}, err
	}
	o := initiator.Options{InitiatorName: fl.name, Flow: flow, Opcodes: fl.opcodes, Immediate: fl.immediate}
	if fl.verbose {
		o.Logger = fl.logger(c)
	}
	if fl.nic == "" {
		return o, nil
	}
	if u.Transport != initiator.ISER && u.Transport != initiator.OneShot {
		return o, &usageError{fmt.Errorf("--nic is for iser+iwarp:// and oneshot+iwarp://; the URL says %v", u.Transport)}
	}
	o.Device, err = fl.card(o.Logger)
	return o, err
}

// withoutEffect refuses flags that were given and that change nothing of what the command does with its URL.
func withoutEffect(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if c.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s has no effect here: leave it out; initiator --help says what it is for", name)}
		}
	}
	return nil
}

// card returns the device of --nic. It turns to the next card when one has gone, for who begins again, as attach does.
func (fl *flags) card(log *slog.Logger) (rdma.Device, error) {
	if fl.device == nil {
		d, err := nic.OpenLasting(nic.Config{Socket: fl.nic, Logger: log, Poll: fl.nicPoll})
		if err != nil {
			return nil, err
		}
		fl.device = d
	}
	return fl.device, nil
}

// printJSON prints v as JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

var units = []struct {
	name string
	n    int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"", 1}}

// size is a flag that counts bytes, with a unit or without.
type size int64

func (s *size) Type() string { return "size" }

func (s *size) String() string {
	n := int64(*s)
	for _, u := range []int{3, 2, 1, 0} {
		if n != 0 && n%units[u].n == 0 {
			return fmt.Sprintf("%d%s", n/units[u].n, units[u].name)
		}
	}
	return fmt.Sprint(n)
}

func (s *size) Set(v string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(v, u.name)
		if !ok {
			continue
		}
		var n int64
		var rest string
		if k, _ := fmt.Sscanf(number+" .", "%d %s", &n, &rest); k != 2 || rest != "." || n < 0 || n > 1<<62/u.n {
			break
		}
		*s = size(n * u.n)
		return nil
	}
	return fmt.Errorf("%q is not a size: write 4096, 64KiB or 1GiB, for example", v)
}
