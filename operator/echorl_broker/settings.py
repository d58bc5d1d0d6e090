"""What an installation decides for sandbox pods; the chart writes the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from echorl_core.capped import read_capped
from echorl_manifest.models.base import Image, ObjectName, Text
from echorl_operator.settings import Labels, SettingsPart

_MAX_BYTES = 1_000_000
KubernetesParts = Annotated[tuple[dict[str, Any], ...], Field(strict=False)]


class BrokerSettings(SettingsPart):
    """One installation."""

    daemon_image: Image
    """Holds ``/daemon``, the program that is process 1 of every sandbox."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Of that image and of those of sandboxes."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()
    """Registry credentials besides the run's; they must be in each run's namespace."""
    runtime_class_name: Text | None = None
    """Runtime of sandbox pods, such as gVisor or Kata; absent: the nodes' own."""
    user_namespaces: bool = False
    """Whether users of a sandbox are nobody on its node (``hostUsers: false``)."""
    priority_class_name: Text | None = None
    """Of sandbox pods; absent: the cluster's default."""
    node_selector: Labels = {}
    """Nodes for sandboxes."""
    tolerations: KubernetesParts = ()
    """Of sandbox pods."""
    agent_sandbox: bool = False
    """Whether runs may have the controller of agent-sandbox make their pods (``provider: agent-sandbox``)."""
    start_deadline_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    """From a pod's creation to its readiness, its image included; a sandbox that takes longer is lost."""
    master_key_path: Text = "/var/run/secrets/echorl.dev/master-key"
    """File with the key that the runs' tokens are derived from."""


def read_settings(path: Path) -> BrokerSettings:
    """The settings that a YAML file holds.

    Raises:
        ValueError: names the file and every field that is wrong.
    """
    try:
        document: Mapping[str, Any] = yaml.safe_load(read_capped(path, _MAX_BYTES).decode()) or {}
        return BrokerSettings.model_validate(document)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError, ValidationError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
