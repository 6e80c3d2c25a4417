//go:build unix && !linux

package main

import "errors"

var errNoDisk = errors.New("small disks are mounted on Linux only")

func mountDisk(string, int64) error { return errNoDisk }

func unmountDisk(string) error { return errNoDisk }

func fillDisk(string) (free func() error, err error) { return nil, errNoDisk }
