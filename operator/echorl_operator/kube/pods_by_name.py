"""Pods under the names of a run's missing pods: what has lost the labels by which we watch is found by its name."""

import functools

from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.rare_reads import RareReads, ReaderSettings
from echorl_operator.kube.resources import POD
from echorl_operator.observed import decode
from echorl_operator.observed.records import PodRecord

TIMEOUT_S = 5.0


async def read_pod(connection: Connection, namespace: str, name: str) -> tuple[PodRecord, ...]:
    """Read the pod of a name; nothing if there is none. A list, since watching takes that right anyway.

    Raises:
        errors.ApiError: it cannot be read.
    """
    query = {"fieldSelector": f"metadata.name={name}"}
    call = Call("list", POD.path(namespace), POD.plural, query, timeout_s=TIMEOUT_S)
    return tuple(decode.pod(body) for body in decode.items(await connection.request(call)))


class PodByNameReader(RareReads[str, PodRecord]):
    """Holds what pods there are under names that runs miss pods of."""

    def __init__(self, connection: Connection, settings: ReaderSettings | None = None) -> None:
        super().__init__(functools.partial(read_pod, connection), settings)
