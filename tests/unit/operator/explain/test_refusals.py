import pytest

from echorl_operator.explain import refusals
from echorl_operator.explain.refusals import Refusal

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
        ("something new", Refusal("Refused", "", "something new")),
    ],
)
def test_refusals_are_read(said: str, expected: Refusal) -> None:
    assert refusals.read(said) == expected
