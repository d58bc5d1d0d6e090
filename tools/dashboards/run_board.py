"""The dashboard of one run: is it learning, what is it waiting for, would it survive."""

from tools.dashboards.boards import Board, Mark, Plot, Query, Row, Unit
from tools.dashboards.run_queries import BROKER, OF_RUN, ORCHESTRATOR, TRAINER, WINDOW, mean, quantile, rate, value

_LEARNING = Row(
    "Is it learning?",
    (
        Plot(
            "Reward",
            Unit.NONE,
            "Mean reward of each batch.",
            (Query(value("reward", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Eval reward",
            Unit.NONE,
            "Mean reward of the newest eval.",
            (Query(value("eval_reward", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Environment tokens",
            Unit.NATS,
            "Negative log-likelihood of what environments say: over all of it, over what ECHO trains, and in evals.",
            (
                Query(value("env_nll_nats", "environment"), "{{environment}}"),
                Query(value("echo_nll_nats", "environment"), "{{environment}}, ECHO"),
                Query(value("eval_env_nll_nats", "environment"), "{{environment}}, eval"),
            ),
        ),
        Plot(
            "ECHO's share of trained tokens",
            Unit.SHARE,
            "How much of the training signal is the environment's own words, and from how many episodes rewards teach.",
            (Query(value("echo_tokens_ratio"), "ECHO"), Query(value("rl_episodes_ratio"), "episodes with RL signal")),
        ),
        Plot(
            "Entropy",
            Unit.NATS,
            "Of the policy over action tokens. A fall towards 0 ends exploration.",
            (Query(value("entropy_nats", "environment"), "{{environment}}"),),
        ),
        Plot(
            "KL between sampler and trainer",
            Unit.NATS,
            "How far the policy that trains is from the one that sampled.",
            (
                Query(value("mismatch_kl_nats", "environment"), "{{environment}}"),
                Query(value("logprob_gap_nats", role=TRAINER), "largest logprob gap, same version"),
            ),
        ),
        Plot(
            "Masked action tokens",
            Unit.SHARE,
            "Outside of the trust region: they train nothing.",
            (Query(value("masked_ratio", "environment"), "{{environment}}"),),
        ),
        Plot(
            "Staleness",
            Unit.VERSIONS,
            "Between sampling and training of a batch's episodes. At the bound, older ones are dropped.",
            (
                Query(value("staleness_max_versions"), "oldest episode"),
                Query(value("staleness_mean_versions"), "mean"),
                Query(value("staleness_bound_versions"), "bound"),
            ),
        ),
        Plot(
            "Loss",
            Unit.NONE,
            "By component, each with its own denominator.",
            (Query(value("loss", "component", TRAINER), "{{component}}"),),
        ),
        Plot(
            "Gradient norm",
            Unit.NONE,
            "Before clipping.",
            (Query(value("grad_norm", role=TRAINER), "norm"),),
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
                Query(value("sealed_step"), "sealed"),
                Query(value("trained_step"), "trained"),
                Query(value("committed_step"), "committed"),
                Query(value("last_step"), "last"),
            ),
        ),
        Plot(
            "Tokens",
            Unit.TOKENS_A_SECOND,
            "Both sides: what engines sample and what the trainer trains.",
            (
                Query(rate("engines_generation_tokens_total", how="sum"), "sampled by engines"),
                Query(rate("sampled_tokens_total", how="sum"), "sampled, episode ended"),
                Query(rate("trained_tokens_total", how="sum"), "trained"),
            ),
        ),
        Plot(
            "Who waits",
            Unit.SHARE,
            "The trainer for a batch, or engines without an episode. Both near 0 is the aim.",
            (
                Query(
                    f'max (rate({TRAINER}_phase_seconds_total{OF_RUN[:-1]},phase="waitingBatch"}}{WINDOW}))',
                    "trainer waits for a batch",
                ),
                Query(rate("idle_seconds_total"), "engines idle"),
            ),
        ),
        Plot(
            "The trainer's time",
            Unit.SHARE,
            "By phase, as it passes; of the rank that has most of it.",
            (Query(rate("phase_seconds_total", "phase", TRAINER), "{{phase}}"),),
            stacked=True,
        ),
        Plot(
            "A step's length",
            Unit.SECONDS,
            "By part, mean of the steps that ended.",
            (
                Query(
                    f"{rate('step_seconds_total', 'part', TRAINER)} / ignoring (part) group_left () "
                    f"({rate('steps_total')} > 0)",
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
                Query(value("episodes_running"), "running"),
                Query(value("episodes_ready"), "ready"),
                Query(value("episodes_capacity"), "capacity"),
            ),
        ),
        Plot(
            "Ends of episodes",
            Unit.A_SECOND,
            "Failures by kind, and finished ones that train nothing by reason.",
            (
                Query(rate("episodes_total", "result", how="sum"), "{{result}}"),
                Query(rate("episode_failures_total", "kind", how="sum"), "failed: {{kind}}"),
                Query(rate("episodes_dropped_total", "reason", how="sum"), "dropped: {{reason}}"),
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
                Query(value("engine_version", "engine"), "{{engine}}"),
                Query(value("trained_step"), "trained"),
            ),
        ),
        Plot(
            "Engines by state",
            Unit.NONE,
            "Only serving ones take new requests.",
            (Query(value("engines", "state"), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Requests",
            Unit.NONE,
            "Over the pool. Waiting ones for long: more engines, or fewer episodes at a time.",
            (
                Query(value("engines_running_requests"), "running"),
                Query(value("engines_waiting_requests"), "waiting"),
            ),
        ),
        Plot(
            "KV cache and prefix hits",
            Unit.SHARE,
            "Cache in use, and the share of prompt tokens that were in it already.",
            (
                Query(value("engines_kv_cache_mean_ratio"), "in use, mean"),
                Query(value("engines_kv_cache_max_ratio"), "in use, fullest"),
                Query(
                    f"{rate('engines_prefix_hit_tokens_total')} / {rate('engines_prefix_query_tokens_total')}",
                    "prefix hits",
                ),
            ),
        ),
        Plot(
            "Time to first token",
            Unit.SECONDS,
            "Over the pool.",
            (
                quantile(0.5, "engines_time_to_first_token_seconds"),
                quantile(0.95, "engines_time_to_first_token_seconds"),
            ),
        ),
        Plot(
            "Inter-token latency",
            Unit.SECONDS,
            "Over the pool.",
            (
                quantile(0.5, "engines_inter_token_latency_seconds"),
                quantile(0.95, "engines_inter_token_latency_seconds"),
            ),
        ),
        Plot(
            "Guessed tokens that were taken",
            Unit.SHARE,
            "By inference.speculative. Few: ask for longer matches (promptLookupMin), or do without; each costs.",
            (
                Query(
                    f"{rate('engines_accepted_draft_tokens_total')} / {rate('engines_draft_tokens_total')}",
                    "taken",
                ),
            ),
        ),
        Plot(
            "Weight updates",
            Unit.SECONDS,
            "Mean length by part. Generation stands still during pause only.",
            (Query(mean("weight_update_seconds", "part"), "{{part}}"),),
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
            (Query(value("checkpoint_age_seconds"), "age"),),
        ),
        Plot(
            "Steps that a restart would redo",
            Unit.STEPS,
            "Beside the interval that is configured.",
            (
                Query(value("uncommitted_steps"), "uncommitted"),
                Query(value("checkpoint_interval_steps"), "interval"),
            ),
        ),
        Plot(
            "Attempt",
            Unit.NONE,
            "One more after each restart of the gang.",
            (Query(value("attempt"), "attempt"),),
        ),
        Plot(
            "Free space on the volume",
            Unit.BYTES,
            "Checkpoints, records and broadcasts share it.",
            (
                Query(value("volume_free_bytes"), "free"),
                Query(value("volume_size_bytes"), "size"),
            ),
        ),
    ),
)

SANDBOXES = Row(
    "Sandboxes",
    (
        Plot(
            "Pods of sandboxes",
            Unit.NONE,
            "By what they do, as the broker sees them. Empty where sandboxes are no pods.",
            (Query(value("sandboxes", "state", BROKER), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Waiting for a sandbox",
            Unit.NONE,
            "Requests by why: quota, the run's own limit, nodes, images. Episodes stand still meanwhile.",
            (Query(f"sum by (reason) ({BROKER}_sandboxes_waiting{OF_RUN})", "{{reason}}"),),
            stacked=True,
        ),
        Plot(
            "Until a sandbox is there",
            Unit.SECONDS,
            "From asking to having, whoever provides it; and of pods alone, from creation to readiness.",
            (
                quantile(0.5, "sandbox_start_seconds"),
                quantile(0.95, "sandbox_start_seconds"),
                quantile(0.5, "sandbox_ready_seconds", BROKER, "pods, "),
                quantile(0.95, "sandbox_ready_seconds", BROKER, "pods, "),
            ),
        ),
        Plot(
            "Sandboxes that come and go",
            Unit.A_SECOND,
            "Ready ones and ended ones of environments, and the pods that brokers made.",
            (
                Query(rate("sandboxes_started_total", how="sum"), "ready"),
                Query(rate("sandboxes_destroyed_total", how="sum"), "ended"),
                Query(rate("sandboxes_made_total", role=BROKER, how="sum"), "pods made"),
            ),
        ),
        Plot(
            "Lost sandboxes",
            Unit.A_SECOND,
            "By why: as episodes saw it, and as brokers did. Only `overused` is the agent's doing.",
            (
                Query(rate("sandboxes_failed_total", "reason", how="sum"), "{{reason}}"),
                Query(rate("sandboxes_failed_total", "reason", BROKER, "sum"), "pods: {{reason}}"),
            ),
        ),
    ),
)

_ATTEMPT = value("attempt")


def _gpus(kind: str) -> str:
    """GPU-seconds a second by state, of the trainer or of engines."""
    of_kind = OF_RUN.replace("}", f',kind="{kind}"}}')
    return f"max by (state) (rate({ORCHESTRATOR}_gpu_seconds_total{of_kind}{WINDOW}))"


_TIME = Row(
    "What is its GPU time for?",
    (
        Plot(
            "Trainer",
            Unit.GPUS,
            "GPU-seconds a second by state. All but useful costs the same, and trains nothing new.",
            (Query(_gpus("trainer"), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Engines",
            Unit.GPUS,
            "The same; sampling counts when it is decided whether it was trained or thrown away.",
            (Query(_gpus("inference"), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Tokens thrown away",
            Unit.TOKENS_A_SECOND,
            "Sampled, and never trained, by why.",
            (Query(rate("untrained_tokens_total", "cause"), "{{cause}}"),),
            stacked=True,
        ),
    ),
)

RUN = Board(
    uid="echorl-run",
    title="EchoRL / Run",
    text="One run: is it learning, what does it wait for, would it survive.",
    rows=(_LEARNING, _WAITING, _TIME, _ENGINES, _SURVIVAL, SANDBOXES),
    chosen=(
        ("namespace", f"label_values({ORCHESTRATOR}_attempt, namespace)"),
        ("run", f'label_values({ORCHESTRATOR}_attempt{{namespace="$namespace"}}, run)'),
    ),
    marks=(Mark("Restarts", f"{_ATTEMPT} > (min (min_over_time({ORCHESTRATOR}_attempt{OF_RUN}[5m])))"),),
)
