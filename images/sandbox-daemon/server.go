package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	bodyCap     = 64 << 20
	longestWait = 60 * time.Second // Of one request, for a command's end.
	killWait    = 20 * time.Second

	connections      = 64
	localConnections = 32 // Of them, those from inside: what runs here cannot shut the others out.
)

type answer func(http.ResponseWriter, *http.Request) error

// refused is a request that cannot be what the client wants.
type refused struct{ words string }

func (r refused) Error() string { return r.words }

var errNoCommand = fmt.Errorf("no command was started with this key: %w", fs.ErrNotExist)

// api is all that is served; digest: of the token. Every answer says which life of the daemon it is from.
func api(s *sandbox, digest [32]byte, boot string) http.Handler {
	routes := http.NewServeMux()
	for pattern, does := range map[string]answer{
		"PUT /commands/{key}":        s.serveStart,
		"GET /commands/{key}/end":    s.serveEnd,
		"GET /commands/{key}/output": s.serveOutput,
		"DELETE /commands/{key}":     s.serveKill,
		"GET /files":                 s.serveRead,
		"PUT /files":                 s.serveWrite,
	} {
		routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := does(w, r); err != nil {
				fail(w, statusOf(err), err.Error())
			}
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Boot", boot)
		given := sha256.Sum256([]byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
		switch {
		case r.URL.Path == "/healthz" && r.Method == http.MethodGet:
			w.WriteHeader(http.StatusOK)
		case subtle.ConstantTimeCompare(given[:], digest[:]) == 0:
			w.Header().Set("Connection", "close")
			fail(w, http.StatusUnauthorized, "not this sandbox's token")
		default:
			r.Body = http.MaxBytesReader(w, r.Body, bodyCap)
			routes.ServeHTTP(w, r)
		}
	})
}

func fail(w http.ResponseWriter, status int, words string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("Content-Length")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": words})
}

func statusOf(err error) int {
	var body *http.MaxBytesError
	var asked refused
	switch {
	case errors.As(err, &asked):
		return http.StatusBadRequest
	case errors.As(err, &body), errors.Is(err, errTooLong):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	}
	return http.StatusConflict
}

// number is a whole number of the query, from 0.
func number(r *http.Request, name string, absent int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return absent, nil
	}
	found, err := strconv.ParseInt(text, 10, 64)
	if err != nil || found < 0 || found == math.MaxInt64 {
		return 0, refused{fmt.Sprintf("%s: found %q, accepted are whole numbers from 0", name, text)}
	}
	return found, nil
}

func (s *sandbox) commandOf(r *http.Request) (*command, error) {
	if c := s.command(r.PathValue("key")); c != nil {
		return c, nil
	}
	return nil, errNoCommand
}

func (s *sandbox) serveStart(w http.ResponseWriter, r *http.Request) error {
	var asked order
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		var body *http.MaxBytesError
		if errors.As(err, &body) {
			return err
		}
		return refused{err.Error()}
	}
	if len(asked.Argv) == 0 || asked.Argv[0] == "" {
		return refused{"argv: found none, accepted is a program and its arguments"}
	}
	if asked.Workdir != nil && !strings.HasPrefix(*asked.Workdir, "/") {
		return refused{fmt.Sprintf("workdir: found %q, accepted is an absolute path", *asked.Workdir)}
	}
	return s.start(r.PathValue("key"), asked)
}

func (s *sandbox) serveEnd(w http.ResponseWriter, r *http.Request) error {
	c, err := s.commandOf(r)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(r.URL.Query().Get("wait_s"), 64)
	if err != nil || !(seconds >= 0) {
		return refused{"wait_s: accepted are seconds from 0"}
	}
	select {
	case <-c.done:
	case <-r.Context().Done():
	case <-time.After(time.Duration(min(seconds, longestWait.Seconds()) * float64(time.Second))):
	}
	select {
	case <-c.done:
		return json.NewEncoder(w).Encode(c.ended)
	default:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

func (s *sandbox) serveOutput(w http.ResponseWriter, r *http.Request) error {
	c, err := s.commandOf(r)
	if err != nil {
		return err
	}
	offset, err := number(r, "offset", 0)
	if err != nil {
		return err
	}
	limit, err := number(r, "limit", 1<<20)
	if err != nil {
		return err
	}
	s.disk <- struct{}{}
	defer func() { <-s.disk }()
	length := max(0, min(limit, c.written.Load()-offset))
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	_, _ = io.Copy(w, io.NewSectionReader(c.output, offset, length)) // The client sees what is missing.
	return nil
}

func (s *sandbox) serveKill(w http.ResponseWriter, r *http.Request) error {
	c, err := s.commandOf(r)
	if err != nil {
		return err
	}
	s.kill(c)
	select {
	case <-c.done:
		w.WriteHeader(http.StatusNoContent)
	case <-time.After(killWait):
		w.WriteHeader(http.StatusAccepted) // Not yet: ask again.
	}
	return nil
}

func (s *sandbox) serveRead(w http.ResponseWriter, r *http.Request) error {
	limit, err := number(r, "limit", bodyCap)
	if err != nil {
		return err
	}
	s.disk <- struct{}{}
	defer func() { <-s.disk }()
	file, err := openPlain(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	defer file.Close()
	length, sha, err := digested(file, limit)
	if err != nil {
		return err
	}
	w.Header().Set("X-Sha256", sha)
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	_, _ = io.CopyN(w, file, length) // The client sees what is missing.
	return nil
}

func (s *sandbox) serveWrite(w http.ResponseWriter, r *http.Request) error {
	mode, err := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 12)
	if err != nil {
		return refused{"mode: accepted are octal digits up to 7777"}
	}
	sha := r.Header.Get("X-Sha256")
	if len(sha) != 64 {
		return refused{"X-Sha256: accepted are the 64 hex digits of the content's"}
	}
	if r.ContentLength > bodyCap {
		return &http.MaxBytesError{Limit: bodyCap}
	}
	s.disk <- struct{}{}
	defer func() { <-s.disk }()
	return write(r.URL.Query().Get("path"), r.Body, fs.FileMode(mode), sha)
}

// boundedListener closes connections beyond a number at once.
type boundedListener struct {
	net.Listener
	mutex      sync.Mutex
	all, local int
}

type countedConnection struct {
	*net.TCPConn
	once    sync.Once
	release func()
}

func (c *countedConnection) Close() error {
	c.once.Do(c.release)
	return c.TCPConn.Close()
}

func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		made := accepted.(*net.TCPConn)
		from, to := made.RemoteAddr().(*net.TCPAddr).IP, made.LocalAddr().(*net.TCPAddr).IP
		inside := 0
		if from.IsLoopback() || from.Equal(to) {
			inside = 1
		}
		b.mutex.Lock()
		taken := b.all < connections && b.local+inside <= localConnections
		if taken {
			b.all, b.local = b.all+1, b.local+inside
		}
		b.mutex.Unlock()
		if !taken {
			made.Close()
			continue
		}
		return &countedConnection{TCPConn: made, release: func() {
			b.mutex.Lock()
			b.all, b.local = b.all-1, b.local-inside
			b.mutex.Unlock()
		}}, nil
	}
}
