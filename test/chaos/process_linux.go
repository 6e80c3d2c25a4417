package main

import "syscall"

// endWithParent has the system kill the child when this process ends, however it ends.
// The child leads a group of its own, so that a Ctrl-C reaches this process alone, which
// then ends the child.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
