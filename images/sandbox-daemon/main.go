// The daemon of a pod sandbox: process 1 of its only container, in whatever image that is. It starts commands for who
// has the sandbox's token, sees that all they started ends with them, and carries files. docs/adr/0017 says why it is Go.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	usage = `usage: sandbox-daemon serve --listen ADDRESS --token-sha256 HEX --workdir FOLDER --ttl-s SECONDS --files FOLDER
       sandbox-daemon install PATH
       sandbox-daemon --help | --version
Exit codes: 2: an argument cannot be used, 124: the sandbox outlived its ttl, 1: anything else.
`
	exitUsage   = 2
	exitExpired = 124

	setDumpable       = 4  // prctl: who is not dumpable is neither traced nor looked into by another of its user
	setChildSubreaper = 36 // prctl: orphans below become its children
	setNoNewPrivs     = 38 // prctl: of one thread, and of what it starts
)

var version = "unknown" // Set by the linker.

func main() {
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 1 && arguments[0] == "--help":
		fmt.Print(usage)
	case len(arguments) == 1 && arguments[0] == "--version":
		fmt.Println(version)
	case len(arguments) == 2 && arguments[0] == "install":
		check(install(arguments[1]), 1)
	case len(arguments) > 3 && arguments[0] == "guard":
		os.Exit(guard(arguments[1:]))
	case len(arguments) > 0 && arguments[0] == "serve":
		check(serve(arguments[1:]), 1)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
}

func check(err error, code int) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandbox-daemon: %v\n", err)
		os.Exit(code)
	}
}

// install copies this program to where another container finds it, whole or not at all.
func install(path string) error {
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer own.Close()
	draft, err := os.OpenFile(path+".part", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(draft, own)
	if closed := draft.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(path+".part", path)
	}
	return err
}

func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", "", "address and port")
	token := flags.String("token-sha256", "", "of the token that every request but GET /healthz carries, in hex")
	workdir := flags.String("workdir", "", "where commands run; made if it is not there")
	ttl := flags.Float64("ttl-s", 0, "seconds after which the sandbox ends")
	files := flags.String("files", "", "folder of the daemon's own: output without names, and the home of commands")
	_ = flags.Parse(arguments) // It ends the program itself.
	digest, err := hex.DecodeString(*token)
	switch {
	case err != nil || len(digest) != 32:
		check(fmt.Errorf("--token-sha256: accepted are 64 hex digits"), exitUsage)
	case *listen == "" || flags.NArg() > 0:
		check(fmt.Errorf("--listen: found %q %q, accepted is an address, and nothing after the flags", *listen, flags.Args()), exitUsage)
	case !filepath.IsAbs(*workdir) || !filepath.IsAbs(*files):
		check(fmt.Errorf("--workdir, --files: found %q and %q, accepted are absolute folders", *workdir, *files), exitUsage)
	case !(*ttl > 0 && *ttl < 1e9):
		check(fmt.Errorf("--ttl-s: found %g, accepted are seconds above 0 and below 1e9", *ttl), exitUsage)
	case os.Getpid() != 1:
		check(fmt.Errorf("this is process %d, accepted is 1: it ends everything else", os.Getpid()), exitUsage)
	}
	time.AfterFunc(time.Duration(*ttl*float64(time.Second)), func() { os.Exit(exitExpired) })
	syscall.Umask(0o022)
	runtime.GOMAXPROCS(2)
	if err := prctl(setDumpable, 0); err != nil {
		return err
	}
	withstandSignals()
	spareThreads(2 * atOnce)
	made, err := newSandbox(*workdir, *files)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "sandbox-daemon: serves on %s\n", listener.Addr())
	boot := make([]byte, 16)
	_, _ = rand.Read(boot) // It never fails.
	server := http.Server{
		Handler:           api(made, [32]byte(digest), hex.EncodeToString(boot)),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       120 * time.Second, // Above the longest wait, which it would end.
		WriteTimeout:      120 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    32 << 10,
	}
	return server.Serve(&boundedListener{Listener: listener})
}

func prctl(option, value uintptr) error {
	if _, _, number := syscall.RawSyscall6(syscall.SYS_PRCTL, option, value, 0, 0, 0, 0); number != 0 {
		return fmt.Errorf("prctl %d: %w", option, number)
	}
	return nil
}

// withstandSignals lets this process outlive all that commands, which run as the same user, may send to it. The kernel
// keeps SIGKILL and SIGSTOP from process 1; they are not ignored here since what is ignored stays so in what is started.
func withstandSignals() {
	taken := make(chan os.Signal, 1)
	for number := syscall.Signal(1); number < 65; number++ {
		if number != syscall.SIGURG { // Go's own, many times a second.
			signal.Notify(taken, number)
		}
	}
}

// spareThreads makes threads while there is room: Go ends a program that may not make one, and keeps those that it has.
func spareThreads(count int) {
	var held, ended sync.WaitGroup
	release := make(chan struct{})
	held.Add(count)
	for range count {
		ended.Go(func() {
			runtime.LockOSThread()
			held.Done()
			<-release
			runtime.UnlockOSThread()
		})
	}
	held.Wait()
	close(release)
	ended.Wait()
}
