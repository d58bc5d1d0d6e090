"""The dashboard of one run: is it learning, what is it waiting for, would it survive."""

from monitoring.dashboards.boards import Board, Mark, Plot, Query, Row, Unit

_ORCHESTRATOR, _TRAINER = "echorl_orchestrator", "echorl_trainer"
_OF = '{namespace="$namespace",run="$run"}'
_WINDOW = "[$__rate_interval]"


def _value(name: str, by: str = "", role: str = _ORCHESTRATOR) -> str:
    """Newest value; the maximum, because ranks tell the same and a restart shows two pods for a moment."""
    return f"max{f' by ({by})' if by else ''} ({role}_{name}{_OF})"


def _rate(name: str, by: str = "", role: str = _ORCHESTRATOR, how: str = "max") -> str:
    return f"{how}{f' by ({by})' if by else ''} (rate({role}_{name}{_OF}{_WINDOW}))"


def _quantile(quantile: float, name: str) -> Query:
    return Query(
        f"histogram_quantile({quantile}, {_rate(f'{name}_bucket', 'le', how='sum')})", f"{quantile * 100:.0f} %"
    )


def _mean(name: str, by: str) -> str:
    return f"{_rate(f'{name}_sum', by, how='sum')} / {_rate(f'{name}_count', by, how='sum')}"


_LEARNING = Row(
    "Is it learning?",
    (
        Plot(
            "Reward",
            Unit.NONE,
            "Mean reward of each batch.",
            (Query(_value("reward", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Eval reward",
            Unit.NONE,
            "Mean reward of the newest eval.",
            (Query(_value("eval_reward", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Environment tokens",
            Unit.NATS,
            "Negative log-likelihood of what environments say: over all of it, over what ECHO trains, and in evals.",
            (
                Query(_value("env_nll_nats", "environment"), "{{environment}}"),
                Query(_value("echo_nll_nats", "environment"), "{{environment}}, ECHO"),
                Query(_value("eval_env_nll_nats", "environment"), "{{environment}}, eval"),
            ),
        ),
        Plot(
            "ECHO's share of trained tokens",
            Unit.SHARE,
            "How much of the training signal is the environment's own words.",
            (Query(_value("echo_tokens_ratio"), "ECHO"),),
        ),
        Plot(
            "Entropy",
            Unit.NATS,
            "Of the policy over action tokens. A fall towards 0 ends exploration.",
            (Query(_value("entropy_nats", "environment"), "{{environment}}"),),
        ),
        Plot(
            "KL between sampler and trainer",
            Unit.NATS,
            "How far the policy that trains is from the one that sampled.",
            (
                Query(_value("mismatch_kl_nats", "environment"), "{{environment}}"),
                Query(_value("logprob_gap_nats", role=_TRAINER), "largest logprob gap, same version"),
            ),
        ),
        Plot(
            "Masked action tokens",
            Unit.SHARE,
            "Outside of the trust region: they train nothing.",
            (Query(_value("masked_ratio", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Staleness",
            Unit.VERSIONS,
            "Between sampling and training of a batch's episodes. At the bound, older ones are dropped.",
            (
                Query(_value("staleness_max_versions"), "oldest episode"),
                Query(_value("staleness_mean_versions"), "mean"),
                Query(_value("staleness_bound_versions"), "bound"),
            ),
        ),
        Plot(
            "Loss",
            Unit.NONE,
            "By component, each with its own denominator.",
            (Query(_value("loss", "component", _TRAINER), "{{component}}"),),
        ),
        Plot(
            "Gradient norm",
            Unit.NONE,
            "Before clipping.",
            (Query(_value("grad_norm", role=_TRAINER), "norm"),),
        ),
    ),
)

_WAITING = Row(
    "What does it wait for?",
    (
        Plot(
            "Progress",
            Unit.STEPS,
            "The distance of sealed and trained is what the trainer has ahead of it.",
            (
                Query(_value("sealed_step"), "sealed"),
                Query(_value("trained_step"), "trained"),
                Query(_value("committed_step"), "committed"),
                Query(_value("last_step"), "last"),
            ),
        ),
        Plot(
            "Tokens",
            Unit.TOKENS_A_SECOND,
            "Both sides: what engines sample and what the trainer trains.",
            (
                Query(_rate("engines_generation_tokens_total", how="sum"), "sampled by engines"),
                Query(_rate("sampled_tokens_total", how="sum"), "sampled, episode ended"),
                Query(_rate("trained_tokens_total", how="sum"), "trained"),
            ),
        ),
        Plot(
            "Who waits",
            Unit.SHARE,
            "The trainer for a batch, or engines without an episode. Both near 0 is the aim.",
            (
                Query(
                    f'max (rate({_TRAINER}_phase_seconds_total{_OF[:-1]},phase="waitingBatch"}}{_WINDOW}))',
                    "trainer waits for a batch",
                ),
                Query(_rate("idle_seconds_total"), "engines idle"),
            ),
        ),
        Plot(
            "The trainer's time",
            Unit.SHARE,
            "By phase, as it passes; of the rank that has most of it.",
            (Query(_rate("phase_seconds_total", "phase", _TRAINER), "{{phase}}"),),
            stacked=True,
        ),
        Plot(
            "A step's length",
            Unit.SECONDS,
            "By part, mean of the steps that ended.",
            (
                Query(
                    f"{_rate('step_seconds_total', 'part', _TRAINER)} / ignoring (part) group_left () "
                    f"({_rate('steps_total')} > 0)",
                    "{{part}}",
                ),
            ),
            stacked=True,
        ),
        Plot(
            "Episodes",
            Unit.NONE,
            "Running ones, those that wait for a batch, and how many more may be started.",
            (
                Query(_value("episodes_running"), "running"),
                Query(_value("episodes_ready"), "ready"),
                Query(_value("episodes_capacity"), "capacity"),
            ),
        ),
        Plot(
            "Ends of episodes",
            Unit.A_SECOND,
            "Failures by kind, and finished ones that train nothing by reason.",
            (
                Query(_rate("episodes_total", "result", how="sum"), "{{result}}"),
                Query(_rate("episode_failures_total", "kind", how="sum"), "failed: {{kind}}"),
                Query(_rate("episodes_dropped_total", "reason", how="sum"), "dropped: {{reason}}"),
            ),
        ),
    ),
)

_ENGINES = Row(
    "Engines",
    (
        Plot(
            "Policy version by engine",
            Unit.NONE,
            "Beside the newest trained step: the distance is what engines lag behind.",
            (
                Query(_value("engine_version", "engine"), "{{engine}}"),
                Query(_value("trained_step"), "trained"),
            ),
        ),
        Plot(
            "Engines by state",
            Unit.NONE,
            "Only serving ones take new requests.",
            (Query(_value("engines", "state"), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Requests",
            Unit.NONE,
            "Over the pool. Waiting ones for long: more engines, or fewer episodes at a time.",
            (
                Query(_value("engines_running_requests"), "running"),
                Query(_value("engines_waiting_requests"), "waiting"),
            ),
        ),
        Plot(
            "KV cache and prefix hits",
            Unit.SHARE,
            "Cache in use, and the share of prompt tokens that were in it already.",
            (
                Query(_value("engines_kv_cache_mean_ratio"), "in use, mean"),
                Query(_value("engines_kv_cache_max_ratio"), "in use, fullest"),
                Query(
                    f"{_rate('engines_prefix_hit_tokens_total')} / {_rate('engines_prefix_query_tokens_total')}",
                    "prefix hits",
                ),
            ),
        ),
        Plot(
            "Time to first token",
            Unit.SECONDS,
            "Over the pool.",
            (
                _quantile(0.5, "engines_time_to_first_token_seconds"),
                _quantile(0.95, "engines_time_to_first_token_seconds"),
            ),
        ),
        Plot(
            "Inter-token latency",
            Unit.SECONDS,
            "Over the pool.",
            (
                _quantile(0.5, "engines_inter_token_latency_seconds"),
                _quantile(0.95, "engines_inter_token_latency_seconds"),
            ),
        ),
        Plot(
            "Weight updates",
            Unit.SECONDS,
            "Mean length by part. Generation stands still during pause only.",
            (Query(_mean("weight_update_seconds", "part"), "{{part}}"),),
        ),
    ),
)

_SURVIVAL = Row(
    "Would it survive?",
    (
        Plot(
            "Age of the newest checkpoint",
            Unit.SECONDS,
            "What a restart goes back by.",
            (Query(_value("checkpoint_age_seconds"), "age"),),
        ),
        Plot(
            "Steps that a restart would redo",
            Unit.STEPS,
            "Beside the interval that is configured.",
            (
                Query(_value("uncommitted_steps"), "uncommitted"),
                Query(_value("checkpoint_interval_steps"), "interval"),
            ),
        ),
        Plot(
            "Attempt",
            Unit.NONE,
            "One more after each restart of the gang.",
            (Query(_value("attempt"), "attempt"),),
        ),
        Plot(
            "Free space on the volume",
            Unit.BYTES,
            "Checkpoints, records and broadcasts share it.",
            (
                Query(_value("volume_free_bytes"), "free"),
                Query(_value("volume_size_bytes"), "size"),
            ),
        ),
    ),
)

_ATTEMPT = _value("attempt")

RUN = Board(
    uid="echorl-run",
    title="EchoRL / Run",
    text="One run: is it learning, what does it wait for, would it survive.",
    rows=(_LEARNING, _WAITING, _ENGINES, _SURVIVAL),
    chosen=(
        ("namespace", f"label_values({_ORCHESTRATOR}_attempt, namespace)"),
        ("run", f'label_values({_ORCHESTRATOR}_attempt{{namespace="$namespace"}}, run)'),
    ),
    marks=(Mark("Restarts", f"{_ATTEMPT} > (min (min_over_time({_ORCHESTRATOR}_attempt{_OF}[5m])))"),),
)
