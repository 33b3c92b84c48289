"""The versions of a dataset in order: numbered files, each created once and never changed.

Optimistic concurrency as in Delta Lake [1]_: a writer reads the latest version, writes files that nobody
knows of yet, and then creates the next number, which only one can. Who comes second reads what the first has
committed and tries again on top of it, if that is still right.

.. [1] M. Armbrust et al., "Delta Lake: high-performance ACID table storage over cloud object stores", VLDB
2020.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from chash_partition.parquet.store import DatasetError, Store
from chash_partition.parquet.version import MAX_BYTES, Version

__all__ = ["Log"]

FOLDER = "_chash"
NAME = re.compile(r"_chash/([0-9]{20})\.json", re.ASCII)
Change = Callable[["Version | None"], Version]


def name_of(number: int) -> str:
    """Where a version is.

    Examples
    --------
    >>> name_of(12)
    '_chash/00000000000000000012.json'
    """
    return f"{FOLDER}/{number:020}.json"


@dataclass(frozen=True)
class Log:
    """The versions in `store`."""

    store: Store

    def times(self) -> dict[int, datetime]:
        """Those that are there, ascending, with the times when they were made."""
        found = ((NAME.fullmatch(name), when) for name, _, when in self.store.list(FOLDER))
        return dict(sorted((int(match[1]), when) for match, when in found if match))

    def numbers(self) -> list[int]:
        """Those that are there, ascending."""
        return list(self.times())

    def read(self, number: int) -> Version:
        """One version.

        Raises
        ------
        FileNotFoundError
        DatasetError
            If it is damaged.
        """
        where = self.store.full(name_of(number))
        version = Version.from_json(self.store.read(name_of(number), MAX_BYTES), where)
        if version.number != number:
            raise DatasetError(f"{where} is damaged: it says that it is version {version.number}")
        return version

    def latest(self) -> Version | None:
        """The version that counts; None if there is no dataset."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def commit(
        self,
        operation: str,
        change: Change,
        since: Version | None,
        check: Callable[[Version, set[tuple[str, str]]], None],
    ) -> Version:
        """Make the next version of what `change` makes of the latest, however many others do so too.

        Parameters
        ----------
        operation : str
        change : callable
            Of the latest version, or None; a pure function. It may be called again and again, and raises
            ConflictError if there is no way from there.
        since : Version or None
            What was latest before the first file was written that the new version will name.
        check : callable
            Takes the new version, and place and path of its files that were not there before, and raises if
            one is missing.

        Returns
        -------
        Version
            As committed.

        Raises
        ------
        ConflictError, DatasetError
            From `change` and `check`. Nothing is committed then.
        """
        commit = uuid.uuid4().hex
        seen = -1 if since is None else since.number
        doomed: set[tuple[str, str]] = set()
        while True:
            latest = self.latest()
            number = -1 if latest is None else latest.number
            for between in range(seen + 1, number + 1):
                doomed.update(self._removed(between, latest))
            seen = max(seen, number)
            start = None if latest is None else replace(latest, removed=())
            new = replace(change(start), number=number + 1, commit=commit, operation=operation)
            before = set() if latest is None else latest.located.keys()
            written = new.located.keys() - before
            if lost := sorted(doomed & written):
                raise DatasetError(
                    f"{lost[0][1]!r} was removed by vacuum before it was committed: nothing was committed; "
                    f"write again, and give vacuum a longer retain than the longest write takes"
                )
            check(new, written)
            if self.store.create(name_of(new.number), new.to_json().encode()):
                return new
            # A put that was sent twice finds its own file there.
            if (there := self._there(new.number)) is not None and there.commit == commit:
                return there

    def _removed(self, number: int, latest: Version | None) -> tuple[tuple[str, str], ...]:
        if latest is not None and latest.number == number:
            return latest.removed
        version = self._there(number)
        return () if version is None else version.removed

    def _there(self, number: int) -> Version | None:
        try:
            return self.read(number)
        except FileNotFoundError:  # so many versions ago that vacuum has removed it
            return None
