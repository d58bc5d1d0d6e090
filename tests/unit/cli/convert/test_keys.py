"""Every key of the tables does what its row says: it reaches the manifest, or there is a line."""

import pytest

from echorl_cli.convert.draft import Kind
from echorl_cli.convert.keys import KEYS
from echorl_cli.convert.settings import pattern
from echorl_cli.convert.tree import at, leaves, location
from echorl_testing.manifests.prime_rl import concrete, converted_copy, smallest, with_value

# Values that mean to both systems what leaving the key out means.
NEUTRAL = {
    "top_k",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "deployment.type",
    "trainer.loss.type",
    "orchestrator.algo.sampling.source",
    "orchestrator.train.source[].algo.sampling.source",
    "orchestrator.advantage.type",
    "orchestrator.train.source[].advantage.type",
    "orchestrator.train.source[].serve.pool.type",
    "orchestrator.eval.source[].serve.pool.type",
    "deployment.gpus_per_node",
}


# What a key needs beside it to mean anything.
TOKENS = {"length_penalty": {"type": "tokens"}}
CONTEXT = {
    "orchestrator.advantage.length_penalty.completion": {"orchestrator.advantage": TOKENS},
    "orchestrator.advantage.length_penalty.tool": {"orchestrator.advantage": TOKENS},
    "orchestrator.train.source[].advantage.length_penalty.completion": {
        "orchestrator.train.source[0].advantage": TOKENS
    },
    "orchestrator.train.source[].advantage.length_penalty.tool": {"orchestrator.train.source[0].advantage": TOKENS},
    **{
        f"{base}monitors.wandb.": {f"{base}monitors.wandb": {"entity": "ours"}}
        for base in ("", "trainer.", "orchestrator.")
    },
    "trainer.model.compile.fullgraph": {"trainer.model.compile": {}},
    "trainer.model.ac.": {"trainer.model.ac": {}},
    "trainer.model.lora.": {"trainer.model.lora": {}},
    "orchestrator.model.lora.": {"trainer.model.lora": {}},
    "orchestrator.pre_batch_filters[].": {"orchestrator.pre_batch_filters": [{"type": "gibberish"}]},
    "orchestrator.post_batch_filters[].": {"orchestrator.post_batch_filters": [{"type": "gibberish"}]},
    "orchestrator.train.source[].echo.filter.": {"orchestrator.train.source[0].echo.user": {"alpha": 0.5}},
}


def context(key):
    tree = smallest()
    if key.key.endswith("max_steps"):
        del tree["max_steps"]
    if key.key.endswith("select.limit"):
        del tree["orchestrator"]["eval"]["num_examples"]
    if key.key.endswith(".legacy.id"):
        del tree["orchestrator"]["train" if "train" in key.key else "eval"]["source"][0]["name"]
    for start, values in CONTEXT.items():
        if key.key.startswith(start):
            for path, value in values.items():
                tree = with_value(tree, location(path), value)
    return tree


def before(key):
    return converted_copy(context(key))


def is_neutral(key):
    return any(key.key == name or key.key.endswith(f".{name}") for name in NEUTRAL)


def converted_with(key):
    where = location(concrete(key.key.removesuffix(".*")))
    return converted_copy(with_value(context(key), where, key.example)), where


def test_no_key_stands_in_the_tables_twice():
    names = [key.key for key in KEYS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("key", [key for key in KEYS if not key.to], ids=lambda key: key.key)
def test_a_key_without_counterpart_gets_a_line_with_value_and_reason(key):
    conversion, where = converted_with(key)
    lines = {line.subject.partition(" = ")[0]: line for line in conversion.lines if line.kind is Kind.NO_COUNTERPART}
    expected = [place for place, _ in leaves(key.example, where)]
    for place in expected:
        line = lines[pattern(place).replace("[]", "[0]")]
        assert line.text == key.note
    assert conversion.document == before(key).document


@pytest.mark.parametrize("key", [key for key in KEYS if key.direct], ids=lambda key: key.key)
def test_a_key_that_is_taken_as_it_is_arrives(key):
    conversion, _ = converted_with(key)
    assert at(conversion.document, location(concrete(key.to))) == key.example


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.to and not key.direct and not is_neutral(key)], ids=lambda key: key.key
)
def test_a_key_that_something_is_made_from_changes_the_manifest_or_gets_a_line(key):
    without, (after, _) = before(key), converted_with(key)
    assert after.document != without.document or len(after.lines) > len(without.lines)


@pytest.mark.parametrize("key", [key for key in KEYS if is_neutral(key)], ids=lambda key: key.key)
def test_a_neutral_value_changes_nothing(key):
    conversion, _ = converted_with(key)
    assert conversion.document == before(key).document
    assert [line for line in conversion.lines if line.kind is Kind.NO_COUNTERPART] == []
