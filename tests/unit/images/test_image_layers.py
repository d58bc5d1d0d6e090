"""The judge of images, on layers made by hand."""

from pathlib import Path

import pytest

from echorl_testing.cluster.image_layers import Layer, config_problems, problems

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"


def layer(folder: Path, path: str, text: str = "", *, of_base: bool = False) -> Layer:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return Layer(folder, of_base)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("usr/bin/gcc", ""),
        ("usr/bin/x86_64-linux-gnu-gcc-12", ""),
        ("usr/bin/make", ""),
        ("opt/echorl/bin/uv", ""),
        ("opt/echorl/bin/pip3.11", ""),
        ("root/.cache/uv/x", ""),
        ("home/echorl/.cache/x", ""),
        ("var/lib/apt/lists/index", ""),
        ("var/cache/apt/pkgcache.bin", ""),
        ("tmp/left", ""),
        ("media/ca-certificates.crt", ""),
        ("etc/ssl/certs/ours.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("opt/echorl/.git/config", ""),
        ("home/echorl/.netrc", ""),
        ("opt/echorl/server.key", KEY),
    ],
)
def test_what_must_not_be_in_a_layer_of_ours_is_found(path: str, text: str, tmp_path: Path) -> None:
    (found,) = problems(layer(tmp_path, path, text), compiler=False)
    assert found.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("opt/echorl/bin/python", ""),
        ("opt/echorl/bin/echorl", ""),
        ("opt/echorl/lib/python3.11/site-packages/x/make.py", ""),
        ("opt/echorl/lib/python3.11/site-packages/certifi/cacert.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("etc/passwd", "echorl:x:10001"),
    ],
)
def test_what_belongs_there_is_not(path: str, text: str, tmp_path: Path) -> None:
    assert problems(layer(tmp_path, path, text), compiler=False) == []


def test_a_compiler_for_c_is_the_one_exception(tmp_path: Path) -> None:
    assert problems(layer(tmp_path, "usr/bin/gcc-12"), compiler=True) == []
    layer(tmp_path, "usr/bin/g++-12")
    assert len(problems(layer(tmp_path, "usr/bin/make"), compiler=True)) == 2


def test_a_base_may_have_an_installer_but_no_compiler(tmp_path: Path) -> None:
    assert problems(layer(tmp_path, "usr/local/bin/pip", of_base=True), compiler=False) == []
    assert problems(layer(tmp_path, "usr/bin/gcc", of_base=True), compiler=False)


def test_a_config_names_our_user_and_carries_no_credentials() -> None:
    config = {"User": "10001:10001", "Env": ["PATH=/bin"]}
    assert config_problems({"OCIv1": {"config": config}}) == []
    assert config_problems({"OCIv1": {"config": config | {"User": ""}}}) == ["user "]
    assert config_problems({"OCIv1": {"config": config | {"Env": ["HF_TOKEN=x"]}}}) == ["variable HF_TOKEN"]
