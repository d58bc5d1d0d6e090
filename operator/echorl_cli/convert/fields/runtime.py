"""Everything else: steps, seed, checkpoints, resume, transfer of weights, monitors, the run's name."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import label
from echorl_cli.convert.settings import Settings

_ROLES = ("", "trainer.", "orchestrator.")
_TRANSFERS = {"filesystem": "disk", "nccl": "nccl"}
_LONGEST_NAME = 40
FALLBACK_NAME = "converted"


def of_roles(key: str) -> tuple[str, ...]:
    """The key of the run and of the roles that may have it too."""
    return tuple(f"{role}{key}" for role in _ROLES)


def name(settings: Settings, draft: ManifestDraft, given: str | None) -> None:
    """metadata.name: as given, or as the run is called in the files."""
    keys = ("run.name", *of_roles("monitors.wandb.name"))
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
    """What is left of spec."""
    _steps(settings, draft)
    _checkpoints(settings, draft)
    _resume(settings, draft)
    _transfer(settings, draft)
    key = "trainer.enable_token_export"
    if settings.flag(key):
        draft.put("spec.tokenExport.enabled", True, key)
    _monitors(settings, draft)


def _monitors(settings: Settings, draft: ManifestDraft) -> None:
    to, source = "spec.monitors.wandb", "monitors.wandb"
    if not any(settings.peek(key) is not None for key in of_roles(source)):
        return
    project, entity, offline = (settings.one(*of_roles(f"{source}.{key}")) for key in ("project", "entity", "offline"))
    for field, key in (("project", project), ("entity", entity)):
        draft.put(f"{to}.{field}", settings.text(key) if key else None, key or "")
    if offline and settings.flag(offline):
        draft.put(f"{to}.mode", "offline", offline)
    else:
        draft.tell(Kind.TO_FILL_IN, f"{to}.secretName", "a Secret with the API key")


def _steps(settings: Settings, draft: ManifestDraft) -> None:
    key = settings.one(*of_roles("max_steps"))
    if key:
        draft.put("spec.maxSteps", settings.count(key), key)
    else:
        draft.tell(Kind.TO_FILL_IN, "spec.maxSteps", "the files train without end; a manifest has 500 by default")
    key = draft.first("orchestrator.seed", "orchestrator.buffer.seed", "data.seed") or ""
    draft.put("spec.seed", settings.count(key) if key else None, key)


def _checkpoints(settings: Settings, draft: ManifestDraft) -> None:
    for name_, field in (("interval", "interval"), ("keep_last", "keepLast"), ("keep_interval", "keepEvery")):
        key = settings.one(*of_roles(f"ckpt.{name_}")) or ""
        draft.put(f"spec.checkpoint.{field}", settings.count(key) if key else None, key)
    saves = settings.one(*of_roles("ckpt.interval"))
    if saves and not settings.one(*of_roles("ckpt.keep_last")):
        text = "prime-rl keeps every checkpoint when it is not set; EchoRL the newest 2, and those of keepEvery"
        draft.tell(Kind.DEFAULT, "ckpt.keep_last", text)


def _resume(settings: Settings, draft: ManifestDraft) -> None:
    key = settings.one(*of_roles("ckpt.resume_step"))
    step = settings.count(key) if key else None
    if key and step is not None and step >= 0:
        draft.put("spec.resume.policy", "FromStep", key)
        draft.put("spec.resume.step", step, key)
        text = f"checkpoints of prime-rl cannot be read; FromStep needs EchoRL's own checkpoint of step {step}"
        draft.tell(Kind.TO_FILL_IN, "spec.resume", text)


def _transfer(settings: Settings, draft: ManifestDraft) -> None:
    keys = (*of_roles("weight_broadcast.type"), "inference.weight_broadcast.type")
    key = settings.one(*keys)
    if key is None:
        draft.tell(Kind.DEFAULT, keys[0], "filesystem in prime-rl; http stands, by which engines pull the same weights")
        return
    kind = settings.text(key)
    if kind in _TRANSFERS:
        draft.put("spec.weightTransfer.mode", _TRANSFERS[kind], key)
    elif kind == "nixl":
        draft.say(Kind.NO_COUNTERPART, key, "the manifest has no such transfer; http stands")
    else:
        draft.error(key, ", ".join((*_TRANSFERS, "nixl")), NO_VERSION)
