"""spec.trainer, but for how many GPUs it has."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import tidy
from echorl_cli.convert.settings import Settings

MUON_BETAS = (0.9, 0.95)
"""Of what muon leaves to adamw, in both systems."""
LR = 1e-6
_OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon", "sign_sgd": "signSgd"}
_SCHEDULES = ("constant", "linear", "cosine")


def build(settings: Settings, draft: ManifestDraft) -> None:
    """Optimizer, schedule and how the model is computed."""
    _optimizer(settings, draft)
    _schedule(settings, draft)
    _computed(settings, draft)


def _computed(settings: Settings, draft: ManifestDraft) -> None:
    """Compilation and recomputed activations: null turns off what both systems do by default."""
    compiled, recomputed = "trainer.model.compile", "trainer.model.ac"
    if settings.has(compiled):
        draft.put("spec.trainer.compile", settings.value(compiled) not in (None, False), compiled)
    settings.value(recomputed)
    off = settings.has(recomputed) and settings.peek(recomputed) is None
    mode = settings.text(f"{recomputed}.mode") or "full"
    if mode in {"full", "selective"}:
        draft.put("spec.trainer.activationCheckpointing", "none" if off else mode, f"{recomputed}.mode")
    else:
        draft.error(f"{recomputed}.mode", "full, selective", NO_VERSION)


def _optimizer(settings: Settings, draft: ManifestDraft) -> None:
    base, path = "trainer.optim", "spec.trainer.optimizer"
    name = settings.text(f"{base}.type") or "adamw"
    if name not in _OPTIMIZERS:
        draft.error(f"{base}.type", ", ".join(_OPTIMIZERS), NO_VERSION)
        return
    draft.put(f"{path}.type", _OPTIMIZERS[name] if settings.has(f"{base}.type") else None, f"{base}.type")
    keys = (f"{base}.betas1", f"{base}.betas2")
    if name == "adamw" or (name == "muon" and any(settings.has(key) for key in keys)):
        pair = [settings.number(key) for key in keys]
        if name == "muon":
            pair = [pair[at] if settings.has(keys[at]) else MUON_BETAS[at] for at in (0, 1)]
        draft.put(f"{path}.betas", [float(value) for value in pair if value is not None], keys[0])
    if name == "sgd" and not settings.has(f"{base}.momentum"):
        draft.tell(Kind.DEFAULT, f"{base}.momentum", "0.9 with Nesterov in prime-rl; EchoRL's sgd has none")
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
    draft.put(f"{path}.warmupSteps", settings.count(f"{base}.warmup_steps"), f"{base}.warmup_steps")
    lowest, lr = settings.number(f"{base}.min_lr"), settings.number("trainer.optim.lr")
    if lowest:
        draft.put(f"{path}.minLrRatio", tidy(lowest / (lr or LR)), f"{base}.min_lr")
    if name == "linear" and not settings.has(f"{base}.decay_steps"):
        text = "prime-rl falls only in the last 10 steps; EchoRL from the end of warm-up"
        draft.tell(Kind.DEFAULT, f"{base}.decay_steps", text)
