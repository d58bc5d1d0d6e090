from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_cli.cluster import kubeconfig
from echorl_cli.cluster.kubeconfig import NoSuchPlace, Place, place


def written(path: Path, current: str | None, **contexts: str | None) -> Path:
    entries = [
        {"name": name, "context": {"cluster": name, "user": name} | ({"namespace": where} if where else {})}
        for name, where in contexts.items()
    ]
    servers = [{"name": name, "cluster": {"server": "http://127.0.0.1:9"}} for name in contexts]
    users = [{"name": name, "user": {}} for name in contexts]
    content = {"contexts": entries, "clusters": servers, "users": users} | (
        {"current-context": current} if current else {}
    )
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_context_says_which_namespace(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "lab", lab="research", home=None)
    assert place(path, None, None, {}) == Place(str(path), "lab", "research")
    assert place(path, "home", None, {}) == Place(str(path), "home", "default")
    assert place(path, None, "other", {}).namespace == "other"
    assert place(None, None, None, {"KUBECONFIG": str(path)}).context == "lab"


def test_several_files_the_first_word_counts(tmp_path: Path) -> None:
    first = written(tmp_path / "a", None, lab="one")
    second = written(tmp_path / "b", "home", lab="two", home="three")
    third = written(tmp_path / "c", "lab", far="four")
    both = f"{first}:{tmp_path / 'missing'}:{second}:{third}"
    assert place(None, None, None, {"KUBECONFIG": both}) == Place(both, "home", "three")
    assert place(None, "lab", None, {"KUBECONFIG": both}).namespace == "one"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a", None, lab=None, home=None)
    with pytest.raises(NoSuchPlace, match="no current context, accepted is --context with one of home, lab"):
        place(path, None, None, {})
    with pytest.raises(NoSuchPlace, match="--context: found 'work', accepted is one of home, lab"):
        place(path, "work", None, {})
    with pytest.raises(NoSuchPlace, match="found no kubeconfig /nowhere"):
        place(Path("/nowhere"), None, None, {})
    (tmp_path / "bad").write_text("[1, 2]")
    with pytest.raises(NoSuchPlace, match="found list, accepted is a kubeconfig"):
        place(tmp_path / "bad", None, None, {})


def test_a_pod_uses_its_own_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "namespace")
    (tmp_path / "namespace").write_text("team\n")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert place(None, None, None, environ) == Place(None, None, "team")
    path = written(tmp_path / "a", "lab", lab="research")
    assert place(path, None, None, environ).namespace == "research"


@pytest.mark.parametrize("command", ["status", "why"])
def test_a_cluster_that_does_not_answer(tmp_path: Path, command: str) -> None:
    path = written(tmp_path / "a", "lab", lab=None)
    arguments = [command, "one", "--kubeconfig", str(path)]
    result = CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("http://127.0.0.1:9 does not answer: ")


def test_a_kubeconfig_that_is_missing() -> None:
    arguments = ["status", "one", "--kubeconfig", "/nowhere"]
    result = CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    "content", ["contexts: 5", "contexts: [{}]", "contexts: [{name: x, context: y}]", "a: !!set {x}", "a: &a [*a]"]
)
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(NoSuchPlace, match=f"{tmp_path / 'config'}: "):
        place(tmp_path / "config", None, None, {})
