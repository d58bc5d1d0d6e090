"""Newest records of one kind, indexed by run. Reads its own writes; older news never replace newer."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from echorl_operator.observed.records import ChildRecord, PodRecord
from echorl_operator.observed.runs import RunKey, RunRecord

R = TypeVar("R", bound=PodRecord | ChildRecord | RunRecord)

ObjectKey = tuple[str, str]
"""Namespace and name."""
REMEMBERED_UIDS = 4096
"""More than are deleted while a reply is under way."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store needs to know of a record."""

    key: ObjectKey
    uid: str
    version: int
    """``resourceVersion``; from Kubernetes 1.35 on it is an integer that may be compared."""
    run: RunKey | None
    """None for an object without the run's label."""
    run_uid: str


def identity(record: PodRecord | ChildRecord | RunRecord) -> Identity:
    """Who a record is."""
    if isinstance(record, RunRecord):
        key, uid = record.key, record.uid
        return Identity((key.namespace, key.name), uid, version_number(record.resource_version), key, uid)
    meta = record.meta
    run = RunKey(meta.namespace, meta.run) if meta.run else None
    return Identity((meta.namespace, meta.name), meta.uid, version_number(meta.resource_version), run, meta.run_uid)


def version_number(resource_version: str) -> int:
    """A resource version as a number.

    Raises:
        ValueError: it is none; such an API server is not supported.
    """
    return int(resource_version)


class Store(Generic[R]):
    """Records by namespace and name. Not for several threads."""

    def __init__(
        self,
        on_change: Callable[[RunKey], None],
        *,
        remember_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_change`` gets the run of every record that is new, changed or gone.

        ``remember_s``: how long ``departed`` knows records that are gone.
        """
        self._on_change, self._remember_s, self._clock = on_change, remember_s, clock
        self._departed: dict[str, deque[R]] = {}
        self._departures: deque[tuple[float, str]] = deque()
        """When a record of which run went, oldest first."""
        self._records: dict[ObjectKey, tuple[Identity, R]] = {}
        self._by_run: dict[str, dict[ObjectKey, R]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        """Uids that a stream said are gone, the newest ones, and at which version."""
        self._buried: dict[str, ObjectKey] = {}
        """Uids that we saw deleted, until their stream says so too: late news must not raise the dead."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[R]:
        return (record for _, record in self._records.values())

    def get(self, namespace: str, name: str) -> R | None:
        """The record of that name; None if there is none."""
        entry = self._records.get((namespace, name))
        return None if entry is None else entry[1]

    def of_run(self, run_uid: str) -> list[R]:
        """All records of one run, sorted by namespace and name."""
        records = self._by_run.get(run_uid, {})
        return [records[key] for key in sorted(records)]

    def departed(self, run_uid: str) -> list[R]:
        """Records of one run that went a moment ago, as they were known last, oldest first."""
        self._forget_departed()
        return list(self._departed.get(run_uid, ()))

    def put(self, record: R) -> bool:
        """Take a record in; False if it is not newer than what is known."""
        who = identity(record)
        if who.uid in self._buried or who.version <= self._gone.get(who.uid, -1):
            return False
        entry = self._records.get(who.key)
        if entry is not None and entry[0].version >= who.version:
            return False
        if entry is not None:
            self._unlink(entry[0])
            if entry[0].uid != who.uid:
                # Its deletion was never told: a list came in between.
                self._remember(*entry)
        self._records[who.key] = (who, record)
        self._by_run.setdefault(who.run_uid, {})[who.key] = record
        self._tell(who)
        if entry is not None and entry[0].run != who.run:
            self._tell(entry[0])
        return True

    def remove(self, namespace: str, name: str, uid: str, version: int) -> bool:
        """A stream says that this object is gone, at this version; False if it was not known.

        An object that lost the label by which it is watched is gone as well, and comes back at a later version.
        """
        self._buried.pop(uid, None)
        # The reply to a write of our own may come after the stream's word; it holds the object as it was.
        self._gone[uid] = version
        if len(self._gone) > REMEMBERED_UIDS:
            self._gone.popitem(last=False)
        return self._drop((namespace, name), uid)

    def bury(self, namespace: str, name: str, uid: str) -> bool:
        """Our own delete was answered with success, or found nothing; as ``remove``, ahead of the stream."""
        entry = self._records.get((namespace, name))
        if entry is None or entry[0].uid != uid:
            return False
        self._buried[uid] = (namespace, name)
        return self._drop((namespace, name), uid)

    def replace(self, namespace: str | None, records: Iterable[R], version: int) -> None:
        """Take in a complete list, read at ``version``; what it lacks is gone, unless it was written since.

        Args:
            namespace: Only this one was listed; None: all were.
            records: All there are.
            version: The list's resource version.
        """
        # A uid that is buried and not listed any more needs no grave; its watch starts after the deletion.
        listed: set[ObjectKey] = set()
        uids: set[str] = set()
        for record in records:
            who = identity(record)
            listed.add(who.key)
            uids.add(who.uid)
            self.put(record)
        self._buried = {uid: key for uid, key in self._buried.items() if uid in uids or not _covers(namespace, key)}
        for key, (who, _) in list(self._records.items()):
            if _covers(namespace, key) and key not in listed and who.version <= version:
                self._drop(key, who.uid)

    def _drop(self, key: ObjectKey, uid: str) -> bool:
        entry = self._records.get(key)
        if entry is None or entry[0].uid != uid:
            return False
        del self._records[key]
        self._unlink(entry[0])
        self._remember(*entry)
        self._tell(entry[0])
        return True

    def _remember(self, who: Identity, record: R) -> None:
        if self._remember_s:
            self._forget_departed()
            self._departures.append((self._clock(), who.run_uid))
            self._departed.setdefault(who.run_uid, deque()).append(record)

    def _forget_departed(self) -> None:
        since = self._clock() - self._remember_s
        while self._departures and self._departures[0][0] < since:
            _, run_uid = self._departures.popleft()
            of_run = self._departed[run_uid]
            of_run.popleft()
            if not of_run:
                del self._departed[run_uid]

    def _unlink(self, who: Identity) -> None:
        of_run = self._by_run[who.run_uid]
        del of_run[who.key]
        if not of_run:
            del self._by_run[who.run_uid]

    def _tell(self, who: Identity) -> None:
        if who.run is not None:
            self._on_change(who.run)


def _covers(namespace: str | None, key: ObjectKey) -> bool:
    return namespace is None or key[0] == namespace
