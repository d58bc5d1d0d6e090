"""The calls of the kernel that sandboxes are made of and that Python 3.11 lacks. Linux 5.12 or newer; no other module.

Every function raises OSError with what the kernel said.
"""

import ctypes
import fcntl
import os
import socket
import struct

NEW_USER, NEW_MOUNTS, NEW_PIDS = 0x10000000, 0x00020000, 0x20000000
NEW_NETWORK, NEW_IPC, NEW_UTS = 0x40000000, 0x08000000, 0x04000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_OPENAT2, _SYS_MOUNT_SETATTR = 428, 429, 437, 442
_RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x10, 0x02
_AT_HERE, _AT_RECURSIVE, _AT_EMPTY_PATH, _CLONE_TREE, _BY_DESCRIPTORS = -100, 0x8000, 0x1000, 1, 0x44
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
MOUNT_NO_SUID, MOUNT_NO_DEVICES, MOUNT_NO_EXEC = 2, 4, 8
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the caller's namespaces of these kinds for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def die_with_parent(number: int) -> None:
    """Get signal ``number`` when the thread that started this process ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, number), "prctl")


def become(user: int | None) -> None:
    """Be this user of the machine, and no other any more; None: stay who one is. Own files in /proc stay one's own."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _checked(_libc.prctl(_PR_SET_DUMPABLE, 1), "prctl")


def unshare_as_root(flags: int) -> None:
    """Leave the user namespace, and those of ``flags``, for new ones in which this user is root, of itself alone."""
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(NEW_USER | flags)
    except OSError as error:
        raise OSError(error.errno, f"this machine lets user {user} make no namespaces: {error.strerror}") from error
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount(kind: str, target: str, flags: int = 0, options: str = "") -> None:
    """Mount a new file system of ``kind``."""
    done = _libc.mount(kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options))
    _checked(done, f"mount {kind}")


def keep_mounts_private() -> None:
    """Have no mount here seen elsewhere."""
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None), "mount /")


def show_read_only(source: str, target: int) -> None:
    """Show the tree ``source`` where descriptor ``target`` is, with what is mounted below it, without devices."""
    clone = _checked(
        _libc.syscall(_SYS_OPEN_TREE, _AT_HERE, os.fsencode(source), _CLONE_TREE | _AT_RECURSIVE | os.O_CLOEXEC), source
    )
    try:
        wanted = struct.pack("=QQQQ", _READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
        done = _libc.syscall(_SYS_MOUNT_SETATTR, clone, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, wanted, len(wanted))
        _checked(done, f"read-only {source}")
        _checked(_libc.syscall(_SYS_MOVE_MOUNT, clone, b"", target, b"", _BY_DESCRIPTORS), f"show {source}")
    finally:
        os.close(clone)


def open_inside(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open ``path`` as if the folder behind descriptor ``root`` were ``/``: neither links nor ``..`` lead out."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    return _checked(_libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), how, len(how)), path)


def loopback_up() -> None:
    """Make 127.0.0.1 work in this network namespace."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _UP_AND_RUNNING))
