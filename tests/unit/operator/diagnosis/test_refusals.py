import pytest

from echorl_operator.diagnosis import refusals
from echorl_operator.diagnosis.refusals import Refusal

QUOTA = (
    "exceeded quota: gpus, requested: pods=1,requests.nvidia.com/gpu=8, used: pods=3,requests.nvidia.com/gpu=4, "
    "limited: pods=9,requests.nvidia.com/gpu=8"
)
QUOTA_WORDS = "exceeded quota: gpus: 1 pods wanted, 3 used of 9; 8 requests.nvidia.com/gpu wanted, 4 used of 8"
CALL = "create /api/v1/namespaces/ns/pods: 403 Forbidden: "


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            f'{CALL}pods "one-prepare-1" is forbidden: {QUOTA}',
            Refusal("QuotaExceeded", "Pod one-prepare-1", QUOTA_WORDS),
        ),
        (
            "Create Pod one-trainer-0 in StatefulSet one-trainer failed error: "
            f'pods "one-trainer-0" is forbidden: {QUOTA}',
            Refusal("QuotaExceeded", "Pod one-trainer-0", QUOTA_WORDS),
        ),
        (
            'pods "x-1" is forbidden: violates PodSecurity "restricted:latest": privileged (container "t" ...)',
            Refusal(
                "PodSecurityRefused",
                "Pod x-1",
                'violates PodSecurity "restricted:latest": privileged (container "t" ...)',
            ),
        ),
        *(
            (
                f'pods "x-1" is forbidden: violates PodSecurity "baseline:latest": {words}',
                Refusal(
                    "PodSecurityRefused",
                    "Pod x-1",
                    f'violates PodSecurity "baseline:latest": {words}; network.host and network.rdma need a namespace '
                    "with the label pod-security.kubernetes.io/enforce: privileged",
                ),
            )
            for words in (
                'host namespaces (hostNetwork=true), hostPort (container "trainer" uses hostPort 8200)',
                'non-default capabilities (container "trainer" must not include "IPC_LOCK" in '
                "securityContext.capabilities.add)",
            )
        ),
        (
            'pods "x" is forbidden: error looking up service account ns/t: serviceaccount "t" not found',
            Refusal(
                "ServiceAccountMissing",
                "Pod x",
                'error looking up service account ns/t: serviceaccount "t" not found',
            ),
        ),
        (
            f'{CALL}admission webhook "w.example" denied the request: no images from there',
            Refusal("WebhookRefused", "", 'admission webhook "w.example" denied the request: no images from there'),
        ),
        (
            'create /api/v1/namespaces/ns/pods: 500 InternalError: failed calling webhook "w": no endpoints',
            Refusal("WebhookFailed", "", 'failed calling webhook "w": no endpoints'),
        ),
        (
            'apply /apis/apps/v1/namespaces/ns/statefulsets/t: 403 Forbidden: statefulsets.apps "t" is forbidden: '
            'User "system:serviceaccount:a:b" cannot patch resource "statefulsets"',
            Refusal(
                "MissingRight",
                "statefulsets.apps t",
                'User "system:serviceaccount:a:b" cannot patch resource "statefulsets"',
            ),
        ),
        *(
            (
                f'pods "one-trainer-0" is forbidden: {why}',
                Refusal("LimitRangeExceeded", "Pod one-trainer-0", why),
            )
            for why in (
                "maximum memory usage per Container is 64Gi, but limit is 512Gi",
                "minimum cpu usage per Pod is 1, but request is 500m",
                "[maximum cpu usage per Container is 4, but no limit is specified, maximum memory usage per Container "
                "is 1Gi, but no limit is specified]",
                "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            )
        ),
        (
            'persistentvolumeclaims "one-volume" is forbidden: maximum storage usage per PersistentVolumeClaim is '
            "100Gi, but request is 500Gi",
            Refusal(
                "LimitRangeExceeded",
                "PersistentVolumeClaim one-volume",
                "maximum storage usage per PersistentVolumeClaim is 100Gi, but request is 500Gi",
            ),
        ),
        ("something new", Refusal("Refused", "", "something new")),
    ],
)
def test_refusals_are_read(said: str, expected: Refusal) -> None:
    assert refusals.read(said) == expected
