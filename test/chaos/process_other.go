//go:build unix && !linux

package main

import "syscall"

// endWithParent has no such service here: what a killed run leaves behind goes on.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
