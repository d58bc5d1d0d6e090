"""Environments of a manifest as the orchestrator's config has them."""

import math

from echorl_core import config, names
from echorl_manifest.compile.algorithms import hook_config, overrides_config
from echorl_manifest.compile.placement import Placement
from echorl_manifest.models.base import duration_seconds
from echorl_manifest.models.environments import Echo, Environment, EvalEnvironment, Member, Sampling, TrainEnvironment
from echorl_manifest.rules.environments import ECHO_ROLES

EPISODES_PER_WORKER = 256
ECHO_ROLES_OF_A_FILTER = ("system", "user", "tool")
"""What a filter without roles chooses from: whatever the policy did not write, but warnings of the harness."""


def _sampling(sampling: Sampling) -> config.SamplingConfig:
    return config.SamplingConfig(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_completion_tokens=sampling.max_completion_tokens,
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        repetition_penalty=1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
    )


def _echo(echo: Echo) -> config.EchoConfig:
    roles = {}
    for role in ECHO_ROLES:
        if (entry := getattr(echo, role)) is not None:
            tool_names = getattr(entry, "tool_names", None)
            roles[role] = config.EchoRoleConfig(
                alpha=entry.alpha, tool_names=None if tool_names is None else list(tool_names)
            )
    if not roles:
        roles = dict.fromkeys(ECHO_ROLES_OF_A_FILTER, config.EchoRoleConfig(alpha=1.0))
    return config.EchoConfig(**roles, filter=None if echo.filter is None else hook_config(echo.filter))


def _curriculum(environment: TrainEnvironment) -> config.CurriculumConfig | None:
    curriculum = environment.curriculum
    return None if curriculum is None else config.CurriculumConfig(**curriculum.model_dump())


def _seat(member: Member) -> config.SeatConfig:
    secret = member.secret_name
    return config.SeatConfig(
        policy=member.policy,
        url=member.url,
        model=member.model,
        key_variable=None if secret is None else names.secret_variable(secret),
    )


def environment_config(environment: Environment, placement: Placement) -> config.EnvironmentConfig:
    """An environment as the orchestrator plays it. One that is an image is played at the address of its server."""
    is_train = isinstance(environment, TrainEnvironment)
    holdout = environment.holdout
    workers = environment.workers
    echo = environment.echo if isinstance(environment, TrainEnvironment) else None
    url = placement.environment_urls.get(environment.name)
    return config.EnvironmentConfig(
        name=environment.name,
        type=environment.type if url is None else f"openenv:{url}",
        args=environment.args,
        weight=environment.weight if isinstance(environment, TrainEnvironment) else 1.0,
        workers=math.ceil(environment.max_concurrent / EPISODES_PER_WORKER) if workers == "auto" else workers,
        holdout_fraction=None if holdout is None else holdout.fraction,
        holdout_seed=0 if holdout is None else holdout.seed,
        holdout_side=(holdout.side if holdout else None) or ("train" if is_train else "eval"),
        max_turns=environment.max_turns,
        episode_timeout_s=duration_seconds(environment.episode_timeout),
        on_timeout=environment.on_timeout,
        max_retries=environment.max_retries,
        max_infrastructure_share=environment.max_infrastructure_share
        if isinstance(environment, TrainEnvironment)
        else 1.0,
        max_concurrent=environment.max_concurrent,
        state_columns=list(environment.state_columns),
        sampling=_sampling(environment.sampling),
        echo=None if echo is None else _echo(echo),
        algorithm=overrides_config(environment)
        if isinstance(environment, TrainEnvironment)
        else config.OverridesConfig(),
        members={name: _seat(member) for name, member in environment.members.items()},
        drop_members=list(environment.drop_members),
        think_tags=list(environment.think_tags),
        curriculum=_curriculum(environment) if isinstance(environment, TrainEnvironment) else None,
        train_branches=environment.train_branches if isinstance(environment, TrainEnvironment) else "used",
    )


def eval_config(environment: EvalEnvironment, placement: Placement) -> config.EvalConfig:
    """An eval environment, with when and how much of it is played."""
    return config.EvalConfig(
        environment=environment_config(environment, placement),
        interval=environment.interval,
        num_examples=environment.num_examples,
        group_size=environment.group_size,
        at_start=environment.at_start,
    )
