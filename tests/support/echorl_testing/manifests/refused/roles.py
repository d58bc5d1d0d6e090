"""The model, and the roles that hold it: trainer and engines."""

from echorl_testing.manifests.refused.case import Refused

ROLES: list[Refused] = [
    Refused(
        [("spec.model.name", "/models/x"), ("spec.model.revision", "v2")],
        "spec.model.revision",
        "no value",
        id="revision of a path",
    ),
    Refused([("spec.trainer.seqLen", 16383)], "spec.trainer.seqLen", "16384", id="seqLen below maxModelLen"),
    Refused([("spec.trainer.parallel.fsdp", 2)], "spec.trainer.parallel.fsdp", "auto", id="fsdp x replicate"),
    Refused(
        [("spec.trainer.parallel", {"replicate": 3})],
        "spec.trainer.parallel.replicate",
        "divisor of the 8",
        id="replicate",
    ),
    Refused(
        [("spec.inference.autoscale", {"min": 5, "max": 4})],
        "spec.inference.autoscale.max",
        "at least min (5)",
        id="autoscale's bounds",
    ),
    Refused(
        [("spec.inference", {"autoscale": {"min": 2, "max": 4}})],
        "spec.inference.replicas",
        "at least autoscale.min (2)",
        id="fewer replicas than autoscale allows, by default",
    ),
    Refused(
        [("spec.inference.autoscale.max", 2)],
        "spec.inference.autoscale.max",
        "at least replicas (3)",
        id="more replicas than autoscale allows",
    ),
    *(
        Refused(
            [*changes, ("spec.trainer.elastic", {"minReplicas": fewest})],
            "spec.trainer.elastic.minReplicas",
            "fewer than replicas, with ranks that replicate x context and x expert divide, and fsdp auto",
            id=why,
        )
        for why, fewest, changes in (
            ("an elastic gang that is never smaller", 2, [("spec.trainer.parallel", {})]),
            ("an elastic gang of shards that are counted", 1, [("spec.trainer.parallel", {"fsdp": 8})]),
            (
                "an elastic gang whose copies fewer pods do not hold",
                1,
                [("spec.trainer.parallel", {"replicate": 8})],
            ),
            ("an elastic gang whose experts fewer pods do not divide", 1, [("spec.trainer.parallel", {"expert": 8})]),
        )
    ),
    Refused([("spec.inference.tensorParallel", 4)], "spec.inference.tensorParallel", "at most 2", id="tensorParallel"),
    Refused([("spec.inference.extraArgs", ["--model=x"])], "spec.inference.extraArgs[0]", "other", id="own argument"),
    Refused(
        [("spec.inference.extraArgs", ["--seed", "--logprobs_mode", "raw_logprobs"])],
        "spec.inference.extraArgs[1]",
        "other",
        id="own argument, underscores",
    ),
    *(
        Refused([("spec.inference.extraArgs", [argument])], "spec.inference.extraArgs[0]", "whole names", id=argument)
        for argument in (
            *("--max-model", "--max_model=8", "--speculative-config.model=/m", "--no-enable-scale", "--api-key=x"),
            *("--uds", "--trust-remote-code", "--data-parallel-rank=1", "--ssl-keyf=k", "--spec-mod=/m", "--"),
        )
    ),
    *(
        Refused([("spec.inference.extraArgs", [argument])], "spec.inference.extraArgs[0]", "long names", id=argument)
        for argument in ("-tp", "-dp=2", "-q", "-O3")
    ),
    Refused(
        [("spec.inference.speculative", {"method": "ngram", "promptLookupMin": 5})],
        "spec.inference.speculative.promptLookupMax",
        "at least promptLookupMin (5)",
        id="a longest match below the shortest",
    ),
    *(
        Refused([("spec.inference.quantization", "fp8"), *changes], path, accepted, id=why)
        for why, changes, path, accepted in (
            ("fp8 on CPUs", [("spec.inference.gpusPerReplica", 0)], "spec.inference.quantization", "no value"),
            ("fp8 of float32", [("spec.model.dtype", "float32")], "spec.inference.quantization", "no value"),
            ("fp8 under an adapter", [("spec.model.lora", {})], "spec.inference.quantization", "no value"),
            (
                "fp8 without a bound of the ratio",
                [("spec.algorithm.loss", {"type": "reinforce"})],
                "spec.algorithm.loss.type",
                "dppo, ipo, grpo and cispo",
            ),
        )
    ),
    Refused(
        [
            ("spec.inference.quantization", "fp8"),
            ("spec.environments.train.0.algorithm", {"loss": {"type": "reinforce"}}),
        ],
        "spec.environments.train[0].algorithm.loss.type",
        "dppo, ipo, grpo and cispo",
        id="fp8 without a bound of an environment's ratio",
        server_path="spec.environments.train",
        server_says="engines in fp8",
    ),
    Refused(
        [("spec.inference.extraHeaders.0.name", "X Team")],
        "spec.inference.extraHeaders[0].name",
        "letters, digits",
        id="a header's name",
    ),
    Refused(
        [("spec.inference.extraHeaders.0.value", "t\u00e9am")],
        "spec.inference.extraHeaders[0].value",
        "of ASCII",
        id="a header's value",
    ),
    *(
        Refused([(f"spec.{role}.network", network)], f"spec.{role}.network.{path}", accepted, id=f"{why} of {role}")
        for role in ("trainer", "inference")
        for why, network, path, accepted in (
            ("an interface", {"interface": "=eth0"}, "interface", "the name of a network interface"),
            ("a resource of no plug-in", {"rdma": {"resource": "hca"}}, "rdma.resource", "of a device plug-in"),
            ("a card", {"rdma": {"resource": "rdma/hca", "hcas": ["^mlx5"]}}, "rdma.hcas[0]", "the name of a card"),
        )
    ),
    Refused(
        [("spec.trainer.parallel", {"context": 3})], "spec.trainer.parallel.context", "divisor of the 8", id="context"
    ),
    Refused(
        [("spec.trainer.parallel", {"replicate": 2, "expert": 8})],
        "spec.trainer.parallel.expert",
        "divisor of the ranks of a copy",
        id="expert",
    ),
]
