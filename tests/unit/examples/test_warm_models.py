"""Models of examples: fitted by the trainer as it is, built once, and anew when what they are made from changes."""

from importlib import import_module
from pathlib import Path

import pytest
from safetensors.torch import load_file

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.environments.builtin.parts.terminal_policy import conversation_tokens
from examples.prepare_model import MODULES, build_unless_there, model_and_seed
from examples.quickstart import model
from examples.warm_models import Batches, batched, build_fitted, digest_of

TALK = [{"role": "user", "content": "port?"}, {"role": "assistant", "content": "8080"}]


def two_batches(codec: CompactCodec) -> Batches:
    return batched([conversation_tokens(codec, TALK, [])] * 4, 2)


def test_a_model_is_fitted_on_its_batches_and_nothing_else_is_left(tmp_path: Path) -> None:
    for name, lr in (("still", 1e-12), ("fitted", 1e-2)):
        build_fitted(tmp_path / name, two_batches, lr=lr, seed=1, add=lambda folder: (folder / "more").touch())
    still, fitted = (load_file(tmp_path / name / "model.safetensors") for name in ("still", "fitted"))
    assert max(float((fitted[key] - still[key]).abs().max()) for key in still) > 1e-3
    assert (tmp_path / "fitted" / "more").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fitted", "still"]


def test_the_quickstarts_model_has_its_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STEPS", 1), ("PER_STEP", 4), ("HELD_OUT", 8)):
        monkeypatch.setattr(model, name, value)
    model.build(tmp_path / "model", seed=1)
    assert (tmp_path / "model" / "baselines.json").exists()


def test_a_model_is_built_once_for_what_it_is_made_from(tmp_path: Path) -> None:
    folder, built = tmp_path / "model", []

    def build() -> None:
        folder.mkdir(exist_ok=True)
        built.append(1)

    source = tmp_path / "source.py"
    source.write_text("a")
    first = digest_of("seed 1", [str(source)])
    for key in (first, first, digest_of("seed 2", [str(source)])):
        build_unless_there(folder, key, build)
    assert len(built) == 2
    source.write_text("b")
    assert digest_of("seed 1", [str(source)]) != first


@pytest.mark.parametrize("text", ["", "spec: 3", "spec: {model: 3}", "a: [", "spec: {}"])
def test_a_manifest_without_a_model_is_left_to_the_run(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    assert model_and_seed(path) is None
    path.write_text(text)
    assert model_and_seed(path) is None


def test_every_model_that_an_example_names_is_made_where_it_is_looked_for() -> None:
    for name, module in MODULES.items():
        assert name in import_module(module).MODELS
    named = [model_and_seed(path) for path in Path("examples").glob("*.yaml")]
    folders = {str(asked[0]) for asked in named if asked is not None and asked[0].parts[0] == "runs"}
    made_by_a_benchmark = {"runs/models/gpu-smoke"}
    assert folders - made_by_a_benchmark == {str(name) for name in MODULES} - {"runs/models/teacher"}
