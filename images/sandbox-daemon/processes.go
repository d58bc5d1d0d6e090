package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	calmRounds = 10 // Of ending a command without stopping all others.
	looks      = 100
	between    = 2 * time.Millisecond
)

// end ends all that command c started, and returns when nothing of it is left.
//
// A guard that ends with 0 had no child any more, which is the kernel's word. Where the guard itself was killed, nothing
// is left once a look finds nothing while everything else stands still.
func (s *sandbox) end(c *command) {
	for round := 0; ; round++ {
		guarded := true
		select {
		case <-c.gone:
			guarded = false
			if c.status == 0 {
				return
			}
		case <-time.After(time.Duration(min(round, 10)) * between):
		}
		if none := s.killRound(c, !guarded || round >= calmRounds); none && !guarded {
			return
		}
	}
}

// killRound kills what is there; the first look of it found nothing, says the result.
//
// Who forks faster than it can be looked at is stopped first: the kernel stops all processes at once, those that are
// being made included, and the others of them go on when this is done.
func (s *sandbox) killRound(c *command, standStill bool) bool {
	s.ending.Lock()
	defer s.ending.Unlock()
	if standStill {
		_ = syscall.Kill(-1, syscall.SIGSTOP)
		defer func() { _ = syscall.Kill(-1, syscall.SIGCONT) }()
	} else {
		_ = syscall.Kill(c.guard, syscall.SIGCONT)
	}
	for look := range looks {
		if count := s.killOf(c); count == 0 {
			return look == 0
		}
		if !standStill {
			return false
		}
		time.Sleep(between)
	}
	return false
}

// killOf kills the processes below the guard of c, and those that have no guard any more. No guard is made meanwhile.
func (s *sandbox) killOf(c *command) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	parents, count := living(), 0
	for number := range parents {
		top := number
		for parents[top] > 1 {
			top = parents[top]
		}
		// A process whose parent has just ended is looked at again.
		_, guarded := s.guards[top]
		if parents[top] == 1 && number != c.guard && (top == c.guard || !guarded) {
			_ = syscall.Kill(number, syscall.SIGKILL)
			count++
		}
	}
	return count
}

// living tells the parent of each process that lives.
func living() map[int]int {
	found := map[int]int{}
	folder, err := os.Open("/proc")
	if err != nil {
		return found
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		number, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, _ := os.ReadFile("/proc/" + name + "/stat")
		// The name before it may hold anything.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || bytes.ContainsAny(fields[0], "ZX") {
			continue
		}
		if parent, err := strconv.Atoi(string(fields[1])); err == nil {
			found[number] = parent
		}
	}
	return found
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
