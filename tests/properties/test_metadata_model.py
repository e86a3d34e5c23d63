"""The metadata is a dictionary: whatever fails in between, it holds the changes that were acknowledged."""

import asyncio
import contextlib
import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from conveyor.broker.metadata import metadata as module
from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import Change, ConfigPut
from conveyor.cluster.image import ClusterImage, ConfigScope
from conveyor.cluster.metadata_log import HEAD_PATH, decode_head
from conveyor.kernel.errors import RequestError, StorageFailure
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.parts import loaded_metadata

Model = dict[str, str]
CHANGES = st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["", "1", "2", "3"]), min_size=1, max_size=3)
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "60"))
CALLS = st.integers(0, 12)


def shown(image: ClusterImage) -> Model:
    return {name: texts["text"] for (_, name), texts in image.configs.items()}


def after(model: Model, changes: Model) -> Model:
    return {name: text for name, text in {**model, **changes}.items() if text}


MOST_POSSIBLE = 16
"""States that the store may be in after failures in a row, until a restart shows which one it is."""


class MetadataModel(RuleBasedStateMachine):
    """Two brokers on one store. possible: what it may hold, after changes whose replies were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.entries_per_snapshot = module.ENTRIES_PER_SNAPSHOT
        module.ENTRIES_PER_SNAPSHOT = 4
        self.runner = asyncio.Runner()
        self.store = FaultyStore()
        self.possible: list[Model] = [{}]
        self.brokers: list[Metadata] = [self.runner.run(loaded_metadata(self.store)) for _ in range(2)]

    def teardown(self) -> None:
        self.runner.close()
        module.ENTRIES_PER_SNAPSHOT = self.entries_per_snapshot

    @rule(number=st.integers(0, 1), changes=CHANGES)
    def change(self, number: int, changes: Model) -> None:
        self.propose(number, changes)

    @rule(number=st.integers(0, 1), changes=CHANGES, first=CALLS, count=st.integers(1, 20))
    def change_while_the_store_is_away(self, number: int, changes: Model, first: int, count: int) -> None:
        self.store.heal()
        self.store.fails = lambda call: first <= call < first + count
        self.propose(number, changes)
        self.store.heal()

    @rule(number=st.integers(0, 1), changes=CHANGES, lost=CALLS)
    def change_while_a_reply_is_lost(self, number: int, changes: Model, lost: int) -> None:
        self.store.heal()
        self.store.loses_reply = lambda call: call == lost
        self.propose(number, changes)
        self.store.heal()

    @rule(number=st.integers(0, 1), changes=CHANGES)
    def change_on_a_full_disk(self, number: int, changes: Model) -> None:
        self.store.is_full = True
        self.propose(number, changes)
        self.store.is_full = False

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        self.brokers[number] = self.runner.run(loaded_metadata(self.store))
        self.observed(shown(self.brokers[number].image))

    @rule(number=st.integers(0, 1), first=CALLS)
    def restart_in_vain(self, number: int, first: int) -> None:
        self.store.heal()
        self.store.fails = lambda call: call >= first
        with contextlib.suppress(StorageFailure):
            self.brokers[number] = self.runner.run(loaded_metadata(self.store))
        self.store.heal()

    @invariant()
    def both_show_something_that_was_stored(self) -> None:
        for broker in self.brokers:
            assert broker.image.seq <= self.newest_seq()
        first, second = (broker.image for broker in self.brokers)
        assert first.seq != second.seq or first == second

    def newest_seq(self) -> int:
        head = self.runner.run(self.store.get(HEAD_PATH))
        assert head is not None
        return decode_head(head.value).seq

    def propose(self, number: int, changes: Model) -> None:
        decided = [
            ConfigPut(scope=ConfigScope.GROUPS, name=name, texts={"text": text} if text else {})
            for name, text in changes.items()
        ]

        def decide(_: ClusterImage) -> list[Change]:
            return [*decided]

        metadata = self.brokers[number]
        outcomes = [after(model, changes) for model in self.possible]
        try:
            image = self.runner.run(metadata.propose(decide))
        except RequestError:
            self.possible += [outcome for outcome in outcomes if outcome not in self.possible]
            if len(self.possible) > MOST_POSSIBLE:
                self.store.heal()
                self.store.is_full = False
                self.restart(number)
        else:
            self.possible = outcomes
            self.observed(shown(image))

    def observed(self, model: Model) -> None:
        assert model in self.possible
        self.possible = [model]


TestMetadataModel = MetadataModel.TestCase
TestMetadataModel.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
