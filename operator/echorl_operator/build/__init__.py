"""The manifest's compiler: from a run and where it is placed to the typed config of each role. Pure."""

from echorl_operator.build.placement import EnginePlacement, Placement, example_placement
from echorl_operator.build.role_configs import role_configs

__all__ = ["EnginePlacement", "Placement", "example_placement", "role_configs"]
