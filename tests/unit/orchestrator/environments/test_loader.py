import sys
from pathlib import Path
from typing import Any

import pytest

from echorl_core import builtin_environments
from echorl_core.builtin_environments import BUILTIN_ENVIRONMENTS
from echorl_core.config import HookConfig
from echorl_orchestrator.environments.holdout import is_held_out, one_side, task_key
from echorl_orchestrator.environments.loader import load_environment, load_hook
from echorl_orchestrator.failures import BadInputError
from tools.builtin_environments import table

CODE = """
from echorl_orchestrator.types import Environment
def good(n=2): return Environment(tasks=[{"key": i} for i in range(n)], text_env=object)
def nothing(): return Environment(tasks=[])
def wrong(): return {}
def raising(): raise RuntimeError("no licence")
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_environment.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)
    return "own_environment"


def test_a_users_factory_gets_its_arguments(module: str) -> None:
    assert len(load_environment("mine", f"import:{module}:good", {"n": 5}).tasks) == 5


@pytest.mark.parametrize(
    ("kind", "args", "problem"),
    [
        (
            "builtin:chess",
            {},
            "environments.mine.type: found 'builtin:chess'; accepted are 'builtin:choice', 'builtin:consultancy', ",
        ),
        ("chess", {}, "environments.mine.type: found 'chess'; accepted are"),
        ("import:own_environment", {}, "accepted is 'pkg.module:name'"),
        ("import:no_such_module:x", {}, "'no_such_module:x' does not import: ModuleNotFoundError"),
        ("import:own_environment:absent", {}, "module 'own_environment' has no 'absent'"),
        ("import:own_environment:number", {}, "is no function"),
        ("import:own_environment:nothing", {}, "exactly one of text_env, runner, multi_agent and given"),
        ("import:own_environment:wrong", {}, "returned dict, accepted is types.Environment"),
        ("import:own_environment:raising", {}, r"raised RuntimeError: no licence \(.*own_environment.py:6\)"),
        ("import:own_environment:good", {"m": 1}, "unexpected keyword argument 'm'"),
        ("builtin:terminal", {"dirs": "two", "x": 1}, r"environments.mine.args: dirs: .*found 'two'; x: Extra inputs"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_loaded_is_said_once_and_clearly(kind: str, args: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        load_environment("mine", kind, args)


@pytest.mark.usefixtures("module")
def test_hooks_are_resolved_or_refused() -> None:
    assert callable(load_hook(HookConfig(import_path="own_environment:good"), "f"))
    with pytest.raises(BadInputError, match=r"f: 'own_environment:number' is no function"):
        load_hook(HookConfig(import_path="own_environment:number"), "f")


def test_a_holdout_splits_by_key_and_not_by_order() -> None:
    tasks = [{"key": number} for number in range(2000)]
    train = one_side(tasks, fraction=0.2, seed=1, side="train")
    held = one_side(tasks[::-1], fraction=0.2, seed=1, side="eval")
    train_keys = {train[index]["key"] for index in range(len(train))}
    held_keys = {held[index]["key"] for index in range(len(held))}
    assert train_keys | held_keys == set(range(2000))
    assert train_keys.isdisjoint(held_keys)
    assert 330 < len(held) < 470
    assert held_keys != {task["key"] for task in tasks if is_held_out(task["key"], fraction=0.2, seed=2)}
    assert any(is_held_out(n, fraction=0.5, seed=1) != is_held_out(str(n), fraction=0.5, seed=1) for n in range(9))


@pytest.mark.parametrize("task", [{}, {"key": 1.5}, {"key": True}, 3])
def test_a_task_needs_a_key(task: Any) -> None:
    with pytest.raises(BadInputError, match=r"task 4: key: found .*accepted is an int or a str"):
        task_key(task, 4)


def test_the_table_of_built_in_environments_is_current() -> None:
    assert Path(builtin_environments.__file__).read_text() == table(), "run `make generate`"


@pytest.mark.parametrize("name", BUILTIN_ENVIRONMENTS)
def test_built_in_environments_are_of_the_kind_that_they_say(name: str, tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}\n')
    built = load_environment("one", f"builtin:{name}", {"path": str(file)} if name == "messages" else {})
    kinds = [kind for kind in ("text_env", "runner", "multi_agent", "given") if getattr(built, kind)]
    assert kinds == [BUILTIN_ENVIRONMENTS[name]]
