"""What is handed to people who have neither the repository nor a registry with the images."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from echorl_testing.cluster.binaries import Binaries
from echorl_testing.kube.helm import CHART, CRDS, Helm, objects

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "package.sh"


def packaged(folder: Path, *images: str, program: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HELM": program}
    command = [SCRIPT, folder, *images]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_charts_install_from_their_packages_as_from_their_folders(helm: Helm, tmp_path: Path) -> None:
    done = packaged(tmp_path, "-", program=str(Binaries().path("helm")))
    assert done.returncode == 0, done.stderr
    # A key that is made is another one every time.
    own_key = {"masterKey": {"existingSecret": "own"}}
    for chart, values in ((CRDS, {}), (CHART, own_key)):
        (package,) = [one for one in tmp_path.glob("*.tgz") if one.name.rpartition("-")[0] == chart.name]
        assert objects(helm.template(values, chart=package)) == objects(helm.template(values, chart=chart))
    sums = dict(line.split()[::-1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert sums == {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in tmp_path.glob("*.tgz")}


@pytest.mark.parametrize(
    ("images", "words"), [(("traner",), "found traner, accepted are: operator"), (("-", "trainer"), "found -")]
)
def test_an_image_that_is_none_is_refused_before_anything_is_written(
    helm: Helm, tmp_path: Path, images: tuple[str, ...], words: str
) -> None:
    done = packaged(tmp_path / "dist", *images, program=str(Binaries().path("helm")))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert not (tmp_path / "dist").exists()


def test_without_helm_it_says_where_to_get_one(tmp_path: Path) -> None:
    done = packaged(tmp_path / "dist", program="/nowhere/helm")
    assert done.returncode == 2
    assert "HELM" in done.stderr
