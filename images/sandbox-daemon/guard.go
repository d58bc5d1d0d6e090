package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

const (
	statusDescriptor = 3
	notFound         = 127
	notRunnable      = 126
	spareOfGuard     = 4
)

// guard is a process of its own above each command. What the command leaves behind becomes its child, whatever it forked
// and detached, so it knows when nothing is left: then it ends with 0. It tells how the command itself ended, as one byte.
//
// Arguments: the folder, how many variables follow, those, and the command's own.
func guard(arguments []string) int {
	runtime.LockOSThread()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	count, err := strconv.Atoi(arguments[1])
	if err != nil || len(arguments) < count+3 {
		return exitUsage
	}
	environment, line := arguments[2:2+count], arguments[2+count:]
	// Before the process is hidden, its own files in /proc with it: commands go before the daemon where memory is short.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	for _, option := range [][2]uintptr{{setChildSubreaper, 1}, {setDumpable, 0}, {setNoNewPrivs, 1}} {
		if err := prctl(option[0], option[1]); err != nil {
			return 1
		}
	}
	withstandSignals()
	spareThreads(spareOfGuard)
	syscall.CloseOnExec(statusDescriptor)
	started, err := syscall.ForkExec(lookedUp(line[0], environment), line, &syscall.ProcAttr{
		Dir: arguments[0], Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandbox: %s in %s: %v\n", line[0], arguments[0], err)
		if err == syscall.ENOENT {
			return tell(notFound)
		}
		return tell(notRunnable)
	}
	if nothing, err := syscall.Open(os.DevNull, syscall.O_RDWR, 0); err == nil {
		for descriptor := range 3 {
			_ = syscall.Dup3(nothing, descriptor, 0)
		}
	}
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		if ended == started {
			tell(shellCode(status))
		}
		if err == syscall.ECHILD {
			return 0
		}
	}
}

func tell(code int) int {
	_, _ = syscall.Write(statusDescriptor, []byte{byte(code)})
	return 0
}

// shellCode is how a shell would say it.
func shellCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// lookedUp finds a program where its own environment says.
func lookedUp(program string, environment []string) string {
	if strings.Contains(program, "/") {
		return program
	}
	for _, variable := range environment {
		if folders, isPath := strings.CutPrefix(variable, "PATH="); isPath {
			for _, folder := range filepath.SplitList(folders) {
				path := filepath.Join(folder, program)
				if found, err := os.Stat(path); err == nil && found.Mode().IsRegular() && found.Mode()&0o111 != 0 {
					return path
				}
			}
		}
	}
	return program
}
