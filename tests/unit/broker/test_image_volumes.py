"""Which volumes a sandbox's pod can have, and which refusals of the API server are about them."""

import pytest

from echorl_broker.image_volumes import is_of_volumes, refusal
from echorl_operator.kube.errors import ApiError, BadRequest, Cause, Forbidden, Invalid


@pytest.mark.parametrize(
    ("volumes", "words"),
    [
        ({}, None),
        ({"/opt/agent": "registry.example.com/agents/mine:2"}, None),
        ({"/opt/agent": "mine@sha256:00", "/opt/agent2": "mine"}, None),
        (
            {"/opt/agent": "/images/mine.tar"},
            "volumes[/opt/agent]: found '/images/mine.tar', accepted is the reference",
        ),
        ({"/opt/agent": "./mine"}, "accepted is the reference"),
        ({"/opt/agent": ""}, "accepted is the reference"),
        ({"/opt/agent": "a b"}, "accepted is the reference"),
        ({"/": "mine"}, "found '/', accepted are folders"),
        ({"/opt/../etc": "mine"}, "accepted are folders"),
        ({"/opt/agent/": "mine"}, "accepted are folders"),
        ({"/opt:x": "mine"}, "accepted are folders"),
        ({"/.echorl": "mine"}, "apart from /.echorl, /.echorl-files, /proc, /sys, /dev"),
        ({"/.echorl-files/home": "mine"}, "accepted are folders"),
        ({"/proc/x": "mine"}, "accepted are folders"),
        ({"/opt": "a", "/opt/b": "b"}, "accepted are folders that are not in each other"),
        ({f"/opt/{number}": "mine" for number in range(9)}, "volumes: found 9, accepted are 8"),
    ],
)
def test_volumes_are_images_in_folders_of_their_own(volumes: dict[str, str], words: str | None) -> None:
    found = refusal(volumes)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize(
    ("error", "about"),
    [
        # With the feature gate off, the image is dropped and the volume is of no kind.
        (
            Invalid("create", "x", causes=(Cause("spec.volumes[2]", "Required value: must specify a volume type"),)),
            True,
        ),
        (BadRequest("create", 'strict decoding error: unknown field "spec.volumes[2].image"'), True),
        (BadRequest("create", 'strict decoding error: unknown field "spec.podTemplate.spec.volumes[2].image"'), True),
        (BadRequest("create", 'strict decoding error: unknown field "spec.hostUsers"'), False),
        (Invalid("create", "x", causes=(Cause("spec.containers[0].image", "Invalid value"),)), False),
        (Forbidden("create", "cannot create pods"), False),
    ],
)
def test_a_cluster_that_is_too_old_is_told_from_other_refusals(error: ApiError, about: bool) -> None:
    assert is_of_volumes(error) is about
