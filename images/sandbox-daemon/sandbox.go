package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	outputCap  = 64 << 20 // Bytes of one command; what it writes beyond is read and dropped.
	lastOutput = time.Second
	atOnce     = 12 // Operations on files: each holds a thread, of which there is a number.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	calmRounds, longestPause = 3, 50 * time.Millisecond  // Of ending a command without stopping all others.
	looks, between           = 100, 2 * time.Millisecond // While all stand still.
	glance, countPause       = 10 * time.Millisecond, 100 * time.Millisecond
)

// order is what a client asks to run. Root and the agent are one user here.
type order struct {
	Argv        []string          `json:"argv"`
	Environment map[string]string `json:"environment"`
	Workdir     *string           `json:"workdir"`
	Stdin       []byte            `json:"stdin"`
	Root        bool              `json:"root"`
}

type command struct {
	guard   *exec.Cmd
	killing sync.Once
	killed  atomic.Bool
	crowded atomic.Bool   // It was ended for having too many processes.
	gone    chan struct{} // Closed once its guard has ended.
	done    chan struct{} // Closed once nothing is left of it, with what ended says.
	ended   any
	output  *os.File
	room    int // Bytes that the output may still grow.
	disk    chan struct{}
	deaths  int64 // For want of memory, of the whole sandbox, before it began.
}

type sandbox struct {
	program, workdir, files string
	disk                    chan struct{} // Held by who works on files.
	ending                  sync.Mutex
	mutex                   sync.Mutex // Of what follows, and of the time between a guard's fork and its entry.
	commands                map[string]*command
	guards                  map[int]bool
}

func newSandbox(workdir, files string) *sandbox {
	ensure(os.MkdirAll(workdir, 0o755))
	ensure(os.MkdirAll(filepath.Join(files, "home"), 0o755))
	return &sandbox{
		program: must(os.Executable()), workdir: workdir, files: files, disk: make(chan struct{}, atOnce),
		commands: map[string]*command{}, guards: map[int]bool{},
	}
}

// start starts a command, unless there is one of this key.
func (s *sandbox) start(key string, asked order) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.commands[key] != nil {
		return
	}
	told, telling, err := os.Pipe()
	ensure(err)
	defer telling.Close()
	c := &command{
		guard: exec.Command(s.program, s.line(asked)...), gone: make(chan struct{}), done: make(chan struct{}),
		room: outputCap, disk: s.disk, deaths: memoryDeaths(),
	}
	c.guard.Args[0], c.guard.Dir, c.guard.Env = "sandbox-guard", "/", []string{}
	c.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.guard.Stdout, c.guard.Stderr, c.guard.ExtraFiles = c, c, []*os.File{telling}
	c.guard.WaitDelay = lastOutput // The pipe may be in the hands of another command.
	if len(asked.Stdin) > 0 {
		c.guard.Stdin = bytes.NewReader(asked.Stdin)
	}
	c.output, err = os.CreateTemp(s.files, "")
	if err == nil {
		err = os.Remove(c.output.Name()) // Nobody finds it, and it is gone with the daemon.
	}
	if err == nil {
		err = c.guard.Start()
	}
	if err != nil {
		told.Close()
		c.output.Close()
		expect(false, 0, "no further command can be started: %w", err)
	}
	s.commands[key], s.guards[c.guard.Process.Pid] = c, true
	go s.follow(c, told)
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
	line := []string{"guard", workdir, strconv.Itoa(len(given))}
	for name, value := range given {
		line = append(line, name+"="+value)
	}
	return append(line, asked.Argv...)
}

// Write takes what the command has written.
func (c *command) Write(data []byte) (int, error) {
	if kept := min(len(data), c.room); kept > 0 {
		c.disk <- struct{}{}
		wrote, err := c.output.Write(data[:kept])
		<-c.disk
		if c.room -= wrote; err != nil {
			c.room = 0
		}
	}
	return len(data), nil
}

// follow waits for a command's end; what it left behind ends with it.
func (s *sandbox) follow(c *command, told *os.File) {
	go func() {
		_ = c.guard.Wait()
		s.mutex.Lock()
		delete(s.guards, c.guard.Process.Pid)
		s.mutex.Unlock()
		close(c.gone)
	}()
	said := make([]byte, 1)
	count, _ := told.Read(said)
	told.Close()
	s.end(c)
	code := int(said[0])
	if count == 0 { // Its guard was killed, by another command or for memory.
		code = shellCode(c.guard.ProcessState.Sys().(syscall.WaitStatus))
	}
	killed := c.killed.Load() && code == 128+int(syscall.SIGKILL)
	c.ended = map[string]any{
		"code": code, "killed": killed, "out_of_memory": memoryDeaths() > c.deaths, "out_of_processes": c.crowded.Load(),
	}
	close(c.done)
}

// kill ends a command; it is gone once its done is closed.
func (s *sandbox) kill(c *command) {
	c.killing.Do(func() {
		c.killed.Store(true)
		go s.end(c)
	})
}

// end ends all that command c started, and returns when nothing of it is left.
//
// A guard that ends with 0 had no child any more, which is the kernel's word. Where the guard itself was killed, nothing
// is left once a look finds nothing while everything else stands still. Who forks faster than it can be looked at is
// stopped first: the kernel stops all processes at once, those that are being made included.
func (s *sandbox) end(c *command) {
	busy, gone := 0, false
	for pause := time.Millisecond; ; pause = min(2*pause, longestPause) {
		select {
		case <-c.gone:
			if gone = true; c.guard.ProcessState.Success() {
				return
			}
		case <-time.After(pause):
		}
		if s.killRound(c, gone || busy > calmRounds) > 0 {
			busy++
		} else if gone {
			return
		}
	}
}

// killRound kills what is there, and tells how much the first look of it has found. While all stand still, it looks until
// nothing is left; those of other commands go on when it is done.
func (s *sandbox) killRound(c *command, standStill bool) int {
	s.ending.Lock()
	defer s.ending.Unlock()
	if !standStill {
		_ = c.guard.Process.Signal(syscall.SIGCONT)
		return s.killOf(c)
	}
	_ = syscall.Kill(-1, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(-1, syscall.SIGCONT) }()
	first := s.killOf(c)
	for look, found := 0, first; found > 0 && look < looks; look++ {
		time.Sleep(between)
		found = s.killOf(c)
	}
	return first
}

// killOf kills the processes below the guard of c, and those that have no guard any more, and buries the latter. No guard
// is made meanwhile.
func (s *sandbox) killOf(c *command) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	count, all := 0, look()
	for number, one := range all {
		top := all.top(number)
		// One whose parent has just ended is looked at again.
		if guarded := s.guards[top]; all[top].parent != 1 || number == top && guarded || guarded && top != c.guard.Process.Pid {
			continue
		}
		if !one.ended {
			_ = syscall.Kill(number, syscall.SIGKILL)
			count++
		} else if number == top {
			_, _ = syscall.Wait4(number, nil, syscall.WNOHANG, nil)
		}
	}
	return count
}

// watch ends the command that has most processes when all together have more than they may. The kernel's own limit would
// count those of all pods of a node whose user has the same number; that of a control group nobody inside may set.
//
// Numbers of processes are given in turn, so there are at most as many more as have been given since the last count:
// that costs the read of one file, and is looked at so often that a bomb of forks has not filled the memory yet.
func (s *sandbox) watch(most int) {
	counted, last, at := 0, 0, time.Time{}
	for range time.Tick(glance) {
		newest := newestProcess()
		if newest >= last && counted+newest-last <= most && time.Since(at) < countPause {
			continue
		}
		var c *command
		c, counted = s.crowding()
		if last, at = newest, time.Now(); c != nil && counted > most {
			c.crowded.Store(true)
			s.killRound(c, true)
			c.killing.Do(func() { go s.end(c) })
		}
	}
}

// newestProcess is the number that was given last; 0 where the kernel does not say.
func newestProcess() int {
	text, _ := os.ReadFile("/proc/loadavg")
	number, _ := strconv.Atoi(string(bytes.TrimSpace(text[bytes.LastIndexByte(text, ' ')+1:])))
	return number
}

// crowding is the command that has most processes and threads, and how many all have together.
func (s *sandbox) crowding() (*command, int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.guards) == 0 {
		return nil, 0
	}
	all, total, counts := look(), 0, map[int]int{}
	for number, one := range all {
		if top := all.top(number); s.guards[top] && number != top {
			counts[top] += one.threads
			total += one.threads
		}
	}
	var found *command
	for _, c := range s.commands {
		number := c.guard.Process.Pid
		if s.guards[number] && (found == nil || counts[number] > counts[found.guard.Process.Pid]) {
			found = c
		}
	}
	return found, total
}

type process struct {
	parent, threads int
	ended           bool
}

type processes map[int]process

// look finds all processes that there are.
func look() processes {
	all := processes{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		number, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		text, _ := os.ReadFile(path)
		// State, parent and, much later, threads; the name before them may hold anything.
		if fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(fields) > 17 {
			parent, _ := strconv.Atoi(string(fields[1]))
			threads, _ := strconv.Atoi(string(fields[17]))
			all[number] = process{parent, threads, bytes.ContainsAny(fields[0], "ZX")}
		}
	}
	return all
}

// top is the one below process 1 that a process comes from.
func (all processes) top(number int) int {
	for all[number].parent > 1 {
		number = all[number].parent
	}
	return number
}

// memoryDeaths counts processes that the kernel ended for the sandbox's memory limit; 0 where it does not say.
func memoryDeaths() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		text, _ := os.ReadFile(path)
		for line := range bytes.Lines(text) {
			if count, counts := bytes.CutPrefix(line, []byte("oom_kill ")); counts {
				number, _ := strconv.ParseInt(string(bytes.TrimSpace(count)), 10, 64)
				return number
			}
		}
	}
	return 0
}
