"""The arithmetic of memory on numbers worked out by hand, and on models whose size is known."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from echorl_cli.plan.engine_memory import Serving, engine_memory
from echorl_cli.plan.model_shape import GIB, ModelShape
from echorl_cli.plan.trainer_memory import Training, adapter_parameters, trainer_memory
from echorl_testing.manifests.model_configs import GEMMA2_2B, GLM45_AIR, QWEN3_06B, QWEN3_8B, QWEN3_30B_A3B

TOY = ModelShape(
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
)
USE = Training(shards=2, micro_batch_tokens=10)


def test_ranks_that_share_a_micro_batch_hold_its_slices():
    """Ten tokens of four ranks are three each; weights are sharded as ever."""
    slices = trainer_memory(TOY, replace(USE, context=4))
    alone, three = trainer_memory(TOY, USE), trainer_memory(TOY, replace(USE, micro_batch_tokens=3))
    assert slices == three
    assert slices.activations == alone.activations * 3 // 10
    assert slices.master_weights == alone.master_weights


@pytest.mark.parametrize(
    ("config", "published"), [(QWEN3_8B, 8_190_735_360), (QWEN3_06B, 596_049_920), (QWEN3_30B_A3B, 30_532_122_624)]
)
def test_parameters_are_those_of_published_models(config, published):
    shape = ModelShape.of_config(config)
    norms_of_heads = shape.num_hidden_layers * 2 * shape.head_dim
    assert shape.parameters + norms_of_heads == published


def test_gemma_ties_its_head_where_the_config_does_not_say_so():
    """Published are 2,614,341,888 parameters, among them four norms a layer."""
    shape = ModelShape.of_config(GEMMA2_2B)
    assert shape.tie_word_embeddings
    assert shape.parameters + 26 * 2 * 2304 == 2_614_341_888
    assert not ModelShape.of_config({**GEMMA2_2B, "tie_word_embeddings": False}).tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, 13),
        ({"model_type": "gemma3_text"}, 22),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, 13),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 23}, 3),
        ({"sliding_window": None}, 0),
        ({"model_type": "mistral"}, 26),
        ({"model_type": "qwen3"}, 0),
        ({"model_type": "qwen3", "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 20}, 6),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, 26),
        ({"model_type": "qwen2", "use_sliding_window": True}, 0),
        ({"model_type": "llama"}, 0),
    ],
)
def test_layers_with_windows_are_those_that_transformers_gives_them(change, layers):
    assert ModelShape.of_config(GEMMA2_2B | change).windows == (4096,) * layers


def test_a_window_that_is_none_is_named():
    with pytest.raises(ValueError, match="sliding_window: found -1, accepted is a whole number"):
        ModelShape.of_config({**GEMMA2_2B, "sliding_window": -1})


def test_a_config_that_says_less_has_as_many_key_heads_and_heads_that_fill_the_width():
    config = {key: value for key, value in QWEN3_8B.items() if key not in {"num_key_value_heads", "head_dim"}}
    shape = ModelShape.of_config({**config, "head_dim": None})
    assert (shape.num_key_value_heads, shape.head_dim) == (32, 128)


@pytest.mark.parametrize("value", [None, 0, -1, 2.5, "4096", True, 10**30])
def test_a_number_that_is_none_is_named(value):
    with pytest.raises(ValueError, match=r"hidden_size: found .*, accepted is a whole number from 1 to"):
        ModelShape.of_config({**QWEN3_8B, "hidden_size": value})


def test_active_and_all_parameters_of_a_mixture_of_experts():
    """Of a layer: attention 2 x 2048 x 4096 + 2 x 2048 x 512 = 18,874,368, the router 2048 x 128 = 262,144, an expert
    3 x 2048 x 768 = 4,718,592, two norms 4096. Outside: 2 x 151,936 x 2048 + 2048 = 622,331,904.
    """
    shape = ModelShape.of_config(QWEN3_30B_A3B)
    assert shape.parameters == 48 * (18_874_368 + 262_144 + 128 * 4_718_592 + 4096) + 622_331_904 == 30_532_110_336
    assert shape.active_parameters == 48 * (18_874_368 + 262_144 + 8 * 4_718_592 + 4096) + 622_331_904 == 3_353_020_416
    renamed = {key: value for key, value in QWEN3_30B_A3B.items() if key != "num_experts"}
    assert ModelShape.of_config({**renamed, "num_local_experts": 128}) == shape
    assert ModelShape.of_config(QWEN3_8B).active_parameters == ModelShape.of_config(QWEN3_8B).parameters
    # Adapters are for attention alone.
    assert adapter_parameters(shape, 8, ("q_proj", "down_proj")) == 48 * 8 * (2048 + 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "not supported yet: mixture of experts of model type mixtral"),
        ({"mlp_only_layers": [0]}, "not supported yet: layers without experts"),
        ({"decoder_sparse_step": 2}, "not supported yet: layers without experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size: found nothing"),
        ({"num_experts_per_tok": 129}, r"num_experts_per_tok: found 129, accepted is at most 128 \(num_experts\)"),
    ],
)
def test_a_mixture_of_experts_that_is_not_known_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ModelShape.of_config({**QWEN3_30B_A3B, **change})


def test_shared_experts_are_active_and_a_first_layer_has_none():
    """Of a layer: attention 2 x 4096 x 12,288 + 2 x 4096 x 1024 = 109,051,904, two norms 8192; with experts the router
    4096 x 128 = 524,288 and experts of 3 x 4096 x 1408 = 17,301,504, the first without 3 x 4096 x 10,944 = 134,479,872.
    """
    shape = ModelShape.of_config(GLM45_AIR)
    every, outside = 46 * (109_051_904 + 8192) + 134_479_872 + 45 * 524_288, 2 * 151_552 * 4096 + 4096
    assert shape.parameters == every + 45 * 129 * 17_301_504 + outside == 106_851_586_048
    assert shape.active_parameters == every + 45 * 9 * 17_301_504 + outside == 13_423_464_448
    assert (shape.inner_width, shape.expert_layers) == (9 * 1408, 45)
    short = {key: value for key, value in GLM45_AIR.items() if key not in {"n_shared_experts", "first_k_dense_replace"}}
    assert ModelShape.of_config(short) == shape
    assert (
        ModelShape.of_config({**GLM45_AIR, "first_k_dense_replace": 46}).active_parameters < 46 * 245_000_000 + outside
    )
    with pytest.raises(ValueError, match="first_k_dense_replace: found -1, accepted is a whole number from 0"):
        ModelShape.of_config({**GLM45_AIR, "first_k_dense_replace": -1})


def test_parameters_of_a_mixture_with_shared_experts_are_those_of_its_architecture():
    """But for biases of queries, keys and values."""
    described = AutoConfig.for_model(**{key: value for key, value in GLM45_AIR.items() if key != "architectures"})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(described)
    counted = sum(one.numel() for name, one in model.named_parameters() if not name.endswith("_proj.bias"))
    assert ModelShape.of_config(GLM45_AIR).parameters == counted


def test_a_rank_of_a_mixture_of_experts_by_hand():
    """Four experts of width 6 in the place of 16; a token takes two: 12 inside.

    A layer has 192 in attention, 8 x 4 + 4 x 3 x 8 x 6 = 608 in router and experts, 16 in norms.
    """
    toy = replace(TOY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6)
    assert (toy.layer_parameters, toy.parameters) == (816, 1608 + 2 * 816)
    assert toy.active_parameters == toy.parameters - 2 * 2 * 3 * 8 * 6
    found = trainer_memory(toy, USE)
    # Of a token: (2 + 2) x 8 of the width, 2 x 8 and 2 x 4 in attention, 2 x 12 inside; normalisers and the router.
    assert found.activations == 2 * 10 * (2 * 80 + 4 * (2 + 4))
    # Anew: (4 + 2)(2 x 8 + 8 + 4) + 2 (2 x 12 + 2 x 8 + 2 x 4 + 4 x 12 + 2 x 2 x 8) + 8 + 4 (8 + 2 x 4) = 496 a token;
    # flowing: 2 (2 x 8 + 3 x 12 + 2 x 2 x 8) = 168; the head's gradient 1600; its own and two in float32: 10 x 816.
    assert found.buffers == 10 * 496 + 10 * 168 + 1600 + 8160
    kept = trainer_memory(toy, replace(USE, activation_checkpointing="none"))
    assert kept.activations == 2 * 10 * 496


def test_a_rank_of_a_mixture_with_shared_experts_by_hand():
    """One of two layers has the experts above and one more, 3 x 8 x 6 = 144, which all tokens share; the other has
    none, and 3 x 8 x 16 = 384.
    """
    toy = replace(TOY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, n_shared_experts=1)
    mixed = replace(toy, first_k_dense_replace=1)
    assert (mixed.layer_parameters, mixed.parameters) == (816 + 144, 1608 + (192 + 384 + 16) + (816 + 144))
    assert mixed.active_parameters == mixed.parameters - 2 * 3 * 8 * 6
    found = trainer_memory(mixed, USE)
    # Beside what chosen experts keep: 8 of the width and 2 x 6 inside. The layer without any keeps what TOY's does.
    assert found.activations == 10 * (2 * (80 + 8 + 12) + 4 * (2 + 4)) + 10 * (2 * 80 + 4 * 2)
    # A layer with a wide inside and no experts has the largest buffers, as a model of such layers alone has.
    wide = replace(mixed, intermediate_size=200)
    alone = replace(TOY, intermediate_size=200)
    assert trainer_memory(wide, USE).buffers == trainer_memory(alone, USE).buffers > found.buffers
    assert found.master_weights == 4 * mixed.parameters // 2
    # Of what two ranks that split experts have, half of the chosen ones, 4 x 3 x 8 x 6 / 2, is not gathered.
    split = trainer_memory(mixed, replace(USE, expert=2))
    assert found.gathered_weights - split.gathered_weights == 2 * 2 * 288


def test_a_rank_that_has_half_of_the_experts_by_hand():
    """Of the mixture above 576 a layer are experts', of which 288 are another rank's and never gathered."""
    toy = replace(TOY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6)
    alone, split = (trainer_memory(toy, replace(USE, expert=size)) for size in (1, 2))
    assert split.gathered_weights == 2 * (1608 + 2 * (816 - 288)) == alone.gathered_weights - 2 * 2 * 288
    # A token's two rows are on their way besides, 2 x 8 there and 2 x 8 back.
    assert split.buffers == 10 * 496 + 10 * (168 + 2 * 2 * 2 * 8) + 1600 + 10 * (816 - 288)
    assert (split.master_weights, split.activations) == (alone.master_weights, alone.activations)
    once = replace(USE, gradient_accumulation="unsharded")
    whole, half = (trainer_memory(toy, replace(once, expert=size)) for size in (1, 2))
    assert half.gathered_weights == whole.gathered_weights - 2 * 2 * 288
    assert half.gradients == whole.gradients - 4 * 2 * 288


def test_a_rank_by_hand():
    """A layer has 8 x 8 + 2 x 8 x 4 + 8 x 8 + 3 x 8 x 16 = 576 in matrices, 16 in norms; outside stand 2 x 800 + 8."""
    assert (TOY.layer_parameters, TOY.outer_parameters, TOY.parameters) == (592, 1608, 2792)
    found = trainer_memory(TOY, USE)
    assert found.master_weights == found.gradients == 4 * 2792 // 2
    assert (found.frozen_weights, found.host_state) == (0, 0)
    assert found.optimizer_state == 8 * 2792 // 2
    assert found.gathered_weights == 2 * (1608 + 2 * 592)
    # Of a token: 3 x 8 of the width, 2 x 8 of queries, 2 x 4 of keys and values, 2 x 16 inside; 2 normalisers.
    assert found.activations == 2 * 10 * (2 * 80 + 4 * 2)
    # A layer in backward. Anew: (4 + 2)(2 x 8 + 8 + 4) + 2 (2 x 12 + 2 x 8 + 2 x 4 + 4 x 16) + 8 = 400 a token;
    # flowing: 2 (2 x 8 + 3 x 16) = 128; the head's gradient 1600; its own and two in float32: 10 x 592.
    assert found.buffers == 10 * 400 + 10 * 128 + 1600 + 5920
    # A checkpoint's copy: 4 bytes of weights and 8 of moments a parameter; versions are in bfloat16.
    assert (found.host_checkpoint, found.host_versions) == (12 * 2792 // 2, 2 * 2 * 2792)
    assert trainer_memory(TOY, replace(USE, serving_ranks=2)).host_versions == 2 * 2792
    assert trainer_memory(TOY, replace(USE, async_save=False)).host_checkpoint == 0
    assert found.host_copies == 0
    for copies in (2, 5):
        assert trainer_memory(TOY, replace(USE, memory_copies=copies)).host_copies == copies * found.host_checkpoint
    held = 5584 + 5584 + 11_168 + 5584 + 3360 + 12_800
    assert found.total == int(held * 1.04) + int(1.5 * GIB)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "state"),
    [
        ("adamw", "float32", 8 * 2792),
        ("adamw", "bfloat16", 4 * 2792),
        ("adamw", "int8", int(2 * (1 + 4 / 256) * 2792)),
        # One momentum for 2 x 576 in matrices of layers, two moments for the others.
        ("muon", "float32", 4 * (1152 + 2 * 1640)),
        ("sgd", "float32", 0),
        ("signSgd", "float32", 0),
    ],
)
def test_optimizer_state_by_hand(optimizer, dtype, state):
    use = replace(USE, optimizer=optimizer, state_dtype=dtype)
    assert trainer_memory(TOY, use).optimizer_state == state // 2
    moved = trainer_memory(TOY, replace(use, cpu_offload=True))
    assert (moved.optimizer_state, moved.host_state) == (0, state // 2)
    assert moved.host_checkpoint == 2 * 2792 + state // 2, "moments in host memory are copied as well"


def test_a_gradient_that_is_reduced_once_is_whole_on_every_rank():
    found = trainer_memory(TOY, replace(USE, gradient_accumulation="unsharded"))
    assert found.gradients == 4 * 2792 // 2 + 4 * 2792
    assert found.gathered_weights == 2 * 2792


def test_full_checkpointing_keeps_the_input_of_a_layer_alone_and_none_keeps_everything():
    full, none = (
        trainer_memory(TOY, replace(USE, activation_checkpointing=mode)).activations for mode in ("full", "none")
    )
    assert full == 2 * 10 * 2 * 8
    assert none == 2 * 10 * 400


def test_an_adapter_by_hand():
    """Rank 4 on queries of both layers, 4 x (8 + 8) each, and on one layer's down projection, 4 x (16 + 8)."""
    trained = adapter_parameters(TOY, 4, ("q_proj", "model.layers.1.mlp.down_proj"))
    assert trained == 2 * 64 + 96
    found = trainer_memory(TOY, replace(USE, adapter_parameters=trained))
    assert found.master_weights == 4 * trained // 2
    assert found.frozen_weights == 2 * 2792 // 2
    assert found.optimizer_state == 8 * trained // 2
    assert found.host_checkpoint == 12 * trained // 2


def test_more_shards_never_need_more():
    shape = ModelShape.of_config(QWEN3_8B)
    totals = [trainer_memory(shape, Training(shards, 32_768)).total for shards in (1, 2, 8, 64)]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize(
    ("split", "heads", "weights"), [(1, 8, 16_381_452_288), (2, 4, 8_190_726_144), (16, 1, 1_023_840_768)]
)
def test_an_engine_by_hand(split, heads, weights):
    """A token's keys and values: 2 x 2 bytes x 36 layers x heads x 128; 144 KiB on one GPU."""
    shape = ModelShape.of_config(QWEN3_8B)
    found = engine_memory(shape, Serving(split, max_model_len=4096), 80 * GIB)
    assert found.weights == weights
    assert found.cache == int(0.92 * 80 * GIB) - found.weights - found.workspace
    assert found.cache_tokens == found.cache // (144 * heads * 128)
    assert found.sequences == found.cache_tokens // 4096


def test_a_layer_with_a_window_holds_what_it_sees_and_what_a_step_adds():
    """Of sequences of 32,768 tokens 13 layers hold all, 13 hold 4096 + 8192; of short ones all hold all."""
    shape = ModelShape.of_config(GEMMA2_2B)
    long, short = (engine_memory(shape, Serving(1, longest), 80 * GIB) for longest in (32_768, 8192))
    per_layer = 2 * 2 * 4 * 256
    assert long.cache_tokens == long.cache * 32_768 // (per_layer * 13 * (32_768 + 12_288))
    assert long.sequences == long.cache // (per_layer * 13 * (32_768 + 12_288))
    assert short.cache_tokens == short.cache // (per_layer * 26)


def test_an_engine_without_room_for_one_sequence_does_not_fit():
    shape = ModelShape.of_config(QWEN3_8B)
    assert engine_memory(shape, Serving(1, 4096), 24 * GIB).fits
    small = engine_memory(shape, Serving(1, 4096), 16 * GIB)
    assert not small.fits
    assert small.cache < 0
    assert small.cache_tokens == 0
    assert not engine_memory(shape, Serving(1, 131_072), 24 * GIB).fits


def test_weights_in_fp8_by_hand():
    """Of TOY 2 x 576 parameters are multiplied by; a layer's give 8 + 4 + 4 + 8 + 16 + 16 + 8 = 64 values."""
    assert TOY.products == (2 * 576, 2 * 64)
    plain, small = (engine_memory(TOY, Serving(1, 4096, fp8=fp8), 80 * GIB) for fp8 in (False, True))
    assert (plain.weights, small.weights) == (2 * 2792, 2 * (2792 - 1152) + 1152 + 4 * 128)
    assert small.cache - plain.cache == plain.weights - small.weights
    # Four experts and one that all share, 144 parameters and 6 + 6 + 8 outputs each; 192 and 24 in attention. One layer
    # has none. The router stays as it is.
    mixed = replace(TOY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, n_shared_experts=1)
    mixed = replace(mixed, first_k_dense_replace=1)
    assert mixed.products == (192 + 5 * 144 + 576, 24 + 5 * 20 + 64)
    assert replace(TOY, first_k_dense_replace=1).products == TOY.products
