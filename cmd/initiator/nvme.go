package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"
	"github.com/spf13/cobra"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/nvme/auth"
)

func parseNVMe(arg string) (host.URL, error) {
	u, err := host.ParseURL(arg)
	if err != nil {
		return u, &usageError{err}
	}
	return u, nil
}

func (fl *flags) hostOptions(c *cobra.Command) (host.Options, error) {
	o := host.Options{HostNQN: fl.hostNQN}
	if err := withoutEffect(c, "initiator-name", "flow", "opcodes", "immediate", "nic", "nic-poll"); err != nil {
		return o, err
	}
	if err := nvme.CheckNQN(o.HostNQN); err != nil {
		return o, &usageError{fmt.Errorf("--host-nqn: %w", err)}
	}
	if fl.verbose {
		o.Logger = fl.logger(c)
	}
	var err error
	if o.Secret, err = secretOf("NVME_DHCHAP_SECRET"); err != nil {
		return o, err
	}
	o.ControllerSecret, err = secretOf("NVME_DHCHAP_CTRL_SECRET")
	if err == nil && o.ControllerSecret != nil && o.Secret == nil {
		err = &usageError{errors.New("the controller has to prove who it is (NVME_DHCHAP_CTRL_SECRET), which takes a secret of the host, too: set NVME_DHCHAP_SECRET")}
	}
	return o, err
}

// secretOf reads a secret of DH-HMAC-CHAP from the environment; nil: there is none.
func secretOf(name string) (*auth.Secret, error) {
	text := os.Getenv(name)
	if text == "" {
		return nil, nil
	}
	s, err := auth.ParseSecret(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", name, err)}
	}
	return &s, nil
}

// logger writes to standard error.
func (fl *flags) logger(c *cobra.Command) *slog.Logger {
	l := logrus.New()
	l.SetOutput(c.ErrOrStderr())
	l.SetLevel(logrus.DebugLevel)
	return slog.New(logrusslog.NewHandler(l, nil))
}

// subsystem connects with the subsystem of the URL and calls f with the controller.
func (fl *flags) subsystem(c *cobra.Command, u host.URL, f func(context.Context, *host.Controller) error) error {
	o, err := fl.hostOptions(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	ctrl, err := host.Dial(ctx, u, o)
	if err != nil {
		return err
	}
	err = f(c.Context(), ctrl)
	if closed := ctrl.Close(); err == nil {
		err = closed
	}
	return err
}

// namespace is subsystem for commands that use one namespace, which the URL has to name.
func (fl *flags) namespace(c *cobra.Command, arg string, f func(context.Context, *host.Controller, *host.Namespace) error) error {
	u, err := parseNVMe(arg)
	if err != nil {
		return err
	}
	if u.NSID == 0 {
		return &usageError{fmt.Errorf("%v names no namespace (…/nqn/1); list them: initiator ls %v", u, u)}
	}
	return fl.subsystem(c, u, func(ctx context.Context, ctrl *host.Controller) error {
		n, err := ctrl.Namespace(ctx, u.NSID)
		if err != nil {
			return err
		}
		return f(ctx, ctrl, n)
	})
}

// listNVMe lists subsystems, or the namespaces of one.
func (fl *flags) listNVMe(c *cobra.Command, arg string) error {
	u, err := parseNVMe(arg)
	if err != nil {
		return err
	}
	if u.Subsystem != "" {
		return fl.subsystem(c, u, func(ctx context.Context, ctrl *host.Controller) error { return fl.namespaces(ctx, c, ctrl) })
	}
	o, err := fl.hostOptions(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	found, err := host.Discover(ctx, u, o)
	if err != nil {
		return err
	}
	type row struct {
		Subsystem string `json:"subsystem"`
		Address   string `json:"address"`
	}
	rows := []row{}
	for _, d := range found {
		if d.Type == nvme.EntryNVM && d.Transport == nvme.TransportTCP {
			rows = append(rows, row{d.SubNQN, net.JoinHostPort(d.Address, d.Service)})
		}
	}
	if fl.json {
		return printJSON(c.OutOrStdout(), rows)
	}
	last := ""
	var out strings.Builder
	for _, r := range rows {
		if r.Subsystem != last {
			fmt.Fprintln(&out, plain(r.Subsystem))
		}
		last = r.Subsystem
		fmt.Fprintf(&out, "  %s\n", plain(r.Address))
	}
	_, err = io.WriteString(c.OutOrStdout(), out.String())
	return err
}

// space is a row of ls: a namespace.
type space struct {
	NSID      uint32 `json:"nsid"`
	Size      int64  `json:"size"` // bytes
	BlockSize int    `json:"block_size"`
	ReadOnly  bool   `json:"readonly"`
	UUID      string `json:"uuid,omitempty"`
}

func spaceOf(nsid uint32, n *host.Namespace) space {
	s := space{NSID: nsid, Size: n.Size(), BlockSize: n.BlockSize(), ReadOnly: n.ReadOnly}
	if n.UUID != [16]byte{} {
		s.UUID = host.HexID(n.UUID)
	}
	return s
}

func (fl *flags) namespaces(ctx context.Context, c *cobra.Command, ctrl *host.Controller) error {
	list, err := ctrl.Namespaces(ctx)
	if err != nil {
		return err
	}
	spaces, errs := []space{}, []error(nil)
	for _, nsid := range list {
		n, err := ctrl.Namespace(ctx, nsid)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		spaces = append(spaces, spaceOf(nsid, n))
	}
	if fl.json {
		return errors.Join(append(errs, printJSON(c.OutOrStdout(), spaces))...)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NSID\tSIZE\tBLOCK\tUUID")
	for _, s := range spaces {
		n := size(s.Size)
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\n", s.NSID, n.String(), s.BlockSize, s.UUID)
	}
	return errors.Join(append(errs, w.Flush())...)
}

// identify shows what a controller and a namespace say of themselves.
func (fl *flags) identify(c *cobra.Command, arg string) error {
	return fl.namespace(c, arg, func(_ context.Context, ctrl *host.Controller, n *host.Namespace) error {
		u, err := parseNVMe(arg)
		if err != nil {
			return err
		}
		id := struct {
			Model      string `json:"model"`
			Firmware   string `json:"firmware"`
			Serial     string `json:"serial"`
			Controller uint16 `json:"cntlid"`
			NGUID      string `json:"nguid"`
			space
		}{ctrl.Info.Model, ctrl.Info.Firmware, ctrl.Info.Serial, ctrl.ID, fmt.Sprintf("%x", n.NGUID), spaceOf(u.NSID, n)}
		if fl.json {
			return printJSON(c.OutOrStdout(), id)
		}
		bytes := size(id.Size)
		_, err = fmt.Fprintf(c.OutOrStdout(), "model       %s\nfirmware    %s\nserial      %s\ncontroller  %d\nnamespace   %d of %s in blocks of %d\nuuid        %s\nnguid       %s\n",
			plain(id.Model), plain(id.Firmware), plain(id.Serial), id.Controller, id.NSID, bytes.String(), id.BlockSize, id.UUID, id.NGUID)
		return err
	})
}
