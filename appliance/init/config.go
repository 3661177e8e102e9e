package main

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed default.yaml
var defaultYAML []byte

const (
	defaultPath = "/etc/oneshot/target.yaml"
	givenPath   = "/run/oneshot/target.yaml"
	diskDir     = "/run/config"
)

// configure returns the path of the configuration to serve.
func configure(words map[string]string) (string, error) {
	own, err := defaultConfig(words["advertise"])
	if err != nil {
		return "", err
	}
	if err := write(defaultPath, own); err != nil {
		return "", err
	}
	switch place, text := words["config"], words["yaml"]; {
	case place != "" && text != "":
		return "", errors.New("both oneshot.config and oneshot.yaml are given: remove one")
	case place != "":
		return onDisk(place)
	case text != "":
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", fmt.Errorf("oneshot.yaml is not base64: %w", err)
		}
		return givenPath, write(givenPath, b)
	}
	return defaultPath, nil
}

// listens matches the address of each portal for initiators in the default configuration.
var listens = regexp.MustCompile(`(transport: (?:tcp|iwarp|verbs), listen: [0-9.:]+)`)

// defaultConfig returns the default configuration. Its portals tell initiators the address host; empty: the address
// that the initiators have reached. Hosts of NVMe are always told the address that they have reached.
func defaultConfig(host string) ([]byte, error) {
	if host == "" {
		return defaultYAML, nil
	}
	if strings.ContainsAny(host, "\"\\") {
		return nil, fmt.Errorf("oneshot.advertise=%s is not the name or address of a host", host)
	}
	return listens.ReplaceAll(defaultYAML, []byte(`$1, advertise: "`+strings.ReplaceAll(host, "$", "$$")+`"`)), nil
}

func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// onDisk mounts DEVICE of DEVICE:PATH, and returns the path of PATH on it. The configuration can use other files
// of the disk, with paths relative to its own directory.
func onDisk(place string) (string, error) {
	device, path, ok := strings.Cut(place, ":")
	if !ok || path == "" {
		return "", fmt.Errorf("oneshot.config=%s: write DEVICE:PATH, such as /dev/vda1:/target.yaml", place)
	}
	if err := os.MkdirAll(diskDir, 0o755); err != nil {
		return "", err
	}
	var errs []error
	for _, fs := range []string{"ext4", "xfs", "vfat"} {
		err := unix.Mount(device, diskDir, fs, unix.MS_NOATIME, "")
		if err == nil {
			path = filepath.Join(diskDir, path)
			_, err = os.Stat(path)
			return path, err
		}
		errs = append(errs, fmt.Errorf("as %s: %w", fs, err))
	}
	return "", fmt.Errorf("oneshot.config=%s: the disk cannot be mounted: %w", place, errors.Join(errs...))
}
