"""The promises of a coordinator to the members of one group.

Invariants, by the names that failures report:

    OwnedOnce       no two members own a partition in one generation (classic protocol) or member epoch (KIP-848); a
                    member gets none that one of an earlier generation still owns and that has not timed out
    CommitsHold     a committed offset is never lost, nor taken back by a member of an earlier generation

The members commit rising numbers, so that the committed offset says whose commit was the last. A commit without a reply
may take effect until a member of a later generation has read the offset.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.ledger import InvariantBroken


@dataclass(slots=True)
class _Offset:
    """The commits of one partition. attempts: without a reply, by number, with the generation."""

    confirmed: int = -1
    attempts: dict[int, int] = field(default_factory=dict)
    newest_generation: int = -1


class _Ownership(NamedTuple):
    """The partitions that a member knows it owns. heard_s: when it sent the last heartbeat that was answered."""

    generation: int
    partitions: frozenset[int]
    heard_s: float


class GroupPromises:
    """See the module's docstring. is_excused: whether the offsets may be lost. note: counts an event by its name.

    timeout_s: after which a silent member loses its partitions.
    """

    def __init__(
        self, group: str, is_excused: Callable[[], bool], note: Callable[[str], None], timeout_s: float
    ) -> None:
        self.group = group
        self._is_excused = is_excused
        self._note = note
        self._timeout_s = timeout_s
        self._owners: dict[tuple[int, int], str] = {}
        self._owned: dict[str, _Ownership] = {}
        self._offsets: dict[int, _Offset] = {}
        self._count = 0

    def own(self, generation: int, member_id: str, partitions: frozenset[int], sent_s: float, now_s: float) -> None:
        """Check and note that a member learned at this time that it owns partitions. sent_s: when it had asked."""
        self._owned[member_id] = _Ownership(generation, partitions, sent_s)
        for partition in partitions:
            if (generation, partition) not in self._owners:
                self._note(f"partition taken in {self.group}")
            owner = self._owners.setdefault((generation, partition), member_id)
            former = self._former_owner(partition, generation, now_s)
            if owner != member_id or former is not None:
                detail = f"{former or owner} and {member_id} own partition {partition} in generation {generation}"
                self._break("OwnedOnce", detail)
            offset = self._of(partition)
            offset.newest_generation = max(offset.newest_generation, generation)

    def heard(self, member_id: str, sent_s: float) -> None:
        """Note that a heartbeat of this time was answered: the member keeps what it owns."""
        if member_id in self._owned:
            self._owned[member_id] = self._owned[member_id]._replace(heard_s=sent_s)

    def give_up(self, member_id: str) -> None:
        """Note that a member owns nothing any more."""
        self._owned.pop(member_id, None)

    def _former_owner(self, partition: int, generation: int, now_s: float) -> str | None:
        """Return a member of an earlier generation that owns a partition and has not timed out."""
        owners = (
            member_id
            for member_id, owned in self._owned.items()
            if partition in owned.partitions
            and owned.generation < generation
            and now_s < owned.heard_s + self._timeout_s
        )
        return next(owners, None)

    def attempt(self, partition: int, generation: int) -> int:
        """Return the number that a member is about to commit."""
        self._count += 1
        self._of(partition).attempts[self._count] = generation
        return self._count

    def is_stale(self, partition: int, generation: int) -> bool:
        """Return whether a member of a later generation owns a partition."""
        return self._of(partition).newest_generation > generation

    def confirm(self, partition: int, number: int, *, was_stale: bool) -> None:
        """Note that a commit was acknowledged. was_stale: the member was stale when it sent the commit."""
        offset = self._of(partition)
        generation = offset.attempts.pop(number, None)
        if was_stale:
            detail = f"partition {partition}: a commit of generation {generation} was accepted"
            self._break("CommitsHold", f"{detail}, in generation {offset.newest_generation}")
        offset.confirmed = max(offset.confirmed, number)

    def refuse(self, partition: int, number: int, *, was_stale: bool) -> None:
        """Note that a commit was refused, and has had no effect."""
        if was_stale:
            self._note(f"stale commit refused in {self.group}")
        self._of(partition).attempts.pop(number, None)

    def known(self, partition: int) -> int:
        """Return the last confirmed number, for `check`."""
        return self._of(partition).confirmed

    def check(self, partition: int, known: int, found: int, generation: int | None = None) -> None:
        """Check the committed number that was read (-1: none). known: what was confirmed before the request.

        generation: of the member that reads: commits of earlier ones have no effect from now on.
        """
        offset = self._of(partition)
        if found < known or (found > offset.confirmed and found not in offset.attempts):
            detail = f"partition {partition}: {found} is committed, {known} was confirmed"
            self._break("CommitsHold", f"{detail}, without replies are {offset.attempts}")
        offset.confirmed = max(offset.confirmed, found)
        if generation is not None and generation == offset.newest_generation:
            offset.attempts = {number: one for number, one in offset.attempts.items() if one >= generation}

    def _of(self, partition: int) -> _Offset:
        return self._offsets.setdefault(partition, _Offset())

    def _break(self, invariant: str, detail: str) -> None:
        if not self._is_excused():
            raise InvariantBroken(invariant, f"group {self.group}: {detail}")
