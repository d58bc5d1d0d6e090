import json
import socket
from pathlib import Path

import pytest

from echorl_cli.local.launch import Devices
from echorl_cli.local.machine import Machine, divide_gpus, gpu_users, model_folder, place
from echorl_cli.local.ports import free_ports, free_run, is_free
from echorl_core.start_checks import longest_sequence
from echorl_manifest import EchoRLRun, load
from echorl_manifest.compile.role_configs import role_configs
from echorl_testing.manifests import documents


def run_with(**values) -> EchoRLRun:
    document = documents.shortest()
    for path, value in values.items():
        document = documents.with_value(document, path.replace("__", "."), value)
    return load(document)


@pytest.mark.parametrize(
    ("engines", "each", "ranks", "gpus", "expected"),
    [
        pytest.param(1, 1, 1, "0", Devices(("0",), "0"), id="one GPU is shared"),
        pytest.param(1, 1, 1, "01", Devices(("0",), "1"), id="two"),
        pytest.param(2, 1, 2, "0123", Devices(("0", "1"), "2,3"), id="two by two"),
        pytest.param(1, 2, 2, "012", Devices(("0,1",), "2,0"), id="too few are shared"),
        pytest.param(2, 1, 1, "", Devices(("", ""), ""), id="none"),
        pytest.param(2, 0, 1, "0", Devices(("", ""), "0"), id="engines on the CPU"),
        pytest.param(1, 1, 0, "01", Devices(("0",), ""), id="trainer on the CPU"),
    ],
)
def test_gpus_go_to_engines_first(engines: int, each: int, ranks: int, gpus: str, expected: Devices) -> None:
    run = run_with(
        spec__inference__replicas=engines, spec__inference__gpusPerReplica=each, spec__trainer__gpusPerReplica=ranks
    )
    assert divide_gpus(run, tuple(gpus)) == expected


def test_gpus_are_found_without_a_gpu_library(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert Machine.look({}, tmp_path).gpus == ("0", "2", "10")
    assert Machine.look({"CUDA_VISIBLE_DEVICES": "3, 1"}, tmp_path).gpus == ("3", "1")
    assert Machine.look({"CUDA_VISIBLE_DEVICES": ""}, tmp_path).gpus == ()


def test_the_engines_python_is_named_or_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-inference" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.chdir(tmp_path)
    assert Machine.look({}).inference_python == python
    assert Machine.look({"ECHORL_INFERENCE_PYTHON": "/opt/python"}).inference_python == Path("/opt/python")


def test_engines_on_gpus_have_an_environment_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on_gpu, on_cpu = (run_with(spec__inference__gpusPerReplica=count).spec for count in (1, 0))
    for name in (".venv-inference", ".venv-inference-cuda"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        # Where there is only one, engines on GPUs use it too.
        assert Machine.look({"CUDA_VISIBLE_DEVICES": "0"}).engine_python(on_gpu) == python
    here = Machine.look({"CUDA_VISIBLE_DEVICES": "0"})
    assert here.engine_python(on_cpu) == tmp_path / ".venv-inference" / "bin" / "python"
    assert Machine.look({"CUDA_VISIBLE_DEVICES": ""}).engine_python(on_gpu) == here.engine_python(on_cpu)
    named = Machine.look({"CUDA_VISIBLE_DEVICES": "0", "ECHORL_INFERENCE_PYTHON": "/opt/python"})
    assert named.engine_python(on_gpu) == Path("/opt/python")


def test_a_model_is_a_folder_or_in_the_hubs_cache(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path / "hf")}
    assert model_folder("org/name", environ) is None
    repository = tmp_path / "hf" / "hub" / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc\n")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    assert model_folder("org/name", environ) == repository / "snapshots" / "abc"
    assert model_folder(str(tmp_path), environ) == tmp_path


def test_longest_sequence_is_read_from_the_config(tmp_path: Path) -> None:
    assert longest_sequence(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    assert longest_sequence(tmp_path) == 512
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 64}}))
    assert longest_sequence(tmp_path) == 64


def test_a_placement_has_a_port_for_everyone(tmp_path: Path) -> None:
    run = run_with(spec__inference__replicas=3, spec__trainer__replicas=2)
    placement = place(run, tmp_path / "run", tmp_path, Machine("python", Path("python"), ()))
    configs = role_configs(run, placement)
    ports = [configs.orchestrator.port, *(engine.port for engine in configs.inference)]
    ports += [configs.trainer.metrics_port, configs.trainer.metrics_port + 1]
    assert len(set(ports)) == 6
    assert {engine.device for engine in configs.inference} == {"cpu"}
    assert configs.trainer.orchestrator_url == f"http://127.0.0.1:{configs.orchestrator.port}"


def test_ports_that_are_listened_on_are_not_free() -> None:
    first, second = free_ports(2)
    assert first != second
    assert is_free(first)
    assert is_free(free_run(3) + 2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", first))
        server.listen()
        assert not is_free(first)


def test_processes_that_hold_gpu_memory_are_named(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '4711, 1024 MiB'\n")
    tool.chmod(0o755)
    assert gpu_users({"PATH": str(tmp_path)}) == ["4711, 1024 MiB"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_users({"PATH": str(tmp_path)}) == []
    assert gpu_users({"PATH": str(tmp_path / "nowhere")}) == []
