"""The scheduler's words on a pod that no node can take, read and said again as part of a sentence."""

import re
from dataclasses import dataclass

_UNAVAILABLE = re.compile(r"0/(?P<nodes>\d+) nodes are available: (?P<why>.*)", re.DOTALL)
_AFTERTHOUGHT = re.compile(r"\.?\s+(?:no new claims to deallocate|preemption:|Preemption:).*", re.DOTALL)
_COUNTED = re.compile(r"(?P<nodes>\d+) (?P<why>.+)", re.DOTALL)
_INSUFFICIENT = re.compile(r"Insufficient (?P<resource>\S+)")
_TAINT = re.compile(r"node\(s\) had untolerated taints?(?:\(s\))?(?: \{(?P<taint>[^}]*)\})?")
_NO_CLAIM = re.compile(r'persistentvolumeclaim "(?P<claim>[^"]+)" not found')
_NO_SELECTOR = "node(s) didn't match Pod's node affinity/selector"
_NOT_BESIDE = "node(s) didn't match pod affinity rules"
_UNBOUND = "unbound immediate PersistentVolumeClaims"

_KNOWN = (
    (_NO_SELECTOR, "do not match its node selector or affinity"),
    ("node(s) were unschedulable", "are cordoned"),
    ("Too many pods", "hold as many pods as they may"),
    ("node(s) had volume node affinity conflict", "cannot reach its volume"),
    ("node(s) didn't find available persistent volumes to bind", "have no volume that fits its claim"),
    (_NOT_BESIDE, "do not run the pods that it must be beside"),
    ("node(s) didn't match pod anti-affinity rules", "run pods that it must not be beside"),
    ("node(s) didn't have free ports", "have no free host port for it"),
    ("node(s) did not have enough free storage", "have too little free storage"),
)
_ONE = {"are": "is", "have": "has", "do": "does", "run": "runs", "hold": "holds"}


@dataclass(frozen=True)
class Unfit:
    """Why some nodes cannot take the pod."""

    nodes: int
    why: str
    """The cause as the scheduler says it."""

    @property
    def resource(self) -> str:
        """What they have too little of; empty if that is not why."""
        match = _INSUFFICIENT.fullmatch(self.why)
        return match["resource"] if match else ""

    @property
    def words(self) -> str:
        """``3 have too little nvidia.com/gpu free``."""
        if self.resource:
            return f"{self.nodes} {_have(self.nodes)} too little {self.resource} free"
        if taint := _TAINT.fullmatch(self.why):
            which = _taint_text(taint["taint"])
            return f"{self.nodes} {_have(self.nodes)} {which} that it does not tolerate"
        phrase = next((words for start, words in _KNOWN if self.why.startswith(start)), None)
        return f"{self.nodes}: {self.why}" if phrase is None else f"{self.nodes} {_singular(self.nodes, phrase)}"


@dataclass(frozen=True)
class Verdict:
    """What the scheduler says of one pod."""

    nodes: int
    """Nodes that there are."""
    unfit: tuple[Unfit, ...]
    """The nodes that do not fit, by cause; a node with several counts in each. Empty where no node was looked at."""
    other: str
    """What keeps the pod from every node, whatever they have; empty if it depends on them."""

    @property
    def missing_claim(self) -> str:
        """Name of a volume claim that does not exist; else empty."""
        match = _NO_CLAIM.search(self.other)
        return match["claim"] if match else ""

    @property
    def unbound(self) -> bool:
        """Whether a claim that it mounts has no volume yet."""
        return _UNBOUND in self.other

    @property
    def selects(self) -> bool:
        """Whether nodes lack what its node selector or node affinity asks for."""
        return any(group.why.startswith(_NO_SELECTOR) for group in self.unfit)

    @property
    def follows(self) -> bool:
        """Whether it must be beside a pod that is not there: what keeps that one from every node keeps this one."""
        return any(group.why.startswith(_NOT_BESIDE) for group in self.unfit)

    @property
    def resources(self) -> tuple[str, ...]:
        """What nodes have too little of, most nodes first."""
        return tuple(group.resource for group in self.unfit if group.resource)

    @property
    def words(self) -> str:
        """``of 5 nodes, 3 have too little nvidia.com/gpu free, 2 are cordoned``."""
        if self.other:
            return self.other
        if not self.nodes:
            return "the cluster has no nodes"
        groups = ", ".join(group.words for group in self.unfit)
        return f"of {self.nodes} {'node' if self.nodes == 1 else 'nodes'}, {groups}"


def read(message: str) -> Verdict:
    """A false ``PodScheduled`` condition's message. What is not known is kept as it is said."""
    message = _AFTERTHOUGHT.sub("", message.strip())
    if message.startswith("no nodes available"):
        return Verdict(0, (), "")
    match = _UNAVAILABLE.fullmatch(message)
    if match is None:
        return Verdict(0, (), message.rstrip("."))
    why = match["why"].rstrip(".")
    parts = [_COUNTED.fullmatch(part) for part in re.split(r", (?=\d+ )", why)]
    if not parts or not all(parts):
        return Verdict(int(match["nodes"]), (), why)
    unfit = [Unfit(int(part["nodes"]), part["why"]) for part in parts if part is not None]
    return Verdict(int(match["nodes"]), tuple(sorted(unfit, key=lambda group: -group.nodes)), "")


def _have(nodes: int) -> str:
    return "has" if nodes == 1 else "have"


def _taint_text(taint: str | None) -> str:
    if taint is None:
        return "a taint"
    key, _, amount = taint.partition(": ")
    return f"the taint {key}={amount}" if amount else f"the taint {key.rstrip(': ')}"


def _singular(nodes: int, words: str) -> str:
    if nodes != 1:
        return words
    verb, _, rest = words.partition(" ")
    return f"{_ONE.get(verb, verb)} {rest}"
