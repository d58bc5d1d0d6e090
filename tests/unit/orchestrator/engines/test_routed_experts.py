"""Experts that engines return with a turn: what is asked for, over several engines, and what cannot be true."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest

from echorl_core.routing import RouterShape
from echorl_orchestrator.engines.routed_experts import decode
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.engines.fake_engine import FakeEngine, policy
from echorl_testing.engines.fake_policies import routed

SHAPE = RouterShape(layers=2, dense_layers=1, experts=8, top_k=2)


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    described = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(described))
    return tmp_path


def expected(by: int, positions: range) -> list[list[list[int]]]:
    return routed(SHAPE, by, positions)[:, 1:].tolist()


def written(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return base64.b64encode(file.getvalue()).decode()


async def test_a_turn_brings_the_experts_of_all_tokens_but_the_last(running_pool, mixture):
    """Two of the prompt and three sampled; of layers without experts nothing is kept."""
    async with FakeEngine() as engine, running_pool(engine, mixture=mixture) as harness:
        engine.routing, engine.routing_by = SHAPE, 3
        harness.pool.announce(policy(2))
        await harness.pool.wait_served(2, 60)
        generation = await harness.generate(experts_from=0)
        assert generation.experts.dtype == np.uint8
        assert generation.experts.tolist() == expected(3, range(4))
        later = await harness.generate(experts_from=1)
        assert (later.experts_from, later.experts.tolist()) == (1, expected(3, range(1, 4)))
        # Whom it does not interest asks for as few as can be, and takes none.
        assert (await harness.generate()).experts is None
        starts = [body["sampling_params"]["routed_experts_prompt_start"] for body in engine.bodies("generate")]
        assert starts == [0, 1, 2]


async def test_an_engine_that_tells_none_is_believed(running_pool, mixture):
    async with FakeEngine() as engine, running_pool(engine, mixture=mixture) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        assert (await harness.generate(experts_from=0)).experts is None


@pytest.mark.parametrize(
    ("how", "first"),
    # Behind two tokens: an abort tells of all but the last token, and the next engine of the rest.
    [("abort", 3), ("cut", 0)],
)
async def test_what_goes_on_elsewhere_has_experts_of_each_engine_that_told(running_pool, mixture, how, first):
    async with FakeEngine() as one, FakeEngine() as two, running_pool(one, two, mixture=mixture) as harness:
        for engine in (one, two):
            engine.routing = SHAPE
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        home = one if (await harness.generate("e")).engine == one.address else two
        other = two if home is one else one
        other.routing_by = 5
        home.breaks.append((2, how))
        generation = await harness.generate("e", experts_from=0)
        assert [segment.engine for segment in generation.segments] == [home.address, other.address]
        tokens = 2 + len(generation.token_ids)
        assert generation.experts.tolist() == expected(0, range(first)) + expected(5, range(first, tokens - 1))
        assert other.bodies("generate")[-1]["sampling_params"]["routed_experts_prompt_start"] == first


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (written(routed(SHAPE, 0, range(3))), "found 3 tokens, accepted are 4"),
        (written(routed(SHAPE, 0, range(5))), "found 5 tokens, accepted are 4"),
        (written(routed(SHAPE, 0, range(4))[:, :2]), r"found uint8 of shape \(4, 2, 2\)"),
        (written(routed(SHAPE, 0, range(4))[..., :1]), r"found experts of shape \(4, 2, 1\)"),
        (written(routed(SHAPE, 0, range(4)) + 8), "found expert 8, accepted are 0 to 7"),
        (written(routed(SHAPE, 0, range(4)).astype(np.int32) - 1), "found expert -1, accepted are 0 to 7"),
        (written(routed(SHAPE, 0, range(4)) * 0), "found an expert twice among a token's 2"),
        (written(np.array([[[object()]]])), "cannot be read"),
        (written(routed(SHAPE, 0, range(4)).astype(np.float32)), "found float32"),
        (written(routed(SHAPE, 0, range(4)))[:-8], "cannot be read"),
        ("no base64!", "cannot be read"),
        ("", "cannot be read"),
    ],
)
async def test_experts_that_cannot_be_true_fail_the_turn(running_pool, mixture, told, message):
    async with FakeEngine() as engine, running_pool(engine, mixture=mixture) as harness:
        engine.routing, engine._routed = SHAPE, lambda *_: told
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        with pytest.raises(EpisodeError, match=message) as caught:
            await harness.generate(experts_from=0)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


def test_more_than_256_experts_take_two_bytes():
    shape = RouterShape(layers=1, dense_layers=0, experts=300, top_k=2)
    found = decode(written(np.array([[[299, 0]]], np.int32)), shape)
    assert (found.dtype, found.tolist()) == (np.uint16, [[[299, 0]]])
