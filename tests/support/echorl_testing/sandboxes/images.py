"""Images for tests, of this machine's own programs."""

import shutil
import subprocess
from pathlib import Path

_PROGRAMS = ("sh", "cat", "ls", "rm", "mkdir", "touch", "ln", "sleep", "mkfifo", "dd", "head", "id")


def small_image(folder: Path) -> Path:
    """A tree with a shell and a few tools, ``/data/kept`` and ``/data/old/file``, and links as images have them."""
    for name in ("bin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for name in _PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        shutil.copy2(Path(found).resolve(), folder / "usr" / "bin" / name)
        listed = subprocess.run(["ldd", found], check=True, capture_output=True, text=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                target = folder / "usr" / Path(word).relative_to("/").as_posix().removeprefix("usr/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(word, target)
    (folder / "data" / "old").mkdir(parents=True)
    (folder / "data" / "kept").write_text("kept")
    (folder / "data" / "old" / "file").write_text("old")
    return folder
