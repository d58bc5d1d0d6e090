"""The engine's command line, the start module's refusals, and what ends and cleans up processes."""

import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from echorl_core.config import InferenceConfig, LoraConfig, ModelConfig, SpeculativeConfig
from echorl_core.termination_message import read
from echorl_vllm.adapter import reserved_rank
from echorl_vllm.environment import share_model_facts, short_path
from echorl_vllm.launch import Installed, command
from echorl_vllm.leftovers import EngineRunningError, remove_leftovers
from echorl_vllm.processes import descendants, parent_of, start_time

MODEL = ModelConfig(path="/m", dtype="float32", max_model_len=512, renderer="engine")
NEW = Installed(scale_out_flag=True, flashinfer=True)
OLD = Installed(scale_out_flag=False, flashinfer=False)


def build(installed=NEW, *, temporary=None, **fields):
    config = InferenceConfig(model=MODEL, served_name="policy", port=8101, **fields)
    return command(config, work=Path("/w"), python="/py", installed=installed, temporary=temporary)


def test_cpu_command():
    argv, variables = build()
    assert " ".join(argv) == (
        "/py -P -m vllm.entrypoints.cli.main serve /m --host 127.0.0.1 --port 8101 --served-model-name policy "
        "--dtype float32 --max-model-len 512 --tensor-parallel-size 1 --logprobs-mode processed_logprobs "
        "--generation-config vllm --worker-extension-cls echorl_vllm.worker.WeightsExtension "
        "--middleware echorl_vllm.middleware.EngineGate --enable-auto-tool-choice --tool-call-parser hermes "
        "--enable-prompt-tokens-details --disable-uvicorn-access-log --enable-scale-out "
        "--enforce-eager --max-num-seqs 128 --kv-cache-memory-bytes 128M --distributed-executor-backend uni"
    )
    assert variables == {
        "ECHORL_DIE_WITH_PARENT": "1",
        "ECHORL_ENGINE_SPOOL": "/w/spool",
        "ECHORL_ENGINE_WORK": "/w",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": "/w/tmp",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CACHE_ROOT": "/w/cache",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


def test_an_adapter_is_there_from_the_start_and_the_model_under_another_name():
    lora = LoraConfig(rank=12, alpha=24.0, target_modules=["q_proj", "model.layers.3.mlp.down_proj", "layers.0.q_proj"])
    config = InferenceConfig(model=MODEL.model_copy(update={"lora": lora}), served_name="base", port=8101)
    for device, places in (("cpu", "2"), ("cuda", "1")):
        argv, _ = command(config.model_copy(update={"device": device}), work=Path("/w"), python="/py", installed=NEW)
        begin = argv.index("--enable-lora")
        assert argv[begin : begin + 12] == [
            *("--enable-lora", "--max-loras", places, "--max-cpu-loras", places, "--max-lora-rank", "16"),
            *(
                "--lora-target-modules",
                "down_proj",
                "q_proj",
                "--lora-modules",
                '{"name": "policy", "path": "/w/adapter"}',
            ),
        ]
        assert argv[argv.index("--served-model-name") + 1] == "base"


def test_guesses_are_told_in_vllms_own_words():
    argv, _ = build(
        speculative=SpeculativeConfig(method="ngram", num_tokens=5, prompt_lookup_min=2, prompt_lookup_max=3)
    )
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 3,
    }
    assert "--speculative-config" not in build()[0]


def test_an_engine_returns_routed_experts_where_they_are_replayed():
    """On CPUs a variable has the plugin give vLLM's runner what only the one of GPUs has."""
    argv, variables = build(router_replay=True)
    assert ("--enable-return-routed-experts" in argv, variables["ECHORL_CPU_ROUTED_EXPERTS"]) == (True, "1")
    argv, variables = build(device="cuda", router_replay=True)
    assert "--enable-return-routed-experts" in argv
    assert "ECHORL_CPU_ROUTED_EXPERTS" not in variables
    assert "--enable-return-routed-experts" not in build()[0]


def test_fp8_has_a_scale_for_each_row():
    argv, _ = build(device="cuda", quantization="fp8")
    assert argv[argv.index("--quantization") + 1] == "fp8_per_channel"
    assert "--quantization" not in build(device="cuda")[0]
    with pytest.raises(ValueError, match="quantization: fp8: needs a GPU, and this engine runs on a CPU"):
        build(quantization="fp8")


@pytest.mark.parametrize(("rank", "reserved"), [(1, 8), (8, 8), (9, 16), (257, 320), (512, 512)])
def test_room_is_reserved_for_the_next_rank_that_vllm_knows(rank, reserved):
    assert reserved_rank(rank) == reserved


def test_a_rank_beyond_vllms_is_refused():
    with pytest.raises(ValueError, match=r"model\.lora\.rank: found 513, accepted are up to 512"):
        reserved_rank(513)


def test_cpu_workers_of_one_model_copy_stay_processes():
    argv, variables = build(tensor_parallel=2)
    assert "--distributed-executor-backend" not in argv
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in variables


def test_cuda_command_of_an_older_vllm():
    argv, variables = build(OLD, device="cuda", tensor_parallel=2, extra_args=["--max-num-seqs", "7"])
    assert argv[-2:] == ["--max-num-seqs", "7"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert not {"--enable-scale-out", "--enforce-eager", "--kv-cache-memory-bytes"} & set(argv)
    assert variables["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert "TORCH_COMPILE_DISABLE" not in variables
    assert (variables["TRITON_F32_DEFAULT"], variables["NVIDIA_TF32_OVERRIDE"]) == ("ieee", "0")


@pytest.mark.parametrize(
    "argument",
    [
        "--middleware",
        "--worker_extension_cls=x.Y",
        "--api-server-count",
        "--port=1",
        "--enable_lora",
        "--max-loras=4",
        "--middle",
        "--speculative_config.num_speculative_tokens=3",
        "--spec-tokens",
        "--quantization",
    ],
)
def test_options_that_weight_updates_depend_on_are_kept(argument):
    with pytest.raises(ValueError, match="is set by EchoRL"):
        build(extra_args=["--seed", "1", argument, "x"])


def test_sockets_can_be_made_however_long_the_work_folders_path_is(tmp_path, monkeypatch):
    short = Path(tempfile.mkdtemp(prefix="e"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    try:
        assert short_path(Path("/w/tmp")) == Path("/w/tmp")
        deep = tmp_path.joinpath(*["folder-with-a-name"] * 5)
        deep.mkdir(parents=True)
        (short / f"echorl-{'0' * 16}").symlink_to(deep / "gone")
        link = short_path(deep)
        assert list(short.iterdir()) == [link]
        assert link.resolve() == deep.resolve()
        assert short_path(deep) == link
        assert build(temporary=link)[1]["TMPDIR"] == str(link)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(link / str(uuid.uuid4())))
        link.unlink()
        link.symlink_to("/etc")
        with pytest.raises(ValueError, match="is not this engine's link"):
            short_path(deep)
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with pytest.raises(ValueError, match="too long a path for sockets"):
            short_path(deep)
    finally:
        shutil.rmtree(short)


def test_engines_of_one_environment_share_what_vllm_finds_out_about_models(tmp_path):
    registry = tmp_path / "vllm" / "model_executor" / "models" / "registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text("one version")
    caches = [tmp_path / name for name in ("first", "second", "of another version", "in an image")]
    for cache in caches:
        cache.mkdir()
    for cache in caches[:2] * 2:
        share_model_facts(cache, tmp_path / "venv", tmp_path / "vllm")
    (caches[0] / "modelinfos" / "Qwen3.json").touch()
    assert (caches[1] / "modelinfos" / "Qwen3.json").exists()
    registry.write_text("another version")
    share_model_facts(caches[2], tmp_path / "venv", tmp_path / "vllm")
    assert not list((caches[2] / "modelinfos").iterdir())
    share_model_facts(caches[3], registry, tmp_path / "vllm")
    assert not list(caches[3].iterdir()), "an environment that cannot be written to"


def test_what_is_installed_is_seen_in_files(tmp_path):
    package = tmp_path / "vllm"
    assert Installed.find(package) == OLD
    for where, text in (("openai", "enable_other"), ("launchers", "enable_scale_out: bool = False")):
        (package / "entrypoints" / where).mkdir(parents=True)
        (package / "entrypoints" / where / "cli_args.py").write_text(text)
    (tmp_path / "flashinfer").mkdir()
    assert Installed.find(package) == NEW


def start(tmp_path, config, **variables):
    (tmp_path / "c.json").write_text(json.dumps(config))
    return subprocess.run(
        [sys.executable, "-m", "echorl_vllm", "--config", tmp_path / "c.json", "--work", tmp_path / "w"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


IDENTITY = {"ECHORL_ADMIN_TOKEN": "t", "ECHORL_RUN_UID": "u"}


def test_bad_input_is_one_message_and_exit_code_2(tmp_path):
    config = InferenceConfig(model=MODEL, served_name="policy", port=1).model_dump()
    for changed, variables, message in [
        (config, {"ECHORL_RUN_UID": "u"}, "ECHORL_ADMIN_TOKEN: is not set"),
        ({**config, "prot": 1}, IDENTITY, "prot"),
        (config, IDENTITY, "model.path: /m has no config.json"),
    ]:
        ended = start(tmp_path, changed, **variables, ECHORL_TERMINATION_LOG=str(tmp_path / "words"))
        assert ended.returncode == 2
        words = read((tmp_path / "words").read_bytes())
        assert words is not None
        assert (words.role, words.exit_name) == ("inference", "BAD_INPUT")
        assert message in words.message
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr
        assert not (tmp_path / "w").exists()


def wait_until(condition):
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


FORKING = """
import multiprocessing, os, signal, sys, time
{setup}
def child():
    {child}
    print(os.getpid(), flush=True)
    time.sleep(300)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
{then}
"""


def forking(child, then, setup="", first=()):
    """A process with a forked child; also what both print, the child its process id last."""
    program = FORKING.format(child=child, then=then, setup=setup)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    printed = [process.stdout.readline().strip() for _ in range(len(first) + 1)]
    process.stdout.close()
    # Ends the wait of a parent that reads a line.
    process.stdin.close()
    return process, int(printed[-1]), *printed[:-1]


@pytest.mark.parametrize("dies", [True, False])
def test_children_die_with_a_killed_parent(monkeypatch, dies):
    monkeypatch.setenv("ECHORL_DIE_WITH_PARENT", "1" if dies else "0")
    process, child = forking("from echorl_vllm.plugin import register; register()", "process.join()")
    assert descendants(process.pid) == [child]
    process.kill()
    process.wait(90)
    if dies:
        wait_until(lambda: parent_of(child) is None)
    else:
        assert parent_of(child) is not None
        os.kill(child, signal.SIGKILL)


def test_the_first_process_is_left_alone(monkeypatch):
    monkeypatch.setenv("ECHORL_DIE_WITH_PARENT", "1")
    program = "from echorl_vllm.plugin import register; register(); import ctypes; s = ctypes.c_int(); "
    program += "ctypes.CDLL(None).prctl(2, ctypes.byref(s)); raise SystemExit(s.value)"
    assert subprocess.run([sys.executable, "-c", program], timeout=240, check=False).returncode == 0


def test_a_process_tree_ends_with_a_code_even_if_a_child_ignores_the_signal():
    process, child = forking(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "sys.stdin.readline(); processes.end_process_tree(6)",
        "from echorl_vllm import processes; processes._GRACE_S = 0.2",
    )
    process.wait(90)
    assert process.returncode == 6
    wait_until(lambda: parent_of(child) is None)


def test_shared_memory_goes_with_a_process_tree_that_is_ended():
    process, child, name = forking(
        "pass",
        "sys.stdin.readline(); end_process_tree(6)",
        "from multiprocessing.shared_memory import SharedMemory; from echorl_vllm.processes import end_process_tree; "
        "print(SharedMemory(create=True, size=4096).name, flush=True)",
        first=["name"],
    )
    assert process.wait(90) == 6
    wait_until(lambda: parent_of(child) is None and not (Path("/dev/shm") / name).exists())


def own(work, pid, started, segments):
    work.mkdir(exist_ok=True)
    folder = work.stat()
    owner = {"device": folder.st_dev, "inode": folder.st_ino, "pid": pid, "started": started, "segments": segments}
    (work / "owner.json").write_text(json.dumps(owner))


def test_only_what_a_dead_engine_left_is_removed(tmp_path):
    names = [f"psm_echorl-test-{os.getpid()}-{number}" for number in range(3)]
    paths = [Path("/dev/shm") / name for name in names]
    models = Path("/dev/shm") / f"echorl-test-{os.getpid()}.safetensors"
    try:
        for path in (*paths, models):
            path.write_bytes(b"x" * 4096)
        outside = tmp_path / "precious"
        outside.touch()
        with paths[1].open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            work = tmp_path / "w"
            noted = {path.name: path.stat().st_ino for path in (*paths[:2], models)}
            replaced = {paths[2].name: paths[2].stat().st_ino + 1}
            foreign = {f"../..{outside}": outside.stat().st_ino}
            own(work, os.getpid(), 1, {**noted, **replaced, **foreign, "psm_never-there": 1})
            (work / "tmp").mkdir()
            (work / "tmp" / "socket").touch()
            (work / "cache").mkdir()
            assert remove_leftovers(work) == [str(paths[0]), str(work / "tmp")]
        assert [path.exists() for path in (*paths, models, outside)] == [False, True, True, True, True]
        assert [path.name for path in work.iterdir()] == ["cache"]
        assert remove_leftovers(work) == []
    finally:
        for path in (*paths, models):
            path.unlink(missing_ok=True)


def test_a_copy_of_a_work_folder_takes_no_engine_for_its_own(tmp_path):
    pid = os.getppid()
    own(tmp_path / "w", pid, start_time(pid), {})
    shutil.copytree(tmp_path / "w", tmp_path / "copy")
    assert remove_leftovers(tmp_path / "copy") == []
    assert not (tmp_path / "copy" / "owner.json").exists()


def test_a_living_engine_keeps_its_folder(tmp_path):
    pid = os.getppid()
    own(tmp_path / "w", pid, start_time(pid), {})
    with pytest.raises(EngineRunningError, match=f"process id {pid}"):
        remove_leftovers(tmp_path / "w")
    own(tmp_path / "w", pid, start_time(pid) + 1, {})
    assert remove_leftovers(tmp_path / "w") == []
