"""An application of Quix Streams, which counts words: its topics and its state are those that Quix makes.

It runs with the packages of requirements.txt, and imports nothing of Conveyor.
"""

import sys
from typing import TYPE_CHECKING, Any

from quixstreams import Application

if TYPE_CHECKING:
    from quixstreams import State

Line = dict[str, Any]


def words_of(line: Line) -> list[Line]:
    return [{"word": word, "number": line["number"], "partition": line["partition"]} for word in line["words"]]


def count(occurrence: Line, state: "State") -> int:
    """How many lines have had the word. What comes again after a kill is not counted again: numbers only rise."""
    newest = f"newest-{occurrence['partition']}"
    found = int(state.get("count", 0))
    if occurrence["number"] > state.get(newest, -1):
        found += 1
        state.set("count", found)
        state.set(newest, occurrence["number"])
    return found


def main(bootstrap: str, source: str, target: str, group: str, state_dir: str, guarantee: str) -> None:
    application = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_interval=0.5,
        state_dir=state_dir,
        processing_guarantee=guarantee,
        producer_extra_config={"transaction.timeout.ms": 5000} if guarantee == "exactly-once" else {},
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    )
    lines = application.dataframe(application.topic(source, value_deserializer="json"))
    words = lines.apply(words_of, expand=True).group_by("word")
    words.apply(count, stateful=True).to_topic(application.topic(target, value_serializer="json"))
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
