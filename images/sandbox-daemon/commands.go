package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	outputCap  = 64 << 20 // Bytes of one command; what it writes beyond is read and dropped.
	atOnce     = 12       // Operations on files: each holds a thread, of which there is a number.
	lastOutput = time.Second
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// order is what a client asks to run. Root and the agent are one user here.
type order struct {
	Argv        []string          `json:"argv"`
	Environment map[string]string `json:"environment"`
	Workdir     *string           `json:"workdir"`
	Stdin       []byte            `json:"stdin"`
	Root        bool              `json:"root"`
}

type ended struct {
	Code        int  `json:"code"`
	Killed      bool `json:"killed"`
	OutOfMemory bool `json:"out_of_memory"`
}

type command struct {
	guard   int
	killing sync.Once
	killed  atomic.Bool
	gone    chan struct{}      // Closed once the guard was reaped,
	status  syscall.WaitStatus // with this.
	done    chan struct{}      // Closed once nothing is left of it, with what ended says.
	ended   ended
	output  *os.File
	written atomic.Int64
	deaths  int64 // For want of memory, of the whole sandbox, before it began.
}

type sandbox struct {
	program, workdir, files string
	disk                    chan struct{} // Held by who works on files.
	starting                sync.Mutex
	ending                  sync.Mutex
	mutex                   sync.Mutex // Of what follows, and of the time between a guard's fork and its entry.
	commands                map[string]*command
	guards                  map[int]*command
}

func newSandbox(workdir, files string) (*sandbox, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{workdir, filepath.Join(files, "home")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	s := &sandbox{
		program: program, workdir: workdir, files: files, disk: make(chan struct{}, atOnce),
		commands: map[string]*command{}, guards: map[int]*command{},
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go s.reap(children)
	return s, nil
}

// reap buries all children: guards, and processes that lost theirs.
func (s *sandbox) reap(children <-chan os.Signal) {
	for range children {
		for {
			var status syscall.WaitStatus
			number, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || number == 0 {
				break
			}
			s.mutex.Lock()
			if c := s.guards[number]; c != nil {
				delete(s.guards, number)
				c.status = status
				close(c.gone)
			}
			s.mutex.Unlock()
		}
	}
}

func (s *sandbox) command(key string) *command {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.commands[key]
}

// start starts a command, unless there is one of this key.
func (s *sandbox) start(key string, asked order) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.command(key) != nil {
		return nil
	}
	var opened []io.Closer
	defer func() {
		for _, file := range opened {
			file.Close()
		}
	}()
	input, err := s.input(asked.Stdin)
	if err != nil {
		return err
	}
	opened = append(opened, input)
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	opened = append(opened, write)
	told, telling, err := os.Pipe()
	if err != nil {
		return errors.Join(err, read.Close())
	}
	opened = append(opened, telling)
	output, err := s.unnamed()
	if err != nil {
		return errors.Join(err, read.Close(), told.Close())
	}
	c := &command{gone: make(chan struct{}), done: make(chan struct{}), output: output, deaths: memoryDeaths()}
	descriptors := []uintptr{input.Fd(), write.Fd(), write.Fd(), telling.Fd()}
	s.mutex.Lock()
	c.guard, err = syscall.ForkExec(s.program, s.line(asked), &syscall.ProcAttr{
		Dir: "/", Files: descriptors, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err == nil {
		s.commands[key], s.guards[c.guard] = c, c
	}
	s.mutex.Unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("no further command can be started: %w", err), read.Close(), told.Close(), output.Close())
	}
	go s.follow(c, read, told)
	return nil
}

// line is what a guard is called with.
func (s *sandbox) line(asked order) []string {
	given := map[string]string{
		"PATH": searchPath, "HOME": filepath.Join(s.files, "home"), "LANG": "C.UTF-8", "TMPDIR": "/tmp",
	}
	for name, value := range asked.Environment {
		given[name] = value
	}
	workdir := s.workdir
	if asked.Workdir != nil {
		workdir = *asked.Workdir
	}
	line := []string{"sandbox-guard", "guard", workdir, strconv.Itoa(len(given))}
	for name, value := range given {
		line = append(line, name+"="+value)
	}
	return append(line, asked.Argv...)
}

// unnamed makes a file that nobody finds, and that is gone with the daemon.
func (s *sandbox) unnamed() (*os.File, error) {
	made, err := os.CreateTemp(s.files, "")
	if err == nil {
		err = os.Remove(made.Name())
	}
	return made, err
}

func (s *sandbox) input(data []byte) (*os.File, error) {
	if len(data) == 0 {
		return os.Open(os.DevNull)
	}
	made, err := s.unnamed()
	if err == nil {
		_, err = made.Write(data)
	}
	if err == nil {
		_, err = made.Seek(0, io.SeekStart)
	}
	return made, err
}

// follow keeps a command's output and waits for its end; what it left behind ends with it.
func (s *sandbox) follow(c *command, output, told *os.File) {
	drained := make(chan struct{})
	go func() {
		s.drain(c, output)
		close(drained)
	}()
	code := make([]byte, 1)
	said, _ := told.Read(code)
	told.Close()
	s.end(c)
	// The pipe may be in the hands of another command.
	_ = output.SetReadDeadline(time.Now().Add(lastOutput))
	<-drained
	c.ended.Code = int(code[0])
	if said == 0 { // Its guard was killed, by another command or for memory.
		c.ended.Code = shellCode(c.status)
	}
	c.ended.Killed = c.killed.Load() && c.ended.Code == 128+int(syscall.SIGKILL)
	c.ended.OutOfMemory = memoryDeaths() > c.deaths
	close(c.done)
}

func (s *sandbox) drain(c *command, from *os.File) {
	defer from.Close()
	buffer, room := make([]byte, 64<<10), outputCap
	for {
		count, err := from.Read(buffer)
		if kept := min(count, room); kept > 0 {
			s.disk <- struct{}{}
			wrote, failed := c.output.Write(buffer[:kept])
			<-s.disk
			c.written.Add(int64(wrote))
			room -= wrote
			if failed != nil {
				room = 0
			}
		}
		if err != nil {
			return
		}
	}
}

// kill ends a command; it is gone once ``done`` is closed.
func (s *sandbox) kill(c *command) {
	c.killing.Do(func() {
		c.killed.Store(true)
		go s.end(c)
	})
}
