package main

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// configure returns the path of the configuration to be served.
func configure(words map[string]string) (string, error) {
	if err := write(defaultPath, defaultYAML); err != nil {
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

func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// onDisk mounts DEVICE of DEVICE:PATH, and returns where PATH is. What else is on it can be used
// by the configuration, with paths relative to it.
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
