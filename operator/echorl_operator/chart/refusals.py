"""charts/echorl/files/refused.yaml: what the template policy refuses, from the tables that the operator refuses by."""

from typing import Any

import yaml

from echorl_operator.build import overlay_rules, security_rules
from echorl_operator.names import OUR_LABELS

_HEAD = "# Generated from operator/echorl_operator/build by `make generate`; a check fails when it is stale.\n"


def refused() -> dict[str, Any]:
    """Lists that the policy's expressions are made with."""
    return {
        "podFields": list(overlay_rules.REFUSED_POD_FIELDS),
        "containerFields": list(overlay_rules.REFUSED_CONTAINER_FIELDS),
        "labels": sorted({*OUR_LABELS, overlay_rules.POD_INDEX}),
        "labelPrefix": overlay_rules.OUR_DOMAIN,
        "volumeSourcesAccepted": sorted(overlay_rules.VOLUME_SOURCES),
        "capabilitiesAccepted": sorted(security_rules.CAPABILITIES),
    }


def refused_text() -> str:
    """As the chart holds it."""
    return _HEAD + yaml.safe_dump(refused(), sort_keys=False, width=120)
