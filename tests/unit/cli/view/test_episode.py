"""One episode whole, from the files that have parts of it; and its texts, colours and times as a page has them."""

import msgspec
import pytest

from echorl_cli.token_styles import token_style_of
from echorl_cli.view import charts, markup, token_markup
from echorl_cli.view.episode import Branch, Place, read_episode, trained
from echorl_cli.view.folders import shown_runs
from echorl_core.tokens import NotTrainedTokens, TrainedSequence
from echorl_testing.view_folder import BRANCHES, TURNS, episode, lines, watch_of


def read(root, tables, name, step, kind="train"):
    return read_episode(tables, shown_runs([root])[0], Place(kind, 1, step, name))


def test_an_episode_with_two_branches(root, watched):
    found = read(root, watched[1], "g1-e0", 1)
    assert found.branches == [
        Branch(0, BRANCHES[0]["messages"]),
        Branch(1, BRANCHES[1]["messages"], unused="sideCall"),
    ]
    assert found.turns == TURNS
    assert found.info == {"log": "l"}
    assert found.row["advantage"] == 0.5


def test_an_episode_of_a_parquet_file(root, watched):
    found = read(root, watched[1], "g2-e1", 2)
    assert found.branches == [Branch(0, [{"role": "user", "content": "I am g2-e1"}])]
    assert (found.info, found.turns, found.row["reward"]) == ({"diff": "d"}, [], -1.0)


def test_an_episode_that_nobody_recorded(root, watched):
    assert read(root, watched[1], "g9-e9", 1) is None
    assert read(root, watched[1], "../../x", 1) is None


def test_an_episode_whose_file_is_gone(root, watched):
    (root / "records" / "attempt_1" / "episodes.jsonl").unlink()
    found = read(root, watched[1], "g1-e0", 1)
    assert found.row["reward"] == 1.0
    assert len(found.notices) == 1


def test_an_episode_of_odd_shapes(root):
    odd = episode("odd-e0", 4, 1.0, conversations=[1, {"branch": "x"}], turns=5, messages="none", info=[1])
    lines(root / "records" / "attempt_1" / "episodes.jsonl", odd)
    found = read(root, watch_of(root)[1], "odd-e0", 4)
    assert (found.branches, found.turns, found.info) == ([Branch(0, [])], [], {})


def sequence(sample="g1-e0/0", **changes):
    columns = {
        "token_ids": [7, 8, 9, 10],
        "texts": ["<b>", " go", " on\n", "ok"],
        "role": ["context", "action", "action", "env_output"],
        "engine_logprobs": [None, -1.0, -1.0, None],
        "trainer_logprobs": [None, -0.5, -1.0, -2.0],
        "entropy": [None, 0.25, 0.75, 1.0],
        "ratio": [None, 2.0, 0.5, None],
        "is_masked": [None, False, True, None],
        "is_masked_low": [None, False, False, None],
        "is_masked_high": [None, False, True, None],
        "advantage": [None, 0.5, -0.25, None],
        "rl_weight": [0.0, 1.0, 1.0, 0.0],
        "ce_weight": [0.0, 0.0, 0.0, 0.05],
        "version_low": [-1, 3, 3, -1],
        "version_high": [-1, 3, 3, -1],
        "temperature": [1.0] * 4,
    }
    place = {"run_uid": "u1", "attempt": 1, "step": 1, "rank": 0, "sample_id": sample, "environment": "shell"}
    return TrainedSequence(**{**place, "mode": "rl", "denominators": {"rl": 2.0}, **columns, **changes})


def export(root, *sequences, rank=0):
    path = root / "tokens" / "attempt_1" / f"step_000001.rank_{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in sequences))
    return path


def test_trained_tokens_are_those_of_the_episode_on_every_rank(root):
    export(root, sequence("g1-e0/0"), sequence("g1-e01/0"))
    export(root, sequence("g1-e0/1"), sequence("x/g1-e0/0"), rank=1)
    (shown,) = shown_runs([root])
    found = trained(shown, Place("train", 1, 1, "g1-e0"))
    assert [one.sample_id for one in found] == ["g1-e0/0", "g1-e0/1"]
    assert list(trained(shown, Place("train", 1, 2, "g1-e0"))) == []


def test_an_export_of_an_older_release_is_named(root):
    path = export(root, sequence(schema_version=1))
    (shown,) = shown_runs([root])
    with pytest.raises(NotTrainedTokens, match=f"{path}: line 1: schema_version: found 1"):
        list(trained(shown, Place("train", 1, 1, "g1-e0")))


def test_tokens_have_the_styles_of_the_command_line():
    one = sequence()
    page = token_markup.tokens(one, "training")
    for index, text in enumerate(["&lt;b&gt;", " go", " on↵\n", "ok"]):
        style = token_markup.css(token_style_of(one, index).rich)
        assert f'style="{style}"' in page
        assert f">{text}</span>" in page
    assert "line-through" in token_markup.css(token_style_of(one, 2).rich)
    assert "underline" in token_markup.css(token_style_of(one, 3).rich)
    assert token_markup.title(one, 2) == (
        "token 9; action, advantage -0.25, masked high; ratio 0.5; engine logprob -1; trainer logprob -1; "
        "entropy 0.75; version 3"
    )


def test_shades_by_hand():
    one = sequence()
    # The largest advantage is 0.5, at full strength (0.55); -0.25 is half of it.
    assert "rgba(21, 128, 61, 0.55)" in token_markup.tokens(one, "advantage")
    assert "rgba(185, 28, 28, 0.28)" in token_markup.tokens(one, "advantage")
    # A ratio of 2 or of a half is at full strength.
    assert token_markup.tokens(one, "ratio").count("0.55)") == 2


def test_what_models_wrote_is_escaped():
    hostile = "<script>alert(1)</script>"
    call = {"function": {"name": hostile, "arguments": hostile}}
    message = {"role": hostile, "content": hostile, "reasoning_content": hostile, "tool_calls": [call, hostile]}
    page = markup.conversation([message]) + markup.field(hostile) + markup.field({"a": hostile})
    page += markup.transcript([{"member": hostile, "slot": hostile, "text": hostile}])
    page += markup.field(f"diff --git a b\n@@ -1 +1 @@\n+{hostile}\n")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 12


def test_contents_of_every_shape_are_shown():
    page = markup.message(
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}
    )
    assert '<div class="said">one two</div>' in page
    assert "image_url" in markup.message({"role": "user", "content": [{"type": "image_url"}]})
    assert "5 more characters" in markup.field("x" * (markup.MOST_CHARACTERS + 5))


def test_a_diff_in_colours():
    page = markup.field("--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n same\n")
    assert '<span class="removed">-old\n</span><span class="added">+new\n</span><span class="same"> same' in page


def test_a_swimlane_by_hand():
    aborted = {"start_s": 2.0, "end_s": 2.5, "tool_s": 0.0, "tokens": 0, "aborted": True}
    found = charts.swimlane([*TURNS, aborted])
    starts, generated, tools = found["series"]
    assert found["yAxis"]["data"] == ["1. 7 tokens", "2. 2 tokens · branch 1 · sideCall", "3. aborted"]
    assert starts["data"] == [0.0, 0.2, 2.0]
    assert [one["value"] for one in generated["data"]] == [1.0, 0.4, 0.5]
    assert [one["itemStyle"]["color"] for one in generated["data"]] == [
        charts.GENERATION,
        charts.UNUSED,
        charts.ABORTED,
    ]
    assert tools["data"] == [0.5, 0.0, 0.0]
