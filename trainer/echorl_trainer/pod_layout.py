"""Where a trainer pod's ranks stand in the gang, from the variables that the operator gave the pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core import names


@dataclass(frozen=True)
class Layout:
    """Where this pod's ranks stand in the gang."""

    pods: int
    index: int
    ranks_per_pod: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Layout":
        """Read what the operator gave this pod.

        Raises:
            ValueError: names every variable that is missing or wrong.
        """
        lowest = {names.ENV_PODS: 1, names.ENV_POD_INDEX: 0, names.ENV_RANKS_PER_POD: 1}
        problems = [
            f"{name}: found {environ.get(name, '')!r}, accepted is an integer from {least}"
            for name, least in lowest.items()
            if not environ.get(name, "").isdigit() or int(environ[name]) < least
        ]
        if problems:
            raise ValueError("; ".join(problems))
        found = cls(*(int(environ[name]) for name in lowest))
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
        if found.world_size > 1 and missing:
            raise ValueError(f"environment variables are missing: {', '.join(missing)}")
        return found

    @property
    def is_spare(self) -> bool:
        """Whether the pod is none of the gang's, and holds a place until the gang grows."""
        return self.index >= self.pods

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.pods * self.ranks_per_pod

    def rank(self, local: int) -> int:
        """Number in the gang of this pod's rank ``local``."""
        return self.index * self.ranks_per_pod + local

    @property
    def ranks(self) -> range:
        """Numbers in the gang of this pod's ranks."""
        return range(self.rank(0), self.rank(0) + self.ranks_per_pod)

    def environment(self, local: int) -> dict[str, str]:
        """Variables of one rank, as torchrun sets them."""
        return {"RANK": str(self.rank(local)), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self.world_size)}
