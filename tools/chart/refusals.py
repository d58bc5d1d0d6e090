"""charts/echorl/files/refused.yaml: what the template policy refuses, from the tables that the operator refuses by."""

from collections.abc import Mapping
from typing import Any

import yaml

from echorl_manifest.schema import LONGEST_FOUND, found_text
from echorl_operator.children import node_network, overlay_rules, security_rules
from echorl_operator.names import OUR_LABELS

_HEAD = "# Generated from operator/echorl_operator/children by `make generate`; a check fails when it is stale.\n"


def refused() -> dict[str, Any]:
    """Lists that the policy's expressions are made with, and the words that its messages share with the operator's."""
    fields = {**security_rules.CONTAINER_FIELDS, **security_rules.SHARED_FIELDS}
    return {
        "podFields": _with_reasons(overlay_rules.REFUSED_POD_FIELDS),
        "containerFields": _with_reasons(overlay_rules.REFUSED_CONTAINER_FIELDS),
        "labels": sorted({*OUR_LABELS, overlay_rules.POD_INDEX}),
        "labelPrefix": overlay_rules.OUR_DOMAIN,
        "volumeSourcesAccepted": sorted(overlay_rules.VOLUME_SOURCES),
        "capabilitiesAccepted": sorted(security_rules.CAPABILITIES),
        "contextFields": [{"name": name, "accepted": found_text(value)} for name, value in fields.items()],
        "profileFields": list(security_rules.PROFILE_FIELDS),
        "profilesAccepted": list(security_rules.PROFILES),
        "words": {
            "label": overlay_rules.LABEL_REASON,
            "volume": overlay_rules.VOLUME_REASON,
            "token": overlay_rules.TOKEN_REASON,
            "context": security_rules.REASON,
            "hostPort": overlay_rules.HOST_PORT_REASON,
            "host": node_network.NOT_ALLOWED,
            "user": security_rules.USER_ACCEPTED,
            "profile": " or ".join(map(found_text, security_rules.PROFILES)),
        },
        "longestFound": LONGEST_FOUND,
    }


def _with_reasons(fields: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "reason": reason} for name, reason in fields.items()]


def refused_text() -> str:
    """Write the refusals as the chart holds them."""
    return _HEAD + yaml.safe_dump(refused(), sort_keys=False, width=120)
