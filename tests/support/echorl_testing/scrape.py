"""Metrics and probes of a process, as Prometheus and a kubelet read them."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Scrape:
    """All series at one moment."""

    series: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float:
        """One series; 0 if it is not there. ``name`` without ``echorl_operator_``."""
        return self.series.get((f"echorl_operator_{name}", frozenset(labels.items())), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        """Values of a label."""
        found = (dict(labels) for one, labels in self.series if one == f"echorl_operator_{name}")
        return {labels[label] for labels in found}


def scrape(port: int) -> Scrape:
    """What ``/metrics`` of a process on this machine says now."""
    families = text_string_to_metric_families(asked(port, "/metrics")[1])
    samples = (sample for family in families for sample in family.samples)
    return Scrape({(one.name, frozenset(one.labels.items())): one.value for one in samples})


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text of a GET; status 0 if nobody answers."""
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
