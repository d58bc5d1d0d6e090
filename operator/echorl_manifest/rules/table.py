"""Simple rules between fields, one row each, by the part of the spec.

What takes arithmetic stands in both languages: in modules beside this one, and in those of the same names in
``echorl_manifest.crd.rules``.
"""

from echorl_core.losses import LOSSES, bounded_losses, listed, losses_with
from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_manifest.models.algorithm import Loss
from echorl_manifest.models.environments import OPENENV_IMAGE
from echorl_manifest.rules.environments import ECHO_ROLES, GIVEN, GIVEN_NAMES
from echorl_manifest.rules.modes import TEACHERS_URL
from echorl_manifest.rules.multi_agent import ENDPOINTS_URL
from echorl_manifest.rules.row import (
    Compared,
    Needed,
    Refused,
    Row,
    absent,
    exclusive,
    given,
    has,
    has_other,
    like,
    only_for,
    unlike,
)

ALGORITHM = ("spec.algorithm",)
TRAIN = ("spec.environments.train[]",)
OWN = ("spec.environments.train[].algorithm",)
LOSS = ("spec.algorithm.loss", f"{OWN[0]}.loss")
ADVANTAGE = ("spec.algorithm.advantage", f"{OWN[0]}.advantage")
SHAPING = tuple(f"{place}.lengthShaping" for place in ADVANTAGE)
FILTERS = ("spec.algorithm.filters[]", f"{OWN[0]}.filters[]")
ENVIRONMENTS = (*TRAIN, "spec.environments.eval[]")
SAMPLING = (f"{TRAIN[0]}.sampling",)
MEMBERS = tuple(f"{place}.members{{}}" for place in ENVIRONMENTS)
TEACHER = ("teacher.url", "teacher.model", "teacher.secretName")
OPTIMIZER = ("spec.trainer.optimizer",)
INFERENCE = ("spec.inference",)
CHECKPOINT = ("spec.checkpoint",)
SPEC, WANDB, RESUME, STORAGE = (("spec",), ("spec.monitors.wandb",), ("spec.resume",), ("spec.storage",))

LONGEST_SERVED_NAME = 18
"""Characters of the name of an environment that is an image: its Service has the run's, of up to 40, in its own."""
_ANOTHER_RUNS = r"(^|-)(trainer|inference|orchestrator)$|(^|-)env-"
"""Names of such environments by which the server of run ``a`` were called as what a run ``a-env...`` has."""
_SETTINGS = dict.fromkeys(setting for loss in LOSSES.values() for setting in loss.settings)
_RL, _SFT, _OPD = (has("spec.algorithm.mode", mode) for mode in ("rl", "sft", "opd"))
_STATELESS = has("type", "sgd", "signSgd")
_OWN_OF_MODE = {"sft": ("groupSize",), "opd": ("groupSize", "filters")}
_NOT_FILTERS = {
    "sft": (
        ("zeroAdvantage", "gibberish", "repetition", "difficulty"),
        "custom",
        "mode sft has neither advantages nor samples",
    ),
    "opd": (("zeroAdvantage",), "gibberish, repetition, difficulty or custom", "mode opd has no advantages"),
}
_OF_GIVEN_CONVERSATIONS = (
    "it has given conversations, for train environments of mode sft",
    f"builtin:<name> other than {' and '.join(GIVEN_NAMES)}, or import:<pkg.module:factory>",
)
_NO_SUCH_LOGPROBS = "the trainer's logprobs would not match the sampled ones"
_NO_BASE = "without model.lora the engines hold the policy alone; serve the base model yourself, as an endpoint"
_NEEDS_ENGINES = "only a run of mode sft without eval environments needs no engines"
_BOUNDED = bounded_losses()
_FP8 = has("spec.inference.quantization", "fp8")
_WITHOUT_STATE = "sgd and signSgd keep no moments"
_WITHOUT_PROJECT = "only with project: without one there is no W&B"


def _of_custom(places: tuple[str, ...]) -> tuple[Row, ...]:
    """A function of the user's own, and nothing of it beside a built-in."""
    return (
        Needed(places, "import", (has("type", "custom"),), "an import path such as 'pkg.module:name'"),
        only_for(places, "import", "type", "custom"),
        only_for(places, "kwargs", "type", "custom", in_cel=False),
    )


def _of_losses(setting: str) -> Refused:
    """A setting of losses, for the types that have it."""
    types = losses_with(setting)
    return only_for(LOSS, str(Loss.model_fields[setting].alias), "type", *types, reason=f"only for {listed(types)}")


PARTS_OF_THE_ALGORITHM: tuple[Row, ...] = (
    *_of_custom(LOSS),
    *map(_of_losses, _SETTINGS),
    *_of_custom(FILTERS),
    only_for(FILTERS, "easyFrom", "type", "difficulty"),
    only_for(FILTERS, "hardTo", "type", "difficulty"),
    Compared(FILTERS, "hardTo", "a number below", "easyFrom", when=(has("type", "difficulty"),), defaults=(0.0, 1.0)),
    *_of_custom(ADVANTAGE),
    only_for(ADVANTAGE, "baselinePer", "type", "rae"),
    only_for(ADVANTAGE, "momentum", "type", "rae"),
    only_for(ADVANTAGE, "order", "type", "rae"),
    only_for(ADVANTAGE, "lengthShaping", "type", "groupMean"),
    only_for(SHAPING, "completionWeight", "by", "tokens", reason="only for tokens"),
    only_for(SHAPING, "environmentWeight", "by", "tokens", reason="only for tokens"),
    Refused((f"{OWN[0]}.loss",), "aggregation", (), "one denominator serves all environments"),
    *(
        Refused((place,), "type", (), "functions of one's own are the run's alone", "a built-in type", only=("custom",))
        for _, place in (LOSS, ADVANTAGE, FILTERS)
    ),
    exclusive(ALGORITHM, "batchSize", "tokenBatchSize"),
)
MODES: tuple[Row, ...] = (
    Refused(ALGORITHM, "loss", (_SFT,), "mode sft trains by cross-entropy alone"),
    Refused(ALGORITHM, "rlWeight", (_SFT,), "mode sft has no policy gradient"),
    Refused(ALGORITHM, "rlWeight", (_OPD,), "mode opd has a single term"),
    Refused(ALGORITHM, "advantage", (_SFT,), "mode sft has no advantages"),
    Refused(ALGORITHM, "advantage", (_OPD,), "the teacher's logprobs stand in for advantages"),
    Refused(("spec.trainer",), "routerReplay", (_SFT,), "mode sft trains on what no engine has routed", only=(True,)),
    Refused(ALGORITHM, "rewardPerBranch", (_SFT,), "mode sft has no rewards of branches"),
    Refused(ALGORITHM, "rewardPerBranch", (_OPD,), "mode opd has no rewards of branches"),
    Refused(ALGORITHM, "echo", (_SFT,), "mode sft has no ECHO term"),
    Refused(ALGORITHM, "echo", (_OPD,), "mode opd has no ECHO term"),
    Refused(ALGORITHM, "loss.type", (_OPD,), "mode opd has a loss of its own", but=("dppo",)),
    Refused(ALGORITHM, "loss.maskHigh", (_OPD,), "the mask of mode opd has one side"),
    *(
        Refused((place,), "type", (has("spec.algorithm.mode", mode),), reason, accepted, only=types)
        for place in FILTERS
        for mode, (types, accepted, reason) in _NOT_FILTERS.items()
    ),
    only_for(ALGORITHM, "sft", "mode", "sft"),
    *(Refused(ALGORITHM, path, (_RL,), "only for modes sft and opd") for path in TEACHER),
    *(
        Needed(ALGORITHM, f"teacher.{key}", when, accepted, f"mode {mode} has a teacher")
        for key, accepted in (("url", TEACHERS_URL), ("model", "the name it serves"))
        for mode, when in (("opd", (_OPD,)), ("sft", (_SFT, given(*TEACHER))))
    ),
    Refused(TRAIN, "type", (has_other("spec.algorithm.mode", "sft"),), *_OF_GIVEN_CONVERSATIONS, only=GIVEN),
    Refused(ENVIRONMENTS[1:], "type", (), *_OF_GIVEN_CONVERSATIONS, only=GIVEN),
    Refused(TRAIN, "curriculum", (_SFT,), "mode sft has no rewards of the policy"),
    Refused(
        TRAIN,
        "sampling.temperature",
        (_OPD,),
        "the teacher's logprobs are those of temperature 1",
        "1",
        but=(0.0, 1.0),
    ),
    *(
        Refused(
            OWN,
            key,
            (has("spec.algorithm.mode", mode),),
            f"all environments share it in mode {mode}",
            f"one of {', '.join(accepted)}",
        )
        for mode, accepted in _OWN_OF_MODE.items()
        for key in ("loss", "rlWeight", "advantage", "filters")
        if key not in accepted
    ),
    Refused(
        SPEC,
        "model.renderer",
        (_SFT,),
        "renderer engine cannot tell whose a token is, and mode sft asks for it",
        "auto, compact or a family",
        only=("engine",),
    ),
    *(
        Refused(SPEC, "inference.replicas", when, _NEEDS_ENGINES, "at least 1", only=(0,))
        for when in ((has_other("spec.algorithm.mode", "sft"),), (_SFT, given("spec.environments.eval")))
    ),
)
ENVIRONMENTS_AND_SAMPLING: tuple[Row, ...] = (
    Needed(SPEC, "environments.train", (), "at least one environment", "a run needs something to learn in"),
    Refused(
        ENVIRONMENTS,
        "name",
        (),
        "'all' is reserved for sums over environments",
        "any other name",
        only=(RESERVED_ENVIRONMENT_NAME,),
    ),
    Refused(
        ENVIRONMENTS,
        "server",
        (unlike("type", OPENENV_IMAGE),),
        "only for openenv:<registry>/<image>",
        "no server block",
        found="a server block",
    ),
    Refused(
        ENVIRONMENTS,
        "name",
        (like("type", OPENENV_IMAGE), like("name", f"^.{{{LONGEST_SERVED_NAME + 1}}}")),
        "its server is called <run>-env-<name>",
        f"a name of at most {LONGEST_SERVED_NAME} characters",
    ),
    Refused(
        ENVIRONMENTS,
        "name",
        (like("type", OPENENV_IMAGE), like("name", _ANOTHER_RUNS)),
        "its server is called <run>-env-<name>, and so may be a Service of another run",
        "a name without env- in it that does not end in trainer, inference or orchestrator",
    ),
    Refused(
        TRAIN,
        "echo",
        (absent(*(f"echo.{key}" for key in (*ECHO_ROLES, "filter"))),),
        "an empty echo block trains nothing",
        f"at least one of {', '.join(ECHO_ROLES)} and filter",
    ),
    *(
        Refused(TRAIN, "echo", (when,), reason, "no echo block", found="an echo block")
        for when, reason in (
            (_SFT, "mode sft has no ECHO term"),
            (_OPD, "mode opd has no ECHO term"),
            (has("spec.algorithm.loss.type", "custom"), "a custom loss has no ECHO term"),
            (has("spec.model.renderer", "engine"), "renderer engine cannot tell whose a token is"),
        )
    ),
    Compared((f"{TRAIN[0]}.curriculum",), "hardTo", "a number below", "easyFrom"),
    Refused(SAMPLING, "temperature", (), "greedy tokens carry no usable logprob", "a number above 0", only=(0.0,)),
    Refused(SAMPLING, "topP", (), _NO_SUCH_LOGPROBS, "1 (other values only in eval environments)", but=(1.0,)),
    *(
        Refused(SAMPLING, key, (), _NO_SUCH_LOGPROBS, "no value (only in eval environments)")
        for key in ("topK", "presencePenalty", "frequencyPenalty", "repetitionPenalty")
    ),
    *(
        Refused(MEMBERS, "policy", (when,), reason, "learner or endpoint", only=("base",))
        for when, reason in (
            (has("spec.model.renderer", "engine"), "with renderer engine requests for chats go to the policy alone"),
            (absent("spec.model.lora"), _NO_BASE),
        )
    ),
    *(only_for(MEMBERS, key, "policy", "endpoint") for key in ("url", "model", "secretName")),
    *(
        Needed(MEMBERS, key, (has("policy", "endpoint"),), accepted, "needed by policy endpoint")
        for key, accepted in (
            ("url", ENDPOINTS_URL),
            ("model", "the model's name at the endpoint"),
        )
    ),
)
RUNTIME: tuple[Row, ...] = (
    Compared(("spec.inference.autoscale",), "max", "at least", "min"),
    Compared(INFERENCE, "replicas", "at least", "autoscale.min"),
    Compared(INFERENCE, "autoscale.max", "at least", "replicas"),
    *(
        Refused(SPEC, "inference.quantization", (when,), reason)
        for when, reason in (
            (has("inference.gpusPerReplica", 0), "CPUs do not multiply fp8"),
            (has_other("model.dtype", "bfloat16"), "fp8 is for models in bfloat16"),
            (given("model.lora"), "adapters on quantized layers were never tried"),
        )
    ),
    *(
        Refused(
            places,
            "algorithm.loss.type",
            (_FP8,),
            "engines in fp8 are another policy than the trainer's, and this loss neither clips nor masks their ratio",
            listed(_BOUNDED),
            but=_BOUNDED,
        )
        for places in (SPEC, TRAIN)
    ),
    Compared(("spec.inference.speculative",), "promptLookupMax", "at least", "promptLookupMin"),
    Compared(
        SPEC,
        "trainer.seqLen",
        "at least",
        "model.maxModelLen",
        "a sample of full length must fit into one micro-batch",
    ),
    Refused(OPTIMIZER, "stateDtype", (_STATELESS,), _WITHOUT_STATE, "float32", but=("float32",)),
    Refused(OPTIMIZER, "cpuOffload", (_STATELESS,), _WITHOUT_STATE, "false", but=(False,)),
    *(Refused(WANDB, key, (absent("project"),), _WITHOUT_PROJECT) for key in ("entity", "baseUrl", "secretName")),
    Refused(WANDB, "mode", (absent("project"),), _WITHOUT_PROJECT, "online", but=("online",)),
    Needed(RESUME, "step", (has("policy", "FromStep"),), "the step of a committed checkpoint", "needed by FromStep"),
    only_for(RESUME, "step", "policy", "FromStep"),
    Refused(RESUME, "onExisting", (has_other("policy", "Never"),), "only for policy Never", "Refuse", but=("Refuse",)),
    Compared(CHECKPOINT, "keepEvery", "a multiple of", "interval"),
    Refused(
        SPEC,
        "checkpoint.memory.mirror",
        (has("trainer.replicas", 1),),
        "one pod has no neighbour",
        "false, or trainer.replicas from 2",
        but=(False,),
    ),
    Refused(
        CHECKPOINT,
        "weightsOnlyKeepLast",
        (absent("weightsOnlyEvery"),),
        "only with weightsOnlyEvery: without it there are no exports",
        "5",
        but=(5,),
    ),
    exclusive(("spec.code",), "configMap", "path"),
    Refused(
        SPEC,
        "storage.accessMode",
        (has_other("trainer.replicas", 1),),
        "pods on several nodes share the volume",
        "ReadWriteMany",
        only=("ReadWriteOnce",),
    ),
    *(
        Refused(STORAGE, key, (given("claimName"),), "claimName names a claim that exists")
        for key in ("size", "storageClassName")
    ),
    Refused(
        ("spec.sandboxes",),
        "warmReplicas",
        (has("provider", "process"),),
        "only for sandboxes in pods",
        "0",
        but=(0,),
    ),
)
TABLE = (*ENVIRONMENTS_AND_SAMPLING, *PARTS_OF_THE_ALGORITHM, *MODES, *RUNTIME)
