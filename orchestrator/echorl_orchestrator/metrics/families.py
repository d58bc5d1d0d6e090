"""Every metric that this role shows at a scrape: name, type, labels, meaning. docs/metrics.md is made from these.

No label takes the name of an episode, task or request. ``environment`` takes the manifest's names and ``all``;
``engine`` the addresses that are found at the moment; ``filter`` the manifest's filters, at most 16, and
``is_filtered``; every other label a small fixed set.
"""

from echorl_core.metric_spec import MetricSpec

PREFIX = "echorl_orchestrator"
UPDATE_PARTS = ("stage", "pause", "apply", "probe")


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}_{name}", "gauge", labels, text)


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}_{name}_total", "counter", labels, text)


def _histogram(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}_{name}", "histogram", labels, text)


PROGRESS = (
    _gauge("attempt", "Attempt that this process works in: 1, and one more after every restart of the gang."),
    _gauge("trained_step", "Newest trained step."),
    _gauge("sealed_step", "Newest sealed batch."),
    _gauge("last_step", "Step that the run ends at."),
    _gauge("step_age_seconds", "Since the newest step was reported; before the first, since the process began."),
    _gauge("committed_step", "Step of the newest committed checkpoint; none before the first."),
    _gauge("checkpoint_age_seconds", "Since the newest committed checkpoint; none before the first."),
    _gauge("checkpoint_interval_steps", "Steps between two checkpoints, as configured."),
    _gauge("uncommitted_steps", "Trained steps that a restart of the gang would make again."),
    _gauge("checkpoints_pending", "Checkpoints whose parts are still being written."),
    _counter("checkpoints_abandoned", "Checkpoints that were given up: a part failed, or came too late."),
    _gauge("evals_pending", "Evals that are due or under way."),
    _counter("evals_skipped", "Evals that were due and are not played: their version is gone.", "environment"),
    _gauge("volume_size_bytes", "Of the file system that holds the run directory."),
    _gauge("volume_free_bytes", "Of the file system that holds the run directory, for this user."),
)

LEARNING = (
    _gauge("reward", "Mean reward of the last step's batch.", "environment"),
    _gauge("reward_std", "Its standard deviation over the batch's episodes.", "environment"),
    _gauge(
        "solved_ratio",
        "Share of the last batch's groups with reward 1 (all) or 0 (none) throughout.",
        "environment",
        "which",
    ),
    _gauge(
        "filtered_ratio",
        "Share of the last batch's episodes, and of those filtered before it, that a filter matched; is_filtered: any "
        "enforced one.",
        "environment",
        "filter",
    ),
    _gauge("env_nll_nats", "Mean negative log-likelihood of environment tokens, last step.", "environment"),
    _gauge("echo_nll_nats", "The same over the tokens that ECHO trains.", "environment"),
    _gauge("echo_tokens_ratio", "Share of ECHO in the last step's trained tokens."),
    _gauge("rl_episodes_ratio", "Share of the last batch's episodes that the policy gradient learns from."),
    _gauge("entropy_nats", "Mean entropy of the policy over action tokens, last step.", "environment"),
    _gauge("mismatch_kl_nats", "Mean KL between sampler and trainer over action tokens, last step.", "environment"),
    _gauge("teacher_kl_nats", "Mean estimate of KL(policy || teacher), last step; mode opd alone.", "environment"),
    _gauge("masked_ratio", "Share of action tokens that the trust region masks, last step.", "environment"),
    _gauge("logprob_gap_nats", "Largest gap of engine and trainer over tokens that their own version scored."),
    _gauge("staleness_max_versions", "Of the last batch: versions between sampling and training, oldest episode."),
    _gauge("staleness_mean_versions", "The same, mean over episodes."),
    _gauge("staleness_bound_versions", "What maxStaleness allows."),
    _gauge("eval_reward", "Mean reward of the newest eval.", "environment"),
    _gauge("eval_pass_ratio", "pass@k of the newest eval; only where every reward is 0 or 1.", "environment", "k"),
    _gauge(
        "eval_env_nll_nats", "Mean negative log-likelihood of environment tokens in the newest eval.", "environment"
    ),
    _gauge("eval_step", "Version that made the newest eval due.", "environment"),
)

WORK = (
    _gauge("episodes_running", "Being played, evals included."),
    _gauge("episodes_limit", "Train episodes that may be played at once; none while engines have room for all."),
    _gauge("episodes_ready", "Finished and waiting for a batch."),
    _gauge("episodes_capacity", "Further ones that may be started now."),
    _counter("episodes", "Training episodes that ended: finished, failed.", "result"),
    _counter("episode_failures", "Failed ones, by why.", "kind"),
    _counter("episodes_dropped", "Finished ones that trained nothing, by why.", "reason"),
    _counter("groups", "Groups that ended: closed (partial ones too), partial, dropped.", "result"),
    _counter("branches_dropped", "Branches over maxBranches."),
    _counter("sampled_tokens", "Tokens that engines returned for training episodes that ended."),
    _counter("trained_tokens", "Tokens with a weight in any component, in reported steps."),
    _counter("steps", "Steps that were reported."),
    _counter("idle_seconds", "Time without any episode in flight: engines idle."),
    _counter(
        "gpu_seconds",
        "GPU-seconds of trainer ranks and engines by what they were for (docs/goodput.md); a process without a GPU is "
        "one.",
        "kind",
        "state",
    ),
    _gauge("undecided_gpu_seconds", "Those of which it is open what they were for, by kind of process.", "kind"),
    _counter("untrained_tokens", "Sampled tokens that will never be trained, by why.", "cause"),
    _gauge("loop_lag_seconds", "Of the event loop, last look."),
    _gauge("loop_lag_max_seconds", "The same, largest so far."),
    _counter("episode_files_failed", "Parquet files of episodes that were not written."),
    _counter("json_non_finite", "Numbers that were NaN or infinite, and were written as null."),
)

ENGINES = (
    _gauge("engines", "Known engines, by state.", "state"),
    _gauge("engine_version", "Policy version that an engine holds; none before it holds one.", "engine"),
    _gauge("served_version_min", "Lowest policy version that a token sampled now may come from."),
    _gauge("served_version_max", "The highest."),
    _gauge("engines_running_requests", "On all engines."),
    _gauge("engines_waiting_requests", "In the queues of all engines."),
    _gauge("engines_kv_cache_mean_ratio", "Share of the KV cache in use, mean over engines."),
    _gauge("engines_kv_cache_max_ratio", "The same, fullest engine."),
    _counter("engines_prefix_query_tokens", "Prompt tokens that were looked up in prefix caches."),
    _counter("engines_prefix_hit_tokens", "Those that were found there."),
    _counter("engines_prompt_tokens", "Prompt tokens that engines processed."),
    _counter("engines_generation_tokens", "Tokens that engines sampled, those of lost and eval episodes included."),
    _counter("engines_draft_tokens", "Tokens that engines guessed and checked (inference.speculative)."),
    _counter("engines_accepted_draft_tokens", "Those that were sampled so."),
    _counter("engines_preemptions", "Requests that engines put back for want of KV cache."),
    _counter("engines_requests", "Requests that engines finished."),
    _histogram("engines_time_to_first_token_seconds", "Of all engines, by their own clocks."),
    _histogram("engines_inter_token_latency_seconds", "Of all engines, by their own clocks."),
)

WEIGHT_UPDATE = _histogram("weight_update_seconds", f"An engine's update, by part: {', '.join(UPDATE_PARTS)}.", "part")
WEIGHT_DOWNLOADS = _counter(
    "weight_downloads",
    "Versions that engines fetched, by what became of the delta: used; none (there was none); no_base (the version "
    "before was not on the engine's host), refused (it was no good): fetched whole instead.",
    "result",
)
WEIGHT_DOWNLOAD_BYTES = _counter(
    "weight_download_bytes", "Bytes of weights that engines fetched; result: as of weight_downloads.", "result"
)
AT_UPDATES = (WEIGHT_UPDATE, WEIGHT_DOWNLOADS, WEIGHT_DOWNLOAD_BYTES)
"""Noted at each update of an engine."""

FAMILIES = (*PROGRESS, *LEARNING, *WORK, *ENGINES)
"""Read at each scrape."""
