"""A user's own policy-gradient loss, by import path.

The function is called once for each sequence and sees nothing of other sequences, of how they are packed, or of tokens
that do not train. It returns a loss for each token; weights and the denominator are applied to it here. So a custom
loss is invariant to order and split whatever it computes, and ``rlWeight`` and ``aggregation`` hold for it too.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from echorl_core import hooks
from echorl_core.config import HookConfig
from echorl_trainer.losses.component import LossOutput, check_denominator, graph_anchor, ratio_metrics
from echorl_trainer.losses.tokens import PolicyTokens

_FIELD = "spec.algorithm.loss.import"
_METRIC = re.compile(r"[a-z0-9_]{1,64}")


class HookError(ValueError):
    """A custom loss cannot be loaded, raised, or returned what is no loss; the message names it."""


@dataclass(frozen=True)
class LossInputs:
    """The trainable tokens of one sequence, n of them, in order."""

    policy_logprobs: Tensor
    """float32 [n], nats, under the weights being trained; gradients flow through it."""
    sampler_logprobs: Tensor
    """float32 [n], nats, under the weights that drew the tokens."""
    advantages: Tensor
    """float32 [n]."""
    environment: str
    """Name of the sequence's environment."""


@dataclass(frozen=True)
class LossOutputs:
    """What a custom loss returns."""

    loss: Tensor
    """float32 [n]: a loss for each token, without weights and denominator."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """float32 [n] by name (``[a-z0-9_]+``); the step's metric ``custom/<name>`` is the mean over its RL tokens."""


class CustomLoss:
    """The ``rl`` component by a user's function."""

    by_token = False
    """The function sees a whole sequence."""

    def __init__(self, function: Callable[..., Any], hook: HookConfig) -> None:
        self._function, self._hook = function, hook

    @property
    def name(self) -> str:
        """Name of the loss in messages about the whole step."""
        return f"{_FIELD} {self._hook.import_path!r}"

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        """The micro-batch's share of the step's loss.

        Raises:
            HookError: the function raised, or returned what is no loss.
        """
        check_denominator(denominator)
        rows = tokens.sequences.rows
        outputs = [self._output(inputs, sample) for inputs, sample in _by_sequence(tokens)]
        # The anchor alone where no token of the micro-batch trains: the rank runs the same backward as its peers.
        loss = graph_anchor(tokens.policy_logprobs)
        if outputs:
            weights = tokens.weights[rows] / denominator
            loss = loss + (weights * torch.cat([output.loss for output in outputs])).sum()
        return LossOutput(loss, self._metrics(tokens, outputs))

    def _output(self, inputs: LossInputs, sample: str) -> LossOutputs:
        try:
            found = self._function(inputs, **self._hook.kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise HookError(f"{self.name}: raised {hooks.told(error)}; sample {sample}") from error
        if problem := _problem(found, inputs.policy_logprobs):
            raise HookError(f"{self.name}: {problem}; sample {sample}")
        output: LossOutputs = found
        return output

    def _metrics(self, tokens: PolicyTokens, outputs: Sequence[LossOutputs]) -> dict[str, Tensor]:
        active = tokens.weights != 0
        log_ratio = torch.where(active, tokens.policy_logprobs - tokens.sampler_logprobs, 0.0).detach()
        metrics = ratio_metrics(log_ratio, active)
        names = sorted({name for output in outputs for name in output.metrics})
        for name in names:
            if not all(name in output.metrics for output in outputs):
                raise HookError(f"{self.name}: metric {name!r} was returned for some sequences and not for others")
            values = torch.cat([output.metrics[name].detach() for output in outputs])
            metrics[f"custom/{name}"] = torch.zeros_like(log_ratio).index_copy(0, tokens.sequences.rows, values)
        return metrics


def load_loss(hook: HookConfig, python_path: Sequence[str]) -> CustomLoss:
    """The loss of a hook; ``python_path`` goes before ``sys.path``.

    Raises:
        HookError: the import path leads to nothing that can be called.
    """
    sys.path[:0] = [folder for folder in python_path if folder not in sys.path]
    try:
        found = hooks.imported(hook.import_path)
    except hooks.HookImportError as error:
        raise HookError(f"{_FIELD}: {error}") from error
    if not callable(found):
        raise HookError(f"{_FIELD}: {hook.import_path!r} is a {type(found).__name__}, accepted is a function")
    return CustomLoss(found, hook)


def _by_sequence(tokens: PolicyTokens) -> Iterator[tuple[LossInputs, str]]:
    """What the function gets, and the id of the sample."""
    sequences = tokens.sequences
    if not sequences.lengths:
        return
    columns = (tokens.policy_logprobs, tokens.sampler_logprobs, tokens.advantages)
    parts = zip(*(torch.split(column[sequences.rows], sequences.lengths) for column in columns), strict=True)
    names = zip(sequences.environments, sequences.sample_ids, strict=True)
    for (policy, sampler, advantages), (environment, sample) in zip(parts, names, strict=True):
        yield LossInputs(policy, sampler, advantages, environment), sample


def _problem(found: Any, policy_logprobs: Tensor) -> str | None:
    """Why an answer is no loss; None if it is one. Values are not looked at: that would wait for the device."""
    if not isinstance(found, LossOutputs):
        return f"returned {type(found).__name__}, accepted is echorl_trainer.losses.LossOutputs"
    problem = _column_problem("loss", found.loss, policy_logprobs)
    if problem is None and not found.loss.requires_grad:
        problem = "loss does not require grad, accepted is one computed from policy_logprobs"
    if problem is None and not isinstance(found.metrics, Mapping):
        problem = f"metrics is a {type(found.metrics).__name__}, accepted is a mapping from names to tensors"
    if problem is not None:
        return problem
    for name, values in found.metrics.items():
        if not isinstance(name, str) or not _METRIC.fullmatch(name):
            return f"metric {name!r}: accepted are names of lower-case letters, digits and '_'"
        if problem := _column_problem(f"metric {name!r}", values, policy_logprobs):
            return problem
    return None


def _column_problem(what: str, values: Any, policy_logprobs: Tensor) -> str | None:
    accepted = f"accepted is a float32 tensor of shape {list(policy_logprobs.shape)} on {policy_logprobs.device}"
    if not isinstance(values, Tensor):
        return f"{what} is a {type(values).__name__}, {accepted}"
    found = (values.shape, values.dtype, values.device)
    if found != (policy_logprobs.shape, torch.float32, policy_logprobs.device):
        dtype = str(values.dtype).removeprefix("torch.")
        return f"{what} is a {dtype} tensor of shape {list(values.shape)} on {values.device}, {accepted}"
    return None
