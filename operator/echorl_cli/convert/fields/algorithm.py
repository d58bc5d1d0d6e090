"""spec.algorithm: mode, loss and advantage, of the run and of its environments."""

from dataclasses import dataclass, field
from typing import Any

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import hook, tidy
from echorl_cli.convert.settings import Settings

ALGORITHMS = ("grpo", "echo", "max_rl", "rae", "opd", "sft")
FOREIGN_ALGORITHMS = ("hierarchical_grpo", "opsd", "debug")
SHAPINGS = ("tokens", "turns")
ADVANTAGES = ("default", "custom", "ema_per_member")
LOSSES = ("default", "ipo", "custom")
DEFAULT_KL_TAU = 0.001
EARLIER_LOSS = (
    "the mask by probability (dppo) of today's prime-rl; its earlier versions, whose spellings these files use, "
    "bounded the ratio: set spec.algorithm.loss if you mean that"
)
NO_PENALTY = "the manifest has no linear penalty; as a function of yours: advantage.type custom (docs/algorithms.md)"
LOSS_CONTRACT = (
    "EchoRL calls it with LossInputs of one sequence and the kwargs, and wants a loss for each token; "
    "see docs/algorithms.md"
)
ADVANTAGE_CONTRACT = (
    "EchoRL calls it with AdvantageInputs of one group and the kwargs, and wants a list of numbers; "
    "see docs/algorithms.md"
)


@dataclass
class Chosen:
    """What one scope, the run or an environment, says about its algorithm."""

    source: str
    """The key that says it."""
    mode: str = "rl"
    advantage: dict[str, Any] = field(default_factory=lambda: {"type": "groupMean"})
    echo: str | None = None
    """Where its table of ECHO roles is, if the algorithm has one."""


def chosen(settings: Settings, draft: ManifestDraft, base: str) -> Chosen | None:
    """What ``base`` says; None if it says nothing. ``base``: ``orchestrator``, or an environment."""
    algo, advantage = f"{base}.algo.type", f"{base}.advantage"
    name = settings.text(algo)
    older = settings.has(advantage)
    _sampling(settings, draft, f"{base}.algo.sampling.source")
    if name is None and not older:
        return None
    if older and name not in {None, "grpo"}:
        draft.error(algo, f"no {settings.written(advantage)} beside it", "both say how advantages are made")
        return None
    return _older(settings, draft, advantage) if older else _named(settings, draft, algo, str(name), f"{base}.algo")


def _named(settings: Settings, draft: ManifestDraft, key: str, name: str, base: str) -> Chosen | None:
    if name in FOREIGN_ALGORITHMS:
        draft.refuse(key, ", ".join(ALGORITHMS), "the manifest has no such algorithm")
        return None
    if name not in ALGORITHMS:
        draft.error(key, ", ".join((*ALGORITHMS, *FOREIGN_ALGORITHMS)), NO_VERSION)
        return None
    choice = Chosen(key, advantage=_group_mean(settings, draft, f"{base}.length_penalty"))
    if name in {"opd", "sft"}:
        choice.mode = name
    elif name == "max_rl":
        choice.advantage = {"type": "maxRl"}
    elif name == "rae":
        momentum = settings.number(f"{base}.decay")
        choice.advantage = _rae(momentum, "subtractThenUpdate", "member")
    elif name == "echo":
        choice.echo = base
    return choice


def _older(settings: Settings, draft: ManifestDraft, base: str) -> Chosen | None:
    if settings.value(base) is None:
        return Chosen(base, advantage={"type": "none"})
    name = settings.text(f"{base}.type") or "default"
    if name not in ADVANTAGES:
        draft.error(f"{base}.type", ", ".join(ADVANTAGES), NO_VERSION)
        return None
    source = f"{base}.type" if settings.has(f"{base}.type") else base
    choice = Chosen(source, advantage=_group_mean(settings, draft, f"{base}.length_penalty"))
    if name == "custom":
        choice.advantage = {"type": "custom", **hook(settings, draft, base, ADVANTAGE_CONTRACT)}
    elif name == "ema_per_member":
        choice.advantage = _rae(settings.number(f"{base}.momentum"), "updateThenSubtract", "task")
    return choice


def _rae(momentum: float | None, order: str, baseline_per: str) -> dict[str, Any]:
    """A running baseline: of an agent over all tasks in the newest generation, of a task and member in the older."""
    return {"type": "rae", "momentum": momentum, "order": order, "baselinePer": baseline_per}


def _group_mean(settings: Settings, draft: ManifestDraft, base: str) -> dict[str, Any]:
    """Reward minus the group's mean, shaped by length if ``base`` says so."""
    penalty = settings.value(base)
    name = penalty if isinstance(penalty, str) else settings.text(f"{base}.type")
    if penalty is not None and name in {None, "linear"}:
        draft.say(Kind.NO_COUNTERPART, base, NO_PENALTY)
    if penalty is None or name in {None, "linear"}:
        return {"type": "groupMean"}
    if name not in SHAPINGS:
        draft.error(base if isinstance(penalty, str) else f"{base}.type", ", ".join((*SHAPINGS, "linear")), NO_VERSION)
        return {"type": "groupMean"}
    weights = {"completionWeight": "completion_weight", "environmentWeight": "tool_response_weight"}
    shaping = {"by": name, **{to: settings.number(f"{base}.{key}") for to, key in weights.items()}}
    return {"type": "groupMean", "lengthShaping": {key: value for key, value in shaping.items() if value is not None}}


def put_advantage(draft: ManifestDraft, path: str, choice: Chosen) -> None:
    """Write what a scope says; the default of the manifest is left out."""
    for key, value in choice.advantage.items():
        source = f"{choice.source.removesuffix('.type')}.{key}" if key == "kwargs" else choice.source
        draft.put(f"{path}.{key}", value, source)


def build(settings: Settings, draft: ManifestDraft) -> Chosen:
    """Mode, teacher, loss and advantage of the run; returns what environments inherit."""
    run = chosen(settings, draft, "orchestrator")
    if run is not None and run.mode != "rl":
        draft.put("spec.algorithm.mode", run.mode, run.source)
    mode = "rl" if run is None else run.mode
    if mode == "rl":
        _loss(settings, draft)
    elif settings.has("trainer.loss"):
        draft.say(Kind.NO_COUNTERPART, "trainer.loss", f"mode {mode} has a loss of its own")
    if run is not None and run.advantage != {"type": "groupMean"}:
        put_advantage(draft, "spec.algorithm.advantage", run)
    _teacher(settings, draft, mode)
    return run or Chosen("")


def _sampling(settings: Settings, draft: ManifestDraft, key: str) -> None:
    """Who samples: the policy; an endpoint was read as the teacher."""
    source = settings.value(key)
    if source is not None and source != "policy":
        draft.error(key, "policy, or a table with name and base_url")


def _teacher(settings: Settings, draft: ManifestDraft, mode: str) -> None:
    base, path = "orchestrator.algo.teacher", "spec.algorithm.teacher"
    if mode == "rl":
        for name in ("name", "base_url"):
            if settings.value(f"{base}.{name}") is not None:
                draft.say(Kind.NO_COUNTERPART, f"{base}.{name}", "mode rl has no teacher")
        return
    draft.put(f"{path}.model", settings.text(f"{base}.name"), f"{base}.name")
    key = f"{base}.base_url"
    urls = settings.value(key)
    if isinstance(urls, list) and urls:
        if len(urls) > 1:
            draft.say(Kind.CHANGED, key, "a teacher has one URL; the first stands, put a router in front of several")
        urls = urls[0]
    draft.put(f"{path}.url", urls or None, key)


def _loss(settings: Settings, draft: ManifestDraft) -> None:
    base, path = "trainer.loss", "spec.algorithm.loss"
    name = settings.text(f"{base}.type") or "default"
    if settings.spellings.earlier and not settings.names(base):
        draft.tell(Kind.DEFAULT, base, EARLIER_LOSS)
    if name not in LOSSES:
        draft.error(f"{base}.type", ", ".join(LOSSES), NO_VERSION)
    elif name == "custom":
        draft.put(f"{path}.type", "custom", f"{base}.type")
        own = hook(settings, draft, base, LOSS_CONTRACT)
        for field_name, key in (("import", "import_path"), ("kwargs", "kwargs")):
            draft.put(f"{path}.{field_name}", own.get(field_name), f"{base}.{key}")
    else:
        _masks(settings, draft, ipo=name == "ipo")
        _weights(settings, draft)


def _masks(settings: Settings, draft: ManifestDraft, *, ipo: bool) -> None:
    """Bounds of both masks; prime-rl's IPO has one for both sides."""
    base, path = "trainer.loss", "spec.algorithm.loss"
    if ipo:
        key = f"{base}.ipo_threshold"
        threshold = settings.number(key)
        draft.put(f"{path}.type", "ipo", f"{base}.type")
        for side in ("maskLow", "maskHigh"):
            draft.put(f"{path}.{side}", threshold, key)
        return
    for side, name in (("maskLow", "dppo_mask_low"), ("maskHigh", "dppo_mask_high")):
        draft.put(f"{path}.{side}", settings.number(f"{base}.{name}"), f"{base}.{name}")


def _weights(settings: Settings, draft: ManifestDraft) -> None:
    """``adv_tau * A + kl_tau * KL`` as ``rlWeight * (A + klTau * KL)``."""
    tau, penalty = settings.number("trainer.loss.adv_tau"), settings.number("trainer.loss.kl_tau")
    if tau is not None and tau <= 0:
        draft.refuse("trainer.loss.adv_tau", "a number above 0", "the manifest has no loss of the penalty alone")
        tau = None
    if tau is not None and tau != 1:
        draft.put("spec.algorithm.rlWeight", tau, "trainer.loss.adv_tau")
        penalty = tidy((DEFAULT_KL_TAU if penalty is None else penalty) / tau)
    draft.put("spec.algorithm.loss.klTau", penalty, "trainer.loss.kl_tau")
