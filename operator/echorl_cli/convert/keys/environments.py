"""Keys of environments: ``[[orchestrator.train.source]]``, ``[[orchestrator.eval.source]]`` and their defaults."""

from collections.abc import Iterator

from echorl_cli.convert.keys.orchestrator import algorithm
from echorl_cli.convert.keys.row import IMPORT, Key, made, none, same

TRAIN, EVAL = "orchestrator.train", "orchestrator.eval"
_DISTRIBUTION = "training samples from the model's own distribution, or logprobs would not match"
_WORKERS = "environment code runs in workers of the orchestrator"
_CAPS = "maxModelLen, maxTurns and maxCompletionTokens bound an episode"


def _sampling(base: str, to: str) -> Iterator[Key]:
    """Yield the sampling keys of one kind of environments: shared ones, or those of one environment."""
    training = base.startswith(TRAIN)
    yield made(f"{base}.temperature", f"{to}.temperature", "the environment's own, else the shared one", 0.7)
    how = "null: what maxModelLen leaves"
    yield made(f"{base}.max_completion_tokens", f"{to}.maxCompletionTokens", how, 512)
    how = "1 in training" if training else "the environment's own, else the shared one"
    yield made(f"{base}.top_p", f"{to}.topP", how, 1.0)
    how = "-1: not set"
    yield made(f"{base}.top_k", f"{to}.topK", how, -1)
    yield made(f"{base}.repetition_penalty", f"{to}.repetitionPenalty", "1: not set", 1.0)
    for key, field in (("presence_penalty", "presencePenalty"), ("frequency_penalty", "frequencyPenalty")):
        yield made(f"{base}.{key}", f"{to}.{field}", "0: not set", 0.0)
    template = "prompts are rendered with the template's own defaults: ask for it in the environment's prompts"
    yield none(f"{base}.extra_body.chat_template_kwargs.*", template, {"enable_thinking": False})
    no_such = "the manifest has no such sampling parameter; top_k and penalties go the way of the keys above"
    yield none(f"{base}.extra_body.*", no_such, {"ignore_eos": True})
    why = _DISTRIBUTION if training else "the manifest has no such sampling parameter"
    for key in ("min_p", "min_tokens"):
        yield none(f"{base}.{key}", why, 0.1)
    yield none(f"{base}.seed", "spec.seed decides every random choice", 1)
    yield none(f"{base}.reasoning_effort", "set it in the environment's prompts", "low")
    if training:
        yield none(f"{base}.temp_scheduler.*", "the temperature of a run is constant", {"start_temperature": 1.0})


def _entry(base: str, to: str) -> Iterator[Key]:
    """Yield the keys of one environment."""
    yield made(f"{base}.name", f"{to}.name", "lower case with '-'; default: the last part of its id", "sort")
    source = "verifiers:<id>, unless --environment gives another type"
    yield made(f"{base}.legacy.id", f"{to}.type", source, "reverse-text")
    yield made(f"{base}.legacy.args.*", f"{to}.args", "without secrets", {"a": 1})
    yield none(f"{base}.legacy.extra_env_kwargs.*", "EchoRL passes args only", {"score": True})
    yield made(f"{base}.env.id", f"{to}.type", source, "reverse-text")
    yield made(f"{base}.env.args.*", f"{to}.args", "without secrets", {"a": 1})
    yield made(f"{base}.env.taskset.*", f"{to}.type, {to}.args.taskset", "its id is the type's", {"id": "sort", "k": 3})
    yield made(f"{base}.env.agent.harness.*", f"{to}.args.harness", "without secrets", {"id": "null"})
    yield same(f"{base}.env.agent.max_turns", f"{to}.maxTurns", 4)
    how = "seconds; 24h where neither says one"
    yield made(f"{base}.env.timeout.episode", f"{to}.episodeTimeout", f"{how}; before the rollout's", 90)
    yield made(f"{base}.env.agent.timeout.rollout", f"{to}.episodeTimeout", how, 90)
    for key in ("setup", "finalize", "scoring"):
        yield none(f"{base}.env.agent.timeout.{key}", "episodeTimeout bounds the whole episode", 30)
    for key in ("max_input_tokens", "max_output_tokens", "max_total_tokens"):
        yield none(f"{base}.env.agent.{key}", _CAPS, 4096)
    yield none(f"{base}.env.agent.runtime.*", _WORKERS, {"type": "docker"})
    yield none(f"{base}.env.agent.*", "of verifiers' agents", {"x": 1})
    how = "where max_retries is not there"
    for key in ("env.agent.retries", "env.retries"):
        yield made(f"{base}.{key}.max_retries", f"{to}.maxRetries", how, 2)
        yield none(f"{base}.{key}.*", "maxRetries bounds the tries", {"n": 1})
    yield same(f"{base}.state_columns", f"{to}.stateColumns", ["solution"])
    yield none(f"{base}.env.*", "of verifiers' environments", {"interception": {"x": 1}})
    yield made(f"{base}.serve.pool.type", f"{to}.workers", "elastic: auto", "elastic")
    yield made(f"{base}.serve.pool.num_workers", f"{to}.workers", "of a static pool", 4)
    yield none(f"{base}.serve.pool.*", "workers is auto or a number", {"multiplex": 32})
    yield none(f"{base}.serve.address", _WORKERS, "tcp://host:5000")
    yield none(f"{base}.serve.*", _WORKERS, {"x": 1})
    yield made(f"{base}.max_retries", f"{to}.maxRetries", "the environment's own, else the shared one", 2)
    yield none(f"{base}.log.*", "roles write structured logs at one level", {"level": "info"})
    yield from _sampling(f"{base}.sampling", f"{to}.sampling")


def _echo(base: str) -> Iterator[Key]:
    to = "spec.environments.train[].echo"
    for role in ("system", "user", "assistant", "tool"):
        yield made(f"{base}.{role}", f"{to}.{role}", "its tokens are predicted", {})
        yield made(f"{base}.{role}.alpha", f"{to}.{role}.alpha", "of a role that is there", 0.05, 1.0)
    yield made(f"{base}.tool.tool_names", f"{to}.tool.toolNames", "absent or null: all", ["bash"])
    yield made(f"{base}.filter.import_path", f"{to}.filter.import", IMPORT, "a.keep")
    yield made(f"{base}.filter.kwargs.*", f"{to}.filter.kwargs", "without secrets", {"a": 1})


def _train() -> Iterator[Key]:
    base, to = f"{TRAIN}.source[]", "spec.environments.train[]"
    yield from _sampling(f"{TRAIN}.sampling", f"{to}.sampling")
    yield made(f"{TRAIN}.max_retries", f"{to}.maxRetries", "where the environment has none", 2)
    how = "false: no filter, unless lists of filters are there"
    yield made(f"{TRAIN}.filter_zero_advantages", "spec.algorithm.filters", how, False)
    yield from _entry(base, to)
    yield made(f"{base}.ratio", f"{to}.weight", "as it is", 2.0)
    yield made(f"{base}.group_size", f"{to}.algorithm.groupSize", "where it differs from the run's", 4)
    yield from _echo(f"{base}.echo")
    yield none(f"{base}.sft.*", "no tool output is trained on", {"on_tool_outputs": False})
    yield from algorithm(base, f"{to}.algorithm")
    gate = f"{base}.curriculum.gates.*"
    how = "type advantage_range at 0: zeroAdvantage of stage group; other gates have no counterpart"
    yield made(gate, f"{to}.algorithm.filters", how, {"zero": {"type": "advantage_range"}})
    yield none(f"{base}.select.*", "the environment decides which tasks it has", {"limit": 5})
    for key in ("curriculum", "sampler", "gates", "gate"):
        yield none(f"{base}.{key}.*", "write the environment's curriculum by hand", {"type": "pools"})


def _eval() -> Iterator[Key]:
    base, to = f"{EVAL}.source[]", "spec.environments.eval[]"
    yield from _sampling(f"{EVAL}.sampling", f"{to}.sampling")
    yield made(f"{EVAL}.max_retries", f"{to}.maxRetries", "where the environment has none", 2)
    yield made(f"{EVAL}.skip_first_step", f"{to}.atStart", "the opposite", True)
    for key, field, default in (("interval", "interval", 100), ("group_size", "groupSize", None)):
        how = "the environment's own, else the shared one"
        yield made(f"{EVAL}.{key}", f"{to}.{field}", how, 10, default)
        yield made(f"{base}.{key}", f"{to}.{field}", how, 10)
    for place in (EVAL, base):
        for key in ("num_examples", "select.limit"):
            yield made(f"{place}.{key}", f"{to}.numExamples", "-1 means all and is to be filled in", 32)
        yield none(f"{place}.select.*", "the environment decides which tasks it has", {"skip": 5})
    yield from _entry(base, to)
    yield none(f"{base}.skip_first", "the environment decides which tasks it has", 5)
    yield none(f"{base}.ratio", "every eval environment is played at its interval", 1.0)
    yield none(f"{EVAL}.retrigger_on_resume", "EchoRL decides at a resume which evals are due", True)
    yield none(f"{EVAL}.skip_eval_on_resume", "EchoRL decides at a resume which evals are due", True)
    yield none(f"{EVAL}.cancel_inflight_rollouts_on_eval", "evals and training overlap", True)
    yield none(f"{EVAL}.client.*", "EchoRL starts and finds its engines itself", {"base_url": "http://engine/v1"})
    for key in ("save", "save_to_hf", "save_to_disk", "retry"):
        yield none(f"{EVAL}.{key}.*", "episodes of evals are in records/ of the run", {"dataset_name": "x"})


ROWS: tuple[Key, ...] = (*_train(), *_eval())
