// Command gotgt serves one file with the packages of github.com/gostor/gotgt, to
// compare it with this project's target. It listens on every address of the
// machine, because gotgt ignores the address that it is told. It runs only during
// the benchmark.
//
//	gotgt PORT IQN FILE
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/gostor/gotgt/pkg/config"
	_ "github.com/gostor/gotgt/pkg/port/iscsit"
	"github.com/gostor/gotgt/pkg/scsi"
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore"
	"github.com/sirupsen/logrus"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "gotgt PORT IQN FILE")
		os.Exit(2)
	}
	port, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = serve(port, os.Args[2], os.Args[3])
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve serves until gotgt fails.
func serve(port int, iqn, file string) error {
	logrus.SetLevel(logrus.ErrorLevel)
	const device = 1000
	c := &config.Config{
		Storages:     []config.BackendStorage{{DeviceID: device, Path: "file:" + file, Online: true, BlockShift: 9}},
		ISCSIPortals: []config.ISCSIPortalInfo{{ID: 0, Portal: fmt.Sprintf("127.0.0.1:%d", port)}},
		ISCSITargets: map[string]config.ISCSITarget{
			iqn: {TPGTs: map[string][]uint64{"1": {0}}, LUNs: map[string]uint64{"0": device}},
		},
	}
	if err := scsi.InitSCSILUMap(c); err != nil {
		return err
	}
	driver, err := scsi.NewTargetDriver("iscsi", scsi.NewSCSITargetService())
	if err != nil {
		return err
	}
	if err := driver.NewTarget(iqn, c); err != nil {
		return err
	}
	return driver.Run(port)
}
