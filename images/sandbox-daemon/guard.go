package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

const toldDescriptor, niceness = 3, 19

// guard is a process of its own above each command. What the command leaves behind becomes its child, whatever it forked
// and detached, so it knows when nothing is left: then it ends with 0. It tells how the command itself ended, as one byte.
//
// Arguments: the folder, how many variables follow, those, and the command's own.
func guard(arguments []string) {
	runtime.LockOSThread()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	count := must(strconv.Atoi(arguments[1]))
	environment, line := arguments[2:2+count], arguments[2+count:]
	// Before the process is hidden, its own files in /proc with it: commands go before the daemon where memory is short.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	prctl(setChildSubreaper, 1)
	prctl(setDumpable, 0)
	prctl(setNoNewPrivs, 1)
	withstandSignals()
	spareThreads(4)
	// Of this thread, and of all that the command starts: who counts and ends them must not wait for thousands.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, niceness)
	syscall.CloseOnExec(toldDescriptor)
	for _, variable := range environment {
		if folders, isPath := strings.CutPrefix(variable, "PATH="); isPath {
			ensure(os.Setenv("PATH", folders))
		}
	}
	ensureOrTell := func(err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "sandbox: %s in %s: %v\n", line[0], arguments[0], err)
			tell(map[bool]int{true: 127, false: 126}[errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound)])
			os.Exit(0)
		}
	}
	ensureOrTell(os.Chdir(arguments[0]))
	program, err := exec.LookPath(line[0])
	if !errors.Is(err, exec.ErrDot) {
		ensureOrTell(err)
	}
	started, err := syscall.ForkExec(program, line, &syscall.ProcAttr{
		Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	ensureOrTell(err)
	nothing := must(syscall.Open(os.DevNull, syscall.O_RDWR, 0))
	for descriptor := range 3 {
		ensure(syscall.Dup3(nothing, descriptor, 0))
	}
	for err != syscall.ECHILD {
		var status syscall.WaitStatus
		var ended int
		if ended, err = syscall.Wait4(-1, &status, 0, nil); ended == started {
			tell(shellCode(status))
		}
	}
}

func tell(code int) { _, _ = syscall.Write(toldDescriptor, []byte{byte(code)}) }

// shellCode is how a shell would say it.
func shellCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
