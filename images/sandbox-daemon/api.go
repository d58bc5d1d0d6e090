package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	bodyCap     = 64 << 20
	longestWait = 60.0 // Seconds of one request, for a command's end.
	killWait    = 20 * time.Second
	connections = 32 // From inside, and as many from outside: what runs here cannot shut the others out.

	procMagic, sysMagic = 0x9fa0, 0x62656572 // File systems whose files are none, and may block.
)

// api is all that is served; digest: of the token. Every answer says which life of the daemon it is from.
func api(s *sandbox, digest [32]byte, boot string) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("PUT /commands/{key}", s.serveStart)
	routes.HandleFunc("GET /commands/{key}/end", s.serveEnd)
	routes.HandleFunc("GET /commands/{key}/output", s.serveOutput)
	routes.HandleFunc("DELETE /commands/{key}", s.serveKill)
	routes.HandleFunc("GET /files", s.serveRead)
	routes.HandleFunc("PUT /files", s.serveWrite)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer answerProblem(w)
		w.Header().Set("X-Boot", boot)
		if r.URL.Path == "/healthz" && r.Method == http.MethodGet {
			return
		}
		given := sha256.Sum256([]byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
		expect(subtle.ConstantTimeCompare(given[:], digest[:]) == 1, http.StatusUnauthorized, "not this sandbox's token")
		expect(r.ContentLength <= bodyCap, http.StatusRequestEntityTooLarge, "the body is longer than %d bytes", bodyCap)
		r.Body = http.MaxBytesReader(w, r.Body, bodyCap)
		routes.ServeHTTP(w, r)
	})
}

// answerProblem tells what must, ensure and expect panicked with.
func answerProblem(w http.ResponseWriter) {
	found := recover()
	told, isProblem := found.(problem)
	switch {
	case found == nil:
		return
	case !isProblem:
		panic(found)
	case told.status == http.StatusUnauthorized:
		w.Header().Set("Connection", "close")
	case errors.As(told.error, new(*http.MaxBytesError)):
		told.status = http.StatusRequestEntityTooLarge
	case errors.Is(told.error, fs.ErrNotExist):
		told.status = http.StatusNotFound
	case told.status == 0:
		told.status = http.StatusConflict
	}
	w.WriteHeader(told.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": told.Error()})
}

// number is one of the query, from 0.
func number(r *http.Request, name string) float64 {
	found, err := strconv.ParseFloat(r.URL.Query().Get(name), 64)
	expect(err == nil && found >= 0 && found < 1<<53, http.StatusBadRequest, "%s: accepted are numbers from 0", name)
	return found
}

// pathOf is the file that is meant.
func pathOf(r *http.Request) string {
	path := r.URL.Query().Get("path")
	plain := filepath.IsAbs(path) && !strings.ContainsRune(path, 0)
	expect(plain, http.StatusConflict, "path: found %q, accepted is an absolute one", path)
	return path
}

func send(w http.ResponseWriter, from *os.File, offset, length int64) {
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	_, _ = io.Copy(w, io.NewSectionReader(from, offset, length)) // The client sees what is missing.
}

func (s *sandbox) commandOf(r *http.Request) *command {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found := s.commands[r.PathValue("key")]
	expect(found != nil, http.StatusNotFound, "no command was started with this key")
	return found
}

func (s *sandbox) serveStart(_ http.ResponseWriter, r *http.Request) {
	var asked order
	ensure(json.NewDecoder(r.Body).Decode(&asked))
	expect(len(asked.Argv) > 0 && asked.Argv[0] != "", http.StatusBadRequest, "argv: accepted is a program and its arguments")
	absolute := asked.Workdir == nil || filepath.IsAbs(*asked.Workdir)
	expect(absolute, http.StatusBadRequest, "workdir: accepted is an absolute path")
	s.start(r.PathValue("key"), asked)
}

func (s *sandbox) serveEnd(w http.ResponseWriter, r *http.Request) {
	c, seconds := s.commandOf(r), min(number(r, "wait_s"), longestWait)
	select {
	case <-c.done:
	case <-r.Context().Done():
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
	select { // Again, since of several that are ready any is taken.
	case <-c.done:
		_ = json.NewEncoder(w).Encode(c.ended)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *sandbox) serveOutput(w http.ResponseWriter, r *http.Request) {
	c, offset, limit := s.commandOf(r), int64(number(r, "offset")), int64(number(r, "limit"))
	send(w, c.output, offset, max(0, min(limit, must(c.output.Stat()).Size()-offset)))
}

func (s *sandbox) serveKill(w http.ResponseWriter, r *http.Request) {
	c := s.commandOf(r)
	s.kill(c)
	select {
	case <-c.done:
		w.WriteHeader(http.StatusNoContent)
	case <-time.After(killWait):
		w.WriteHeader(http.StatusAccepted) // Not yet: ask again.
	}
}

// serveRead never waits for a file, as for a named pipe's other end, and takes files of the kernel for none.
func (s *sandbox) serveRead(w http.ResponseWriter, r *http.Request) {
	path, limit := pathOf(r), int64(number(r, "limit"))
	s.disk <- struct{}{}
	defer func() { <-s.disk }()
	file := must(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0))
	defer file.Close()
	var system syscall.Statfs_t
	ensure(syscall.Fstatfs(int(file.Fd()), &system))
	plain := must(file.Stat()).Mode().IsRegular() && system.Type != procMagic && system.Type != sysMagic
	expect(plain, http.StatusConflict, "%s: is no plain file", path)
	digest := sha256.New()
	length := must(io.Copy(digest, io.LimitReader(file, limit+1)))
	expect(length <= limit, http.StatusRequestEntityTooLarge, "%s: is longer than %d bytes", path, limit)
	w.Header().Set("X-Sha256", hex.EncodeToString(digest.Sum(nil)))
	send(w, file, 0, length)
}

// serveWrite writes a file as a whole or not at all, with its folders.
func (s *sandbox) serveWrite(_ http.ResponseWriter, r *http.Request) {
	path, sha := pathOf(r), r.Header.Get("X-Sha256")
	mode, err := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 12)
	expect(err == nil, http.StatusBadRequest, "mode: accepted are octal digits up to 7777")
	folder, name := filepath.Split(path)
	expect(name != "" && name != "." && name != "..", http.StatusConflict, "%s: is a folder", path)
	s.disk <- struct{}{}
	defer func() { <-s.disk }()
	ensure(os.MkdirAll(folder, 0o755))
	draft := folder + "." + rand.Text()
	file := must(os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600))
	defer os.Remove(draft)
	defer file.Close()
	digest := sha256.New()
	must(io.Copy(io.MultiWriter(file, digest), r.Body))
	expect(hex.EncodeToString(digest.Sum(nil)) == sha, http.StatusConflict, "%s: what arrived is not of its X-Sha256", path)
	ensure(syscall.Fchmod(int(file.Fd()), uint32(mode)))
	err = syscall.Rename(draft, path)
	expect(err == nil, http.StatusConflict, "%s: %v", path, err)
}

// bounded closes connections beyond a number at once.
func bounded() func(net.Conn, http.ConnState) {
	var mutex sync.Mutex
	open := map[net.Conn]bool{} // And whether it is from inside.
	return func(made net.Conn, state http.ConnState) {
		mutex.Lock()
		defer mutex.Unlock()
		switch state {
		case http.StateClosed:
			delete(open, made)
		case http.StateNew:
			from, to := made.RemoteAddr().(*net.TCPAddr).IP, made.LocalAddr().(*net.TCPAddr).IP
			open[made] = from.IsLoopback() || from.Equal(to)
			sameSide := 0
			for _, inside := range open {
				if inside == open[made] {
					sameSide++
				}
			}
			if sameSide > connections {
				delete(open, made)
				made.Close()
			}
		}
	}
}
