"""Real pods without large images: system and Python environments are this machine's, through read-only volumes.

The image itself holds accounts and links. What runs in such a pod is what runs in a pod of the real images, but for
where its files come from; whether the real images hold all that is needed, this cannot show.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.images import Image
from echorl_testing.cluster.volumes import folder_volume, read_only_claim

MACHINE = "echorl.test/machine:1"
_SYSTEM = Path("/usr")
_LINKS = ("bin", "sbin", "lib", "lib64")


def image() -> Image:
    """Accounts, links into ``/usr``, and where the linker finds libraries there."""
    return Image(
        MACHINE,
        files={"etc/ld.so.cache": Path("/etc/ld.so.cache")},
        texts={
            "etc/passwd": "root:x:0:0:root:/:/bin/sh\nechorl:x:10001:10001:echorl:/home/echorl:/bin/sh\n",
            "etc/group": "root:x:0:\nechorl:x:10001:\n",
            "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        },
        links={name: str(Path(f"/{name}").readlink()) for name in _LINKS if Path(f"/{name}").is_symlink()},
        folders=["tmp"],
        user=10001,
    )


def folders(repository: Path) -> dict[str, Path]:
    """What pods mount, by name: the system, this repository with its environments, and their interpreter."""
    found = {"system": _SYSTEM, "repository": repository}
    interpreter = Path(sys.base_prefix).resolve()
    if not interpreter.is_relative_to(_SYSTEM):
        found["interpreter"] = interpreter
    return found


@contextmanager
def claims(api: Api, namespace: str, repository: Path) -> Iterator[None]:
    """A claim for each folder, in a namespace."""
    with ExitStack() as stack:
        for name, folder in folders(repository).items():
            stack.enter_context(folder_volume(api, namespace, name, folder))
            read_only_claim(api, namespace, name)
        yield


def template(container: str, repository: Path, environment: str) -> dict[str, Any]:
    """Pod template of a role whose programs are those of an environment in the repository, such as ``.venv``."""
    found = folders(repository)
    path = f"{repository / environment / 'bin'}:/usr/bin:/bin"
    mounts = [{"name": name, "mountPath": str(folder), "readOnly": True} for name, folder in found.items()]
    own = {"name": container, "env": [{"name": "PATH", "value": path}], "volumeMounts": mounts}
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in found]
    return {"spec": {"containers": [own], "volumes": volumes}}
