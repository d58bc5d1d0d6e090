"""Everything else: steps, seed, checkpoints, resume, transfer of weights, monitors, the run's name."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import label
from echorl_cli.convert.settings import Settings

_ROLES = ("", "trainer.", "orchestrator.")
_TRANSFERS = {"filesystem": "disk", "nccl": "nccl"}
_LONGEST_NAME = 40
FALLBACK_NAME = "converted"
NO_CHECKPOINTS = (
    "prime-rl saves none, or the last alone where [ckpt] is there; EchoRL one every 25 steps, and the newest 2 stay"
)


def name(settings: Settings, draft: ManifestDraft, given: str | None) -> None:
    """metadata.name: as given, or as the run is called in the files."""
    keys = ("run.name", *(f"{role}monitors.wandb.name" for role in _ROLES))
    key = settings.first(*keys)
    text = (settings.text(key) if key else None) or ""
    plain = label(text)
    # A letter comes first.
    fitting = label(f"run-{plain}" if plain[:1].isdigit() else plain, _LONGEST_NAME)
    called = given or fitting or FALLBACK_NAME
    draft.put("metadata.name", called, "" if given else key or "")
    for other in keys:
        if settings.text(other) not in {None, called}:
            draft.say(Kind.CHANGED, other, f"the run is called {called}")
    if not given and not fitting:
        draft.tell(Kind.TO_FILL_IN, "metadata.name", "no file names the run; --name gives it one")


def build(settings: Settings, draft: ManifestDraft) -> None:
    """Put into the draft what is left of ``spec``."""
    if settings.count("max_steps") is None:
        draft.tell(Kind.TO_FILL_IN, "spec.maxSteps", "the files train without end; a manifest has 500 by default")
    seed = draft.first("orchestrator.seed", "orchestrator.buffer.seed", "data.seed") or ""
    draft.put("spec.seed", settings.count(seed) if seed else None, seed)
    _checkpoints(settings, draft)
    _transfer(settings, draft)
    key = "trainer.enable_token_export"
    if settings.flag(key):
        draft.put("spec.tokenExport.enabled", True, key)
    _monitors(settings, draft)


def _monitors(settings: Settings, draft: ManifestDraft) -> None:
    to, source = "spec.monitors.wandb", "monitors.wandb"
    if all(settings.peek(f"{role}{source}") is None for role in _ROLES):
        return
    for key in ("project", "entity"):
        draft.put(f"{to}.{key}", settings.text(f"{source}.{key}"), f"{source}.{key}")
    if settings.flag(f"{source}.offline"):
        draft.put(f"{to}.mode", "offline", f"{source}.offline")
    else:
        draft.tell(Kind.TO_FILL_IN, f"{to}.secretName", "a Secret with the API key")


def _checkpoints(settings: Settings, draft: ManifestDraft) -> None:
    if settings.peek("ckpt.interval") is None:
        draft.tell(Kind.DEFAULT, "ckpt.interval", NO_CHECKPOINTS)
    elif settings.peek("ckpt.keep_last") is None:
        text = "prime-rl keeps every checkpoint when it is not set; EchoRL the newest 2, and those of keepEvery"
        draft.tell(Kind.DEFAULT, "ckpt.keep_last", text)
    key = "ckpt.resume_step"
    step = settings.count(key)
    if step is not None and step >= 0:
        draft.put("spec.resume.policy", "FromStep", key)
        draft.put("spec.resume.step", step, key)
        text = f"checkpoints of prime-rl cannot be read; FromStep needs EchoRL's own checkpoint of step {step}"
        draft.tell(Kind.TO_FILL_IN, "spec.resume", text)


def _transfer(settings: Settings, draft: ManifestDraft) -> None:
    key = "weight_broadcast.type"
    kind = settings.text(key)
    if kind is None:
        draft.tell(Kind.DEFAULT, key, "filesystem in prime-rl; http stands, by which engines pull the same weights")
    elif kind in _TRANSFERS:
        draft.put("spec.weightTransfer.mode", _TRANSFERS[kind], key)
    elif kind == "nixl":
        draft.say(Kind.NO_COUNTERPART, key, "the manifest has no such transfer; http stands")
    else:
        draft.error(key, ", ".join((*_TRANSFERS, "nixl")), NO_VERSION)
