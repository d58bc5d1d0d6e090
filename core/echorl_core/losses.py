"""The policy-gradient losses: one row each. The manifest, its rules, role configs, trainer and docs follow from it.

A new loss is its row and its name in ``LossType``, its function in ``echorl_trainer.losses``, and the function's name
in ``echorl_trainer.losses.choice``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LossType = Literal["dppo", "ipo", "grpo", "cispo", "reinforce", "custom"]
"""What ``spec.algorithm.loss.type`` takes: every row of ``LOSSES``, and ``custom``, a function of the user's own."""


@dataclass(frozen=True)
class Loss:
    """What the manifest's reference says of a built-in loss, and the settings that it takes."""

    does: str
    """In a few words, for the manifest's reference."""
    gain: str
    """``gain_t`` of docs/algorithms.md, which explains the symbols."""
    source: str
    """Where it is from."""
    settings: Mapping[str, float]
    """The settings that it has, with its defaults."""


KL_TAU = {"kl_tau": 1.0e-3}
LOSSES: Mapping[str, Loss] = {
    "dppo": Loss(
        "drops tokens whose probability moved too far the way their advantage pushes",
        "`keep_t * A_t * r_t`, where `keep_t = 0` if `A_t > 0` and `d_t > maskHigh`, or `A_t <= 0` and "
        "`d_t < -maskLow`",
        "DPPO, binary total variation (arXiv:2602.04879)",
        {"mask_low": 0.2, "mask_high": 0.2, **KL_TAU},
    ),
    "ipo": Loss(
        "drops tokens whose probability moved too far either way",
        "`keep_t * A_t * r_t`, where `keep_t = 0` if `d_t > maskHigh` or `d_t < -maskLow`",
        "INTELLECT Policy Optimization (documentation of prime-rl)",
        {"mask_low": 0.3, "mask_high": 0.3, **KL_TAU},
    ),
    "grpo": Loss(
        "clips the ratio's gain",
        "`min(r_t * A_t, clip(r_t, 1 - clipLow, 1 + clipHigh) * A_t)`",
        "PPO (arXiv:1707.06347) eq. 7, GRPO (arXiv:2402.03300) eq. 3; two bounds: DAPO (arXiv:2503.14476)",
        {"clip_low": 0.2, "clip_high": 0.28, **KL_TAU},
    ),
    "cispo": Loss(
        "clips the ratio as a coefficient, and every token keeps a gradient",
        "`stopgrad(clip(r_t, 1 - clipLow, 1 + clipHigh)) * A_t * lp_t`",
        "CISPO, MiniMax-M1 (arXiv:2506.13585)",
        {"clip_low": 1.0, "clip_high": 0.28, **KL_TAU},
    ),
    "reinforce": Loss(
        "no ratio, for fresh samples alone", "`A_t * lp_t`", "Williams 1992 (doi:10.1007/BF00992696)", KL_TAU
    ),
}
"""By type."""
OPD_SETTINGS: Mapping[str, float] = {"mask_low": 0.2, **KL_TAU}
"""Settings of mode opd's own loss, with their defaults."""


def losses_with(setting: str) -> tuple[str, ...]:
    """Types of losses that have a setting."""
    return tuple(name for name, loss in LOSSES.items() if setting in loss.settings)


def bounded_losses() -> tuple[str, ...]:
    """Types of losses that drop or clip tokens by the ratio of the trainer's probability and the sampler's."""
    return tuple(name for name, loss in LOSSES.items() if loss.settings.keys() - KL_TAU.keys())


def listed(words: Sequence[str]) -> str:
    """Join words for a sentence: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def types_told() -> str:
    """What ``type`` means, for the manifest's reference."""
    told = [f"``{name}``: {loss.does}" for name, loss in LOSSES.items()]
    return f"{'; '.join(told)}; ``custom``: a function of your own."


def setting_told(setting: str, meaning: str) -> str:
    """What a setting means, for the manifest's reference: the losses that have it, their defaults, and ``meaning``."""
    defaults = {name: LOSSES[name].settings[setting] for name in losses_with(setting)}
    shared = len(set(defaults.values())) == 1
    told = [f"``{name}``" if shared else f"``{name}`` (default {value:g})" for name, value in defaults.items()]
    which = f"Only for {listed(told)}" if len(told) < len(LOSSES) else "Not for ``custom``"
    return f"{which}{f', default {next(iter(defaults.values())):g}' if shared else ''}: {meaning}"
