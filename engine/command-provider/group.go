//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// inOwnGroup makes the process the leader of a new process group, so that it
// can be ended together with its descendants.
func inOwnGroup(process *exec.Cmd) {
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// terminateGroup asks the process and its descendants to end.
func terminateGroup(process *exec.Cmd) {
	_ = syscall.Kill(-process.Process.Pid, syscall.SIGTERM)
}

// killGroup ends the process and its descendants.
func killGroup(process *exec.Cmd) {
	_ = syscall.Kill(-process.Process.Pid, syscall.SIGKILL)
}
