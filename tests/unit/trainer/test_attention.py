"""Documents in a pack never see each other, and score as they would alone."""

import pytest
import torch
from torch import nn

from echorl_testing.orchestrator.packs import packed, tiny_policy
from echorl_trainer.attention import document_layout, packed_attention

KINDS = ["qwen3", "llama", "gemma2", "gemma3_text", "mistral"]
FAMILIES = pytest.mark.parametrize("family", KINDS)
LENGTHS = pytest.mark.parametrize(
    "lengths", [(9, 9, 9), (3, 17, 4, 16, 1, 9)], ids=["equal lengths", "ragged, one token too"]
)


def random_documents(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(265, (length,), generator=generator) for length in lengths]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: tiny_policy(folder / family, family=family) for family in KINDS}


@FAMILIES
@LENGTHS
@torch.no_grad()
def test_changing_one_document_leaves_the_others_bit_equal(policies, family, lengths):
    documents = random_documents(lengths)
    before = policies[family](packed(documents))
    documents[0] = (documents[0] + 1) % 265
    after = policies[family](packed(documents))
    own = lengths[0] - 1
    assert not torch.equal(before.logprobs[:own], after.logprobs[:own])
    assert torch.equal(before.logprobs[own:], after.logprobs[own:])
    assert torch.equal(before.entropy[own:], after.entropy[own:])


@FAMILIES
@LENGTHS
def test_no_gradient_crosses_documents(policies, family, lengths):
    policy = policies[family]
    embeddings = []
    handle = policy.model.get_input_embeddings().register_forward_hook(
        lambda _module, _inputs, output: embeddings.append(output.requires_grad_()) or output.retain_grad()
    )
    policy(packed(random_documents(lengths))).logprobs[: lengths[0] - 1].sum().backward()
    handle.remove()
    gradient = embeddings[0].grad[0]
    assert gradient[: lengths[0] - 1].any(dim=-1).all()
    assert not gradient[lengths[0] :].any()


@FAMILIES
@LENGTHS
@torch.no_grad()
def test_packed_equals_one_by_one(policies, family, lengths):
    documents = random_documents(lengths)
    together = policies[family](packed(documents)).logprobs
    alone = torch.cat([policies[family](packed([document])).logprobs for document in documents])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@FAMILIES
@LENGTHS
def test_gradients_equal_an_eager_reference_model(policies, family, lengths):
    documents = random_documents(lengths)
    policy = policies[family]
    policy.zero_grad()
    policy(packed(documents)).logprobs.sum().backward()
    mine = {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}
    policy.zero_grad()
    policy.model.set_attn_implementation("eager")
    total = torch.zeros(())
    for document in documents:
        logits = policy.model(document[None], use_cache=False).logits[0, :-1]
        total = total + logits.log_softmax(-1).gather(1, document[1:, None]).sum()
    total.backward()
    policy.model.set_attn_implementation("echorl_varlen")
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-5, atol=1e-5 * float(parameter.grad.abs().max()))
    policy.zero_grad()


@LENGTHS
def test_layout_puts_every_token_back(lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    layout = document_layout(offsets, max(lengths), torch.float32)
    slots = torch.cat([bucket.tokens.flatten() for bucket in layout.buckets])
    order = torch.arange(sum(lengths))
    assert torch.equal(slots if layout.restore is None else slots[layout.restore], order)
    for bucket in layout.buckets:
        document = torch.searchsorted(offsets, bucket.tokens.int(), right=True)
        assert (document == document[:, :1]).all()


def test_padding_is_bounded():
    offsets = torch.tensor([0, *([100] * 5), *([85] * 5), *([10] * 50)]).cumsum(0).to(torch.int32)
    layout = document_layout(offsets, 100, torch.float32)
    assert sum(bucket.tokens.numel() for bucket in layout.buckets) <= int(offsets[-1]) / 0.8


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"attention_mask": torch.ones(1, 1, 2, 2)}, "attention mask"),
        ({"documents": None}, "document layout is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_refused(options, named):
    layout = document_layout(torch.tensor([0, 2], dtype=torch.int32), 2, torch.float32)
    query = torch.zeros(1, 1, 2, 4)
    settings = {"attention_mask": None, "documents": layout, **options}
    mask = settings.pop("attention_mask")
    with pytest.raises(ValueError, match=named):
        packed_attention(nn.Identity(), query, query, query, mask, **settings)


def test_the_compiler_takes_all_of_attention_whatever_numbers_of_heads_and_tokens():
    """What breaks a graph there makes layers that are checkpointed and compiled run as if they were not compiled."""
    compiled = torch.compile(packed_attention, fullgraph=True, dynamic=True, backend="eager")
    for lengths in ((9, 9), (5, 12)):
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        documents = document_layout(cu_seqlens, max(lengths), torch.float32)
        heads = [torch.randn(1, count, sum(lengths), 8) for count in (4, 2, 2)]
        expected, _ = packed_attention(nn.Module(), *heads, None, documents=documents)
        found, _ = compiled(nn.Module(), *heads, None, documents=documents)
        torch.testing.assert_close(found, expected)
