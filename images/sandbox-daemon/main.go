// The daemon of a pod sandbox: process 1 of its only container, in whatever image that is. It starts commands for who
// has the sandbox's token, sees that all they started ends with them, and carries files. docs/adr/0017 says why it is Go.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	usage = `usage: sandbox-daemon serve --listen ADDRESS --token-sha256 HEX --workdir FOLDER --ttl-s SECONDS --files FOLDER
                            --processes NUMBER
       sandbox-daemon install PATH
       sandbox-daemon --help | --version
Exit codes: 2: an argument cannot be used, 124: the sandbox outlived its ttl, 1: anything else.
`
	exitUsage, exitExpired = 2, 124

	// Options of prctl. Who is not dumpable is neither traced nor looked into by others of its user; a subreaper gets all
	// orphans below; the last holds for one thread, and for what that starts.
	setDumpable, setChildSubreaper, setNoNewPrivs = 4, 36, 38
)

var version = "unknown" // Set by the linker.

// problem is what must, ensure and expect panic with: it ends a request, with its status, or the program, with its code.
type problem struct {
	error
	status int
}

func must[T any](value T, err error) T {
	ensure(err)
	return value
}

func ensure(err error) {
	if err != nil {
		panic(problem{err, 0})
	}
}

func expect(kept bool, status int, format string, values ...any) {
	if !kept {
		panic(problem{fmt.Errorf(format, values...), status})
	}
}

func main() {
	defer func() {
		if found := recover(); found != nil {
			fmt.Fprintf(os.Stderr, "sandbox-daemon: %v\n", found)
			told, _ := found.(problem)
			os.Exit(max(1, told.status))
		}
	}()
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 1 && arguments[0] == "--help":
		fmt.Print(usage)
	case len(arguments) == 1 && arguments[0] == "--version":
		fmt.Println(version)
	case len(arguments) == 2 && arguments[0] == "install":
		// Whole or not at all, for another container that finds it there.
		ensure(os.WriteFile(arguments[1]+".part", must(os.ReadFile("/proc/self/exe")), 0o755))
		ensure(os.Rename(arguments[1]+".part", arguments[1]))
	case len(arguments) > 3 && arguments[0] == "guard":
		guard(arguments[1:])
	case len(arguments) > 0 && arguments[0] == "serve":
		serve(arguments[1:])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
}

func serve(arguments []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", "", "address and port")
	token := flags.String("token-sha256", "", "of the token that every request but GET /healthz carries, in hex")
	workdir := flags.String("workdir", "", "where commands run; made if it is not there")
	ttl := flags.Float64("ttl-s", 0, "seconds after which the sandbox ends")
	files := flags.String("files", "", "folder of the daemon's own: output without names, and the home of commands")
	processes := flags.Int("processes", 0, "processes and threads that all commands together may have")
	_ = flags.Parse(arguments) // It ends the program itself.
	digest, err := hex.DecodeString(*token)
	expect(err == nil && len(digest) == 32, exitUsage, "--token-sha256: accepted are 64 hex digits")
	expect(*listen != "" && flags.NArg() == 0, exitUsage, "--listen: accepted is HOST:PORT, and nothing after the flags")
	expect(filepath.IsAbs(*workdir), exitUsage, "--workdir: found %q, accepted is an absolute folder", *workdir)
	expect(filepath.IsAbs(*files), exitUsage, "--files: found %q, accepted is an absolute folder", *files)
	expect(*ttl > 0 && *ttl < 1e9, exitUsage, "--ttl-s: found %g, accepted are seconds above 0 and below 1e9", *ttl)
	expect(*processes > 0, exitUsage, "--processes: found %d, accepted is a number above 0", *processes)
	expect(os.Getpid() == 1, exitUsage, "this is process %d, accepted is 1: it ends all others", os.Getpid())
	time.AfterFunc(time.Duration(*ttl*float64(time.Second)), func() { os.Exit(exitExpired) })
	syscall.Umask(0o022)
	runtime.GOMAXPROCS(2)
	prctl(setDumpable, 0)
	withstandSignals()
	spareThreads(2 * atOnce)
	made := newSandbox(*workdir, *files)
	go made.watch(*processes)
	listener := must(net.Listen("tcp", *listen))
	fmt.Fprintf(os.Stderr, "sandbox-daemon: serves on %s\n", listener.Addr())
	server := http.Server{
		Handler:           api(made, [32]byte(digest), rand.Text()),
		ConnState:         bounded(),
		ErrorLog:          log.New(io.Discard, "", 0), // Whoever connects could fill it.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       120 * time.Second, // Above the longest wait, which it would end.
		WriteTimeout:      120 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    32 << 10,
	}
	ensure(server.Serve(listener))
}

func prctl(option, value uintptr) {
	_, _, number := syscall.RawSyscall6(syscall.SYS_PRCTL, option, value, 0, 0, 0, 0)
	expect(number == 0, 1, "prctl %d: %w", option, number)
}

// withstandSignals lets this process outlive all that commands, which run as the same user, may send to it. The kernel
// keeps SIGKILL and SIGSTOP from process 1; the others are not ignored, since what is ignored stays so in what is started.
//
// Go handles all but 32 and 34, which C libraries may use. The kernel drops what process 1 does not handle, unless its
// main thread blocks signals, as Go's threads do while they fork or make others: then it ends the process. So these two
// are ignored, in what is started as well: whoever uses them sets a handler of his own.
func withstandSignals() {
	signal.Notify(make(chan os.Signal, 1))
	ignored := [8]uint64{1} // SIG_IGN, and no flags or mask; at least as long as the kernel's structure.
	for _, number := range []uintptr{32, 34} {
		_, _, failed := syscall.RawSyscall6(
			syscall.SYS_RT_SIGACTION, number, uintptr(unsafe.Pointer(&ignored)), 0, 8, 0, 0)
		expect(failed == 0, 1, "sigaction %d: %w", number, failed)
	}
}

// spareThreads makes threads while there is room: Go ends a program that may not make one, and keeps those that it has.
func spareThreads(count int) {
	var all sync.WaitGroup
	all.Add(count)
	for range count {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		}()
	}
	all.Wait()
}
