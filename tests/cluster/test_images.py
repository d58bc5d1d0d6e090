"""The images themselves: what their layers hold, how large they are, and that their entry points start.

Operator and orchestrator are built here if need be. ECHORL_TEST_IMAGES names others, which must be there (make images):
"trainer inference-cpu", or 1 for all.
"""

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.cluster import built_images, image_layers
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.built_images import buildah
from echorl_testing.cluster.errors import Unavailable
from echorl_testing.cluster.sandbox import check_root

pytestmark = pytest.mark.timeout(1200)

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ("operator", "orchestrator")
_ASKED = os.environ.get("ECHORL_TEST_IMAGES", "")
NAMES = built_images.NAMES if _ASKED == "1" else tuple(dict.fromkeys((*SMALL, *_ASKED.split())))
of_an_image = pytest.mark.parametrize("name", campaign.campaign_params("images", NAMES, len(NAMES) if _ASKED else 1))
"""One of the small ones at every run of the tests; those that are asked for all."""
WITH_COMPILER = frozenset({"trainer", "inference"})
_MIB = 2**20
_LIMIT = re.compile(r"^\| `(?P<name>[a-z-]+)` \|.*\| (?P<limit>[\d,]+) \|$", re.MULTILINE)
_BUILD_S = 900


@pytest.fixture(scope="module", autouse=True)
def images() -> None:
    """The small ones as the repository is now."""
    try:
        check_root()
    except Unavailable as error:
        pytest.skip(str(error))
    command = [REPOSITORY / "scripts" / "images.sh", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture
def container(name: str) -> Iterator[str]:
    made = buildah("from", *built_images.policy(), f"localhost/{built_images.tag(name)}").strip()
    yield made
    buildah("rm", made)


@of_an_image
def test_layers_hold_no_secrets_caches_or_build_tools(name: str) -> None:
    found = [
        problem
        for layer in image_layers.layers(name)
        for problem in image_layers.problems(layer, compiler=name in WITH_COMPILER)
    ]
    assert found == []
    assert image_layers.config_problems(image_layers.inspected(name)) == []


@of_an_image
def test_an_image_is_no_larger_than_the_documentation_says(name: str) -> None:
    text = (REPOSITORY / "docs" / "images.md").read_text()
    limits = {match["name"]: int(match["limit"].replace(",", "")) for match in _LIMIT.finditer(text)}
    assert image_layers.size_bytes(name) / _MIB <= limits[name]


def printed(container: str, folder: Path, *command: str) -> str:
    """What a command in the container prints, by way of a file: buildah may lose what was in its pipe at the end."""
    folder.chmod(0o777)
    script = 'exec "$@" > /printed/by-command'
    buildah("run", "--volume", f"{folder}:/printed", container, "--", "sh", "-c", script, "sh", *command)
    return (folder / "by-command").read_text()


@of_an_image
def test_entry_points_tell_help_and_version_as_our_user(name: str, container: str, tmp_path: Path) -> None:
    entry = image_layers.inspected(name)["OCIv1"]["config"]["Entrypoint"]
    extra = [["python", "-P", "-m", "echorl_prepare"]] if name == "orchestrator" else []
    version = built_images.tag(name).partition(":")[2]
    for command in (entry, *extra):
        assert printed(container, tmp_path, *command, "--version").strip() == version
        assert "usage:" in printed(container, tmp_path, *command, "--help")
    assert printed(container, tmp_path, "id").startswith("uid=10001(echorl) gid=10001(echorl)")
    home = printed(container, tmp_path, "python", "-c", "from pathlib import Path; print(Path.home())")
    assert home.split() == ["/home/echorl"]


def test_an_archive_carries_the_image_under_the_name_that_the_operator_uses(tmp_path: Path) -> None:
    command = [REPOSITORY / "scripts" / "package.sh", tmp_path, "operator"]
    environ = {**os.environ, "HELM": str(Binaries().path("helm"))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("echorl-operator-*.tar")
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))
    assert f"docker.io/{built_images.tag('operator')}" in manifest["RepoTags"]


if {"trainer", "inference-cpu"} <= set(NAMES):

    def test_trainer_and_inference_share_the_layers_with_torch() -> None:
        folders = ({layer.folder for layer in image_layers.layers(name)} for name in ("trainer", "inference-cpu"))
        shared = set.intersection(*folders)
        assert sum(path.stat().st_size for folder in shared for path in folder.rglob("*.so*")) > 1024 * _MIB
