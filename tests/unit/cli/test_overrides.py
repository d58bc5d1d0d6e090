import pytest

from echorl_cli.overrides import OverrideProblem, apply_override
from echorl_testing.manifests.documents import full, shortest


@pytest.mark.parametrize(
    ("override", "keys", "value"),
    [
        ("maxSteps=3", ("spec", "maxSteps"), 3),
        ("spec.maxSteps=3", ("spec", "maxSteps"), 3),
        ("metadata.name=other", ("metadata", "name"), "other"),
        ("trainer.optimizer.lr=1e-4", ("spec", "trainer", "optimizer", "lr"), 1e-4),
        ("environments.train[1].weight=2.5", ("spec", "environments", "train", 1, "weight"), 2.5),
        ("environments.train.1.weight=2.5", ("spec", "environments", "train", 1, "weight"), 2.5),
        ("environments.eval=[]", ("spec", "environments", "eval"), []),
        ("environments.train[0].args.deep.er=x", ("spec", "environments", "train", 0, "args", "deep", "er"), "x"),
        ("algorithm.loss={klTau: 0.1}", ("spec", "algorithm", "loss"), {"klTau": 0.1}),
        ("code.path=a=b", ("spec", "code", "path"), "a=b"),
        ("trainer.seqLen=", ("spec", "trainer", "seqLen"), None),
        ("inference.extraArgs[1]=0.9", ("spec", "inference", "extraArgs", 1), 0.9),
    ],
)
def test_values_are_set_where_the_path_says(override, keys, value):
    document = full()
    apply_override(document, override)
    for key in keys:
        document = document[key]
    assert document == value


def test_mappings_on_the_way_are_made():
    document = shortest()
    apply_override(document, "algorithm.loss.klTau=0.5")
    assert document["spec"]["algorithm"] == {"loss": {"klTau": 0.5}}


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("maxStep=3", "spec.maxStep", "did you mean maxSteps?"),
        ("spec.trainer.optimiser.lr=3", "spec.trainer.optimiser", "did you mean optimizer?"),
        ("environments.train[0].wieght=3", "spec.environments.train[0].wieght", "did you mean weight?"),
        ("maxSteps.x=3", "spec.maxSteps", "a whole number"),
        ("environments.train.first.weight=1", "spec.environments.train", "the key 'first'"),
        ("environments.train[7].weight=1", "spec.environments.train[7]", "an index from 0 to 0"),
        ("environments.eval[0].interval=1", "spec.environments.eval[0]", "the list is empty"),
        ("maxSteps=[1", "spec.maxSteps", "a YAML value"),
        ("maxSteps", "--set maxSteps", "path=value"),
        ("=3", "--set =3", "path=value"),
        ("a..b=3", "--set a..b=3", "path=value"),
        ("a[x]=3", "--set a[x]=3", "path=value"),
        ("", "--set ", "path=value"),
    ],
)
def test_bad_overrides_are_explained(override, path, words):
    document = shortest()
    with pytest.raises(OverrideProblem) as caught:
        apply_override(document, override)
    assert caught.value.problem.path == path
    assert words in str(caught.value)


def test_paths_through_wrong_values_are_refused():
    document = shortest()
    document["spec"]["trainer"] = 5
    with pytest.raises(OverrideProblem, match=r"spec\.trainer: found 5"):
        apply_override(document, "trainer.replicas=2")
