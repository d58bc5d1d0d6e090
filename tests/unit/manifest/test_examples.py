"""Examples are what they say they are."""

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[3] / "examples"


def spec(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
    return found


def test_the_quickstart_on_a_cluster_differs_in_its_model_and_its_volume_alone() -> None:
    here, there = spec("quickstart"), spec("quickstart-cluster")
    assert there.pop("storage") == {"claimName": "quickstart", "accessMode": "ReadWriteOnce"}
    assert there["model"].pop("name") == "/models/quickstart"
    del here["model"]["name"]
    assert there == here


def test_rl_only_is_the_quickstart_without_echo() -> None:
    with_echo, without = spec("quickstart"), spec("quickstart-rl-only")
    del with_echo["environments"]["train"][0]["echo"]
    assert without == with_echo


def test_lora_is_a_shorter_quickstart_with_an_adapter_and_a_learning_rate_for_it() -> None:
    full, adapter = spec("quickstart"), spec("lora")
    assert adapter["model"].pop("lora")["rank"] == 8
    assert adapter["trainer"]["optimizer"].pop("lr") > full["trainer"]["optimizer"].pop("lr")
    assert adapter.pop("maxSteps") < full.pop("maxSteps")
    assert adapter["environments"]["eval"][0].pop("interval") < full["environments"]["eval"][0].pop("interval")
    # What an adapter learns was measured with more episodes a step.
    assert adapter["algorithm"].pop("batchSize") > full["algorithm"].pop("batchSize")
    assert adapter == full


def test_debates_differ_in_who_plays_and_who_decides_alone() -> None:
    plain, frozen, judged = spec("debate"), spec("debate-frozen"), spec("debate-judged")
    for one in (plain, frozen, judged):
        del one["algorithm"]["advantage"]
        one["environments"]["train"][0].pop("members", None)
    assert frozen["model"].pop("lora")["rank"] == 8
    assert frozen["trainer"]["optimizer"].pop("lr") > plain["trainer"]["optimizer"]["lr"]
    frozen["trainer"]["optimizer"]["lr"] = plain["trainer"]["optimizer"]["lr"]
    assert frozen == plain
    arguments = judged["environments"]["train"][0]["args"]
    assert (arguments["judge"], arguments | {"judge": "rule"}) == ("member", plain["environments"]["train"][0]["args"])
    judged["environments"]["train"][0]["args"] = plain["environments"]["train"][0]["args"]
    assert judged == plain


def test_rlvr_debate_and_consultancy_share_questions_model_and_eval() -> None:
    found = {name: spec(name) for name in ("rlvr", "debate", "consultancy")}
    questions = []
    for name, one in found.items():
        (train,) = one["environments"].pop("train")
        assert train["type"] == f"builtin:{'choice' if name == 'rlvr' else name}"
        questions.append({key: train["args"][key] for key in ("split", "seed")})
        one["algorithm"].pop("advantage", None)
    assert questions[0] == questions[1] == questions[2]
    assert found["rlvr"] == found["debate"] == found["consultancy"]
