package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	procMagic = 0x9fa0 // Of the file system of processes, whose files are no plain ones, and may block.
	sysMagic  = 0x62656572
)

var errTooLong = errors.New("too long")

// openPlain opens a plain file to read, and never waits: for a named pipe's other end, for example.
func openPlain(path string) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("path: found %q, accepted is an absolute one", path)
	}
	opened, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var system syscall.Statfs_t
	found, err := opened.Stat()
	if err == nil {
		err = syscall.Fstatfs(int(opened.Fd()), &system)
	}
	if err == nil && (!found.Mode().IsRegular() || system.Type == procMagic || system.Type == sysMagic) {
		err = fmt.Errorf("%s: is no plain file", path)
	}
	if err != nil {
		opened.Close()
		return nil, err
	}
	return opened, nil
}

// digested reads a file for its length and its sha256, and leaves it at its start.
func digested(file *os.File, limit int64) (int64, string, error) {
	digest := sha256.New()
	length, err := io.Copy(digest, io.LimitReader(file, limit+1))
	if err == nil && length > limit {
		err = fmt.Errorf("%s: is longer than %d bytes: %w", file.Name(), limit, errTooLong)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	return length, hex.EncodeToString(digest.Sum(nil)), err
}

// write writes a file as a whole or not at all, with its folders.
func write(path string, from io.Reader, mode fs.FileMode, sha string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("path: found %q, accepted is an absolute one", path)
	}
	folder, name := filepath.Split(path)
	if name == "" || name == "." || name == ".." || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%q: is a folder, or no path", path)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	draft := folder + "." + rand.Text()
	file, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	digest := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, digest), from)
	if err == nil && hex.EncodeToString(digest.Sum(nil)) != strings.ToLower(sha) {
		err = fmt.Errorf("%s: what arrived is not what was sent", path)
	}
	if err == nil {
		err = syscall.Fchmod(int(file.Fd()), uint32(mode))
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft)
	}
	return err
}
