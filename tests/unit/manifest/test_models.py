import pytest

from echorl_cli.manifest_file import manifest_text
from echorl_cli.yaml_text import parse_yaml
from echorl_manifest import EchoRLRun, duration_seconds, load, problems, unused_locally
from echorl_manifest.models.base import ApiModel, quantity_number
from echorl_manifest.schema import accepted_text, bare, keys
from echorl_testing.manifests.documents import full, shortest, with_value


def all_models(model=ApiModel):
    yield from model.__subclasses__()
    for inner in model.__subclasses__():
        yield from all_models(inner)


def test_shortest_manifest_gets_every_default():
    spec = load(shortest()).spec
    assert spec.model.name == "Qwen/Qwen3-0.6B"
    assert [rule.type for rule in spec.algorithm.filters] == ["zeroAdvantage"]
    assert (spec.algorithm.mode, spec.algorithm.group_size, spec.algorithm.max_staleness) == ("rl", None, 2)
    assert spec.environments.train[0].echo is None
    assert (spec.trainer.replicas, spec.inference.replicas, spec.weight_transfer.mode) == (1, 1, "http")
    assert spec.record.enabled is False


def test_full_manifest_is_valid():
    assert problems(full()) == []


@pytest.mark.parametrize("document", [shortest(), full()], ids=["shortest", "full"])
def test_written_manifest_reads_back_as_the_same_run(document):
    run = load(document)
    again = load(parse_yaml(manifest_text(run)))
    assert (again.metadata, again.spec) == (run.metadata, run.spec)


@pytest.mark.parametrize("model", sorted(all_models(), key=lambda model: model.__name__), ids=lambda m: m.__name__)
def test_every_field_is_documented_and_described(model):
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name}"
        assert accepted_text(field.rebuild_annotation())
        assert "_" not in (field.alias or name)


def test_null_means_not_set_but_not_for_unknown_keys():
    document = with_value(full(), "spec.trainer.seqLen", None)
    document = with_value(document, "spec.environments.train.0.maxTurns", None)
    run = load(document)
    assert run.spec.trainer.seq_len is None
    assert run.spec.environments.train[0].max_turns is None
    (problem,) = problems(with_value(full(), "spec.trainer.seqLenn", None))
    assert problem.path == "spec.trainer.seqLenn"


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("spec.maxSteps", 10**5000, "a whole number of 16,610 bits"),
        ("spec.seed", -(2**63) - 1, "-9223372036854775809"),
        ("metadata.labels", {"a b/c/d": "x"}, 'the key "a b/c/d"'),
        ("metadata.labels", {"team": "a b"}, '"a b" as the value of "team"'),
        ("metadata.labels", {"team": "x" * 64}, "as the value"),
        ("metadata.annotations", {"UPPER.example/x": "y"}, 'the key "UPPER.example/x"'),
        ("metadata.annotations", {"x": "y" * 300_000}, "300,001 bytes"),
        ("metadata.namespace", "Bad_NS", "Bad_NS"),
        ("spec.model.renderer", "nonsense", "nonsense"),
        ("spec.trainer.image", "bad image;rm -rf /", "bad image"),
        ("spec.trainer.image", "-x", "-x"),
        ("spec.environments.train.0.args", {"x": "y" * 200_000}, "bytes of JSON"),
        ("spec.environments.train.0.args", {"x": [float("nan")]}, "nan at .x[0]"),
        ("spec.environments.train.0.args", {"x": 10**99}, "a whole number of more than 99 digits at .x"),
    ],
    ids=lambda value: (hex(value) if isinstance(value, int) else str(value))[:40],
)
def test_what_no_cluster_takes_is_refused_with_its_field(path, value, found):
    (problem,) = problems(with_value(full(), path, value))
    assert problem.path == path.replace(".0", "[0]")
    assert found in problem.found
    assert len(str(problem)) < 1000


@pytest.mark.parametrize(
    "image",
    ["trainer", "team/trainer:1.2", "registry.example.com:5000/a/b_c:v1", f"x@sha256:{'a' * 64}", "[::1]:5000/x:y"],
)
def test_images_are_named_as_registries_name_them(image):
    assert problems(with_value(full(), "spec.trainer.image", image)) == []


def test_labels_and_annotations_are_those_of_kubernetes():
    document = with_value(full(), "metadata.labels", {"team": "", "example.com/Team_1.x": "A.b_c-1"})
    assert problems(with_value(document, "metadata.annotations", {"example.com/owner": "any text\n"})) == []


def test_arguments_take_whole_numbers_of_python():
    assert problems(with_value(full(), "spec.environments.train.0.args", {"x": 2**70})) == []
    assert problems(with_value(full(), "spec.environments.train.0.args", {"x": 1 - 10**99})) == []


def test_null_inside_free_form_values_stays():
    assert load(full()).spec.environments.train[0].args["nested"]["list"] == [1, None, "x"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.maxSteps", "5"),
        ("spec.maxSteps", 5.0),
        ("spec.maxSteps", True),
        ("spec.trainer.compile", "true"),
        ("spec.trainer.compile", 1),
        ("spec.trainer.optimizer.lr", "1e-6"),
        ("spec.trainer.optimizer.lr", True),
        ("spec.model.name", 7),
        ("spec.environments.train.0.workers", "3"),
        ("spec.environments.train.0.workers", True),
    ],
)
def test_nothing_is_coerced(path, value):
    (problem,) = problems(with_value(full(), path, value))
    assert problem.path == path.replace("train.0", "train[0]")


def test_whole_number_serves_as_number():
    assert load(with_value(full(), "spec.trainer.optimizer.lr", 1)).spec.trainer.optimizer.lr == 1.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("250ms", 0.25), ("1m0.5s", 60.5), ("24h", 86400)],
)
def test_durations(text, seconds):
    assert duration_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "10", "m", "10 m", "-1s", "0s", "1d", "1h-3m", "10m ", "\uff11s", "1e3s", "1..5s", "1h1h", "30m1h", "1s1ms1s"],
)
def test_texts_that_are_no_duration(text):
    with pytest.raises(ValueError, match="duration"):
        duration_seconds(text)
    (problem,) = problems(with_value(full(), "spec.stallPolicy.noStepFor", text))
    assert problem.path == "spec.stallPolicy.noStepFor"
    assert "1h30m" in problem.accepted


@pytest.mark.parametrize(
    ("text", "number"),
    [("500", 500), ("1.5k", 1500), ("2G", 2e9), ("3Mi", 3 * 2**20), ("0.5Gi", 2**29), ("1Pi", 2**50), ("1T", 1e12)],
)
def test_quantities(text, number):
    assert quantity_number(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1Gi", "1gi", "1e3", "1..5G"])
def test_texts_that_are_no_quantity(text):
    with pytest.raises(ValueError, match="quantity"):
        quantity_number(text)


def test_keys_are_those_of_the_manifest():
    spec = bare(keys(EchoRLRun)["spec"].annotation)
    assert {"maxSteps", "weightTransfer", "ttlSecondsAfterFinished"} <= set(keys(spec))


def test_unused_locally_names_what_is_set_and_nothing_else():
    assert unused_locally(load(shortest()).spec) == []
    assert unused_locally(load(full()).spec) == [
        "spec.activeDeadlineSeconds",
        "spec.egress",
        "spec.failurePolicy.forceDeleteOnNodeLoss",
        "spec.imagePullSecrets",
        "spec.inference.autoscale",
        "spec.inference.image",
        "spec.inference.network",
        "spec.monitors.wandb.secretName",
        "spec.orchestrator.image",
        "spec.storage.retain",
        "spec.storage.size",
        "spec.storage.storageClassName",
        "spec.trainer.image",
        "spec.trainer.network",
        "spec.trainer.template",
        "spec.ttlSecondsAfterFinished",
    ]
