"""Files in memory, two levels deep, and the commands that look at them."""

from dataclasses import dataclass, field


class CommandError(Exception):
    """What a command says when it cannot do what was asked."""


@dataclass
class FileTree:
    """Texts by path, such as ``etc/a``."""

    files: dict[str, str] = field(default_factory=dict)

    def ls(self, path: str = "") -> str:
        """Names in a folder, one a line; the folders of the root without a path."""
        folder = path.strip("/.")
        if not folder:
            return "\n".join(sorted({name.split("/")[0] for name in self.files}))
        if folder in self.files:
            return folder
        names = sorted(name[len(folder) + 1 :].split("/")[0] for name in self.files if name.startswith(f"{folder}/"))
        if not names:
            raise CommandError(f"ls: {path}: no such directory")
        return "\n".join(dict.fromkeys(names))

    def cat(self, path: str) -> str:
        """``# path`` and the text of a file."""
        if path not in self.files:
            raise CommandError(f"cat: {path}: no such file")
        return f"# {path}\n{self.files[path]}"

    def grep(self, pattern: str) -> str:
        """Paths of the files with a line that contains ``pattern``, one a line."""
        found = sorted(path for path, text in self.files.items() if any(pattern in line for line in text.split("\n")))
        if not pattern or not found:
            raise CommandError(f"grep: {pattern}: nothing found")
        return "\n".join(found)

    def write(self, path: str, mode: str, text: str) -> str:
        """Replace a file's text, or add a line to it; makes the file when it is not there."""
        if mode not in ("append", "overwrite"):
            raise CommandError(f"write: {mode}: mode is append or overwrite")
        parts = path.split("/")
        if not all(parts) or len(parts) > 2 or any(name.startswith(f"{path}/") for name in self.files):
            raise CommandError(f"write: {path}: not a file's path")
        old = self.files.get(path)
        self.files[path] = f"{old}\n{text}" if mode == "append" and old else text
        return f"{path}: {len(self.files[path].encode())} bytes"
