"""spec.trainer, but for how many GPUs it has."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import tidy
from echorl_cli.convert.settings import Settings

BETAS = (0.9, 0.999)
OUR_BETAS = (0.9, 0.95)
"""The manifest's default betas."""
WARMUP = 10
LR = 1e-6
_OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon", "sign_sgd": "signSgd"}
_SCHEDULES = ("constant", "linear", "cosine")


def build(settings: Settings, draft: ManifestDraft) -> None:
    """Optimizer, schedule and how the model is computed."""
    _optimizer(settings, draft)
    _schedule(settings, draft)
    if settings.value("trainer.model.compile") not in (None, False):
        draft.put("spec.trainer.compile", True, "trainer.model.compile")
    key = "trainer.model.ac"
    if settings.value(key) is not None:
        mode = settings.text(f"{key}.mode") or "full"
        if mode not in {"full", "selective"}:
            draft.error(f"{key}.mode", "full, selective", NO_VERSION)
        draft.put("spec.trainer.activationCheckpointing", mode, f"{key}.mode")


def _optimizer(settings: Settings, draft: ManifestDraft) -> None:
    base, path = "trainer.optim", "spec.trainer.optimizer"
    name = settings.text(f"{base}.type") or "adamw"
    if name not in _OPTIMIZERS:
        draft.error(f"{base}.type", ", ".join(_OPTIMIZERS), NO_VERSION)
        return
    draft.put(f"{path}.type", _OPTIMIZERS[name] if settings.has(f"{base}.type") else None, f"{base}.type")
    betas = [settings.number(f"{base}.betas1"), settings.number(f"{base}.betas2")]
    if name == "adamw" or (name == "muon" and betas != [None, None]):
        defaults = BETAS if name == "adamw" else OUR_BETAS
        pair = [default if value is None else value for value, default in zip(betas, defaults, strict=True)]
        draft.put(f"{path}.betas", [float(value) for value in pair], f"{base}.betas1")
    if name == "sgd" and not settings.has(f"{base}.momentum"):
        draft.tell(Kind.CHANGED, f"{base}.momentum", "prime-rl's default is 0.9 with Nesterov; EchoRL's sgd has none")
    norm = settings.number(f"{base}.max_norm")
    if settings.has(f"{base}.max_norm") and not norm:
        draft.say(Kind.NO_COUNTERPART, f"{base}.max_norm", "gradients are always clipped; raise maxGradNorm")
    else:
        draft.put(f"{path}.maxGradNorm", norm, f"{base}.max_norm")


def _schedule(settings: Settings, draft: ManifestDraft) -> None:
    base, path = "trainer.scheduler", "spec.trainer.optimizer"
    name = settings.text(f"{base}.type") or "constant"
    if name not in _SCHEDULES:
        draft.error(f"{base}.type", ", ".join(_SCHEDULES), NO_VERSION)
        return
    if name == "constant":
        return
    draft.put(f"{path}.schedule", name, f"{base}.type")
    warmup = settings.count(f"{base}.warmup_steps")
    draft.put(f"{path}.warmupSteps", WARMUP if warmup is None else warmup, f"{base}.warmup_steps")
    lowest, lr = settings.number(f"{base}.min_lr"), settings.number("trainer.optim.lr")
    if lowest:
        draft.put(f"{path}.minLrRatio", tidy(lowest / (lr or LR)), f"{base}.min_lr")
    if name == "linear" and not settings.has(f"{base}.decay_steps"):
        text = "prime-rl falls only in the last 10 steps by default; EchoRL from the end of warm-up"
        draft.tell(Kind.CHANGED, f"{base}.decay_steps", text)
