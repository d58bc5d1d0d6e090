"""The values of charts/echorl: its schema and its table in docs/install.md are written from these models.

No value is ever null: Helm takes a null for "remove the chart's default". Empty text, list or map means not set.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from echorl_manifest.models.base import Accepts, DnsLabel, ObjectName, Text
from echorl_operator.settings import Labels, Settings, SettingsPart

SETTINGS_OF_THE_CHART = (
    "operatorVersion",
    "operatorNamespace",
    "operatorLabels",
    "masterKeyPath",
    "brokerUrl",
    "brokerLabels",
    "agentSandbox",
)
"""Settings that nobody chooses: the chart, or the operator's image, knows them."""

KubernetesPart = Annotated[dict[str, Any], Accepts("a mapping as in the Kubernetes API")]
KubernetesParts = Annotated[
    tuple[dict[str, Any], ...], Field(strict=False), Accepts("a list of mappings as in the Kubernetes API")
]
Port = Annotated[int, Field(ge=1, le=65535)]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
Name = Annotated[
    str,
    StringConstraints(max_length=253, pattern=rf"^({_LABEL}(\.{_LABEL})*)?$"),
    Accepts("the name of a Kubernetes object, or empty"),
]
Interval = Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m|h)$"), Accepts("a time such as 15s or 1m")]


class ValuesPart(SettingsPart):
    """Base of all parts."""


class Image(ValuesPart):
    """The operator's image."""

    repository: Text = "echorl/operator"
    """Registry and name."""
    tag: Annotated[
        str, StringConstraints(pattern=r"^([A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?$"), Accepts("an image tag, or empty")
    ] = ""
    """Empty: the chart's ``appVersion``."""
    digest: Annotated[
        str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$"), Accepts("an image's digest, sha256:..., or empty")
    ] = ""
    """Taken instead of the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the kubelet fetches it."""


class PullSecret(ValuesPart):
    """A Secret with registry credentials, in the release's namespace."""

    name: ObjectName
    """Its name."""


class Watch(ValuesPart):
    """Where runs are looked after, and where the operator therefore has rights."""

    cluster_wide: bool = False
    """In all namespaces, by a ClusterRole. Not beside a namespaced installation."""
    namespaces: Annotated[tuple[DnsLabel, ...], Field(strict=False)] = ()
    """In these, by a Role in each; they must exist. Empty: the release's namespace."""


class MasterKey(ValuesPart):
    """The key that the runs' tokens are derived from: at least 32 bytes."""

    existing_secret: Name = ""
    """A Secret of the release's namespace. Empty: one is made at the first installation, and kept for ever."""
    key: Annotated[
        str,
        StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253),
        Accepts("letters, digits, '-', '_' and '.'"),
    ] = "master-key"
    """The key's key in the Secret."""


class ServiceAccount(ValuesPart):
    """Who the operator is to the API server: ``echorl-operator``."""

    annotations: Labels = {}
    """Of the ServiceAccount."""


class DisruptionBudget(ValuesPart):
    """A PodDisruptionBudget that keeps one operator pod; none with one replica, which could never be drained."""

    enabled: bool = True
    """Whether there is one."""


class ApiServer(ValuesPart):
    """Where the operator may reach the API server. A policy sees the port of the server itself, not of its Service."""

    cidrs: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Address ranges; empty: any."""
    ports: Annotated[tuple[Port, ...], Field(strict=False, min_length=1)] = (443, 6443)
    """TCP ports."""


class NetworkPolicy(ValuesPart):
    """What the operator's pods may reach, and who may reach them."""

    enabled: bool = True
    """Whether there is one."""
    api_server: ApiServer = ApiServer()
    """The way to the API server."""


class AdmissionPolicies(ValuesPart):
    """ValidatingAdmissionPolicies: children of runs are changed by the operator alone; templates stay harmless."""

    enabled: bool = True
    """Whether there are any. They are objects of the cluster, so to install them takes rights on the cluster."""
    break_glass_groups: Annotated[tuple[Text, ...], Field(strict=False)] = ("echorl:break-glass",)
    """Groups that may change children; for emergencies, by ``kubectl --as-group``."""
    exempt_users: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Users that may change children, such as the service account of a backup tool."""


class Sandboxes(ValuesPart):
    """Sandboxes in pods (``spec.sandboxes.provider: pod``), and the broker that makes them."""

    enabled: bool = False
    """Whether runs may have any. The broker then may make, claim and delete pods where runs are looked after."""
    replicas: Annotated[int, Field(ge=1, le=9)] = 2
    """Broker pods; all work."""
    daemon_image: Annotated[
        str, StringConstraints(pattern=r"^\S*$", max_length=1024), Accepts("a container image, or empty")
    ] = ""
    """Puts the daemon into each sandbox. Empty: ``echorl/sandbox-daemon`` of the chart's ``appVersion``."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Of that image and of those of sandboxes."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()
    """Registry credentials for both, besides the run's; they must be in each run's namespace."""
    runtime_class_name: Name = ""
    """Of sandbox pods, such as that of gVisor or Kata; empty: the nodes' own."""
    user_namespaces: bool = False
    """Users of a sandbox are nobody on its node (``hostUsers: false``); the nodes must be able to."""
    priority_class_name: Name = ""
    """Of sandbox pods; the class must exist."""
    node_selector: Labels = {}
    """Of sandbox pods: nodes for them alone are wise."""
    tolerations: KubernetesParts = ()
    """Of sandbox pods."""
    agent_sandbox: bool = False
    """Whether runs may also say ``provider: agent-sandbox``. The broker then has the right to make and delete Sandboxes
    of ``agents.x-k8s.io/v1beta1``, and templates, pools and claims of ``extensions.agents.x-k8s.io/v1beta1``; CRDs and
    controller must be there."""
    start_deadline_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    """From a pod's creation to its readiness, its image included."""
    resources: KubernetesPart = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    """Of the broker's container."""


class Monitor(ValuesPart):
    """A monitor of the Prometheus operator."""

    enabled: bool = False
    """Whether there is one; needs the kinds of ``monitoring.coreos.com``."""
    labels: Labels = {}
    """By which your Prometheus selects it."""
    interval: Interval = "15s"
    """Between two scrapes."""


class Rules(ValuesPart):
    """The alerts of ``rules/``."""

    enabled: bool = False
    """Whether there are any; needs the kinds of ``monitoring.coreos.com``."""
    labels: Labels = {}
    """By which your Prometheus selects them."""


class Dashboards(ValuesPart):
    """The dashboards of ``dashboards/``, a ConfigMap each, for Grafana's sidecar."""

    enabled: bool = False
    """Whether there are any."""
    labels: Labels = {"grafana_dashboard": "1"}
    """By which the sidecar finds them."""
    annotations: Labels = {}
    """Such as the sidecar's folder."""


class Monitoring(ValuesPart):
    """What watches the operator and the runs."""

    service_monitor: Monitor = Monitor()
    """Scrapes the operator."""
    pod_monitor: Monitor = Monitor()
    """Scrapes the runs' pods."""
    prometheus_rule: Rules = Rules()
    """Alerts."""
    dashboards: Dashboards = Dashboards()
    """Dashboards."""


class Test(ValuesPart):
    """What ``helm test`` runs, in the first namespace that is looked after."""

    spec: Annotated[dict[str, Any], Accepts("a mapping as spec of EchoRLRun")] = {}
    """Laid over the chart's own ``files/test-run.yaml``, key by key: another model, a claim, GPUs."""
    timeout_seconds: Annotated[int, Field(ge=60, le=86400)] = 1800
    """Until the run must have succeeded."""


class InstallationSettings(Settings):
    """The operator's settings file: defaults for all runs."""

    operator_version: str = "that of the image"


class Values(ValuesPart):
    """The values of charts/echorl."""

    image: Image = Image()
    """The operator's image."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(strict=False)] = ()
    """Registry credentials for it."""
    replicas: Annotated[int, Field(ge=1, le=9)] = 2
    """Operator pods; one works, the others stand by."""
    watch: Watch = Watch()
    """Where runs are looked after."""
    settings: InstallationSettings = InstallationSettings()
    """Defaults for all runs."""
    master_key: MasterKey = MasterKey()
    """The key that the runs' tokens are derived from."""
    workers: Annotated[int, Field(ge=1, le=1024)] = 16
    """Runs worked on at a time."""
    log_style: Literal["json", "console"] = "json"
    """How log lines look."""
    resources: KubernetesPart = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    """Of the operator's container."""
    priority_class_name: Name = ""
    """Of the operator's pods; the class must exist."""
    node_selector: Labels = {}
    """Of the operator's pods."""
    tolerations: KubernetesParts = ()
    """Of the operator's pods."""
    affinity: KubernetesPart = {}
    """Of the operator's pods; empty: on different nodes where there are several."""
    pod_labels: Labels = {}
    """More labels of the operator's pods."""
    pod_annotations: Labels = {}
    """Of the operator's pods."""
    service_account: ServiceAccount = ServiceAccount()
    """Of the operator's pods."""
    disruption_budget: DisruptionBudget = DisruptionBudget()
    """While nodes are drained."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Of the operator's pods."""
    admission_policies: AdmissionPolicies = AdmissionPolicies()
    """What the API server refuses."""
    sandboxes: Sandboxes = Sandboxes()
    """Sandboxes in pods."""
    cluster_checks: bool = True
    """Look for the CRD, the namespaces and other installations before anything is made.

    Takes the right to read namespaces and roles of the cluster.
    """
    monitoring: Monitoring = Monitoring()
    """Metrics, alerts, dashboards."""
    test: Test = Test()
    """``helm test``."""
