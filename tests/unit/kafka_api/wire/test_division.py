"""A request is divided into pieces that name the same things, and their answers are joined to what one would be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from conveyor.kafka_api.wire.codec import build
from conveyor.kafka_api.wire.division import DIVISIONS, Division
from conveyor.kafka_api.wire.versions import SERVED_APIS

PARTITIONS = ("topics", "partitions")
FETCH_OFFSETS = 9
NOT_COORDINATOR = 16

Topics = list[tuple[str, list[int]]]
TOPICS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=12)), max_size=8)


def request(groups: list[tuple[str, Topics | None]]) -> Any:
    named = [
        {
            "group_id": name,
            "topics": None if topics is None else [{"name": topic, "partition_indexes": n} for topic, n in topics],
        }
        for name, topics in groups
    ]
    return build(load_request_schema(FETCH_OFFSETS, 8), {"groups": named, "require_stable": False})


def answered(requested: Any) -> Any:
    """Every partition has its number as its offset."""
    groups = [
        {
            "group_id": group.group_id,
            "error_code": 0,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": n, "committed_offset": n, "metadata": "", "error_code": 0}
                        for n in topic.partition_indexes
                    ],
                }
                for topic in group.topics or ()
            ],
        }
        for group in requested.groups
    ]
    return build(load_response_schema(FETCH_OFFSETS, 8), {"groups": groups})


def flat(entity: Any) -> list[tuple[str, str, int]]:
    """All partitions of a request or a response, in order."""
    return [
        (group.group_id, topic.name, getattr(partition, "committed_offset", partition))
        for group in entity.groups
        for topic in group.topics or ()
        for partition in (topic.partition_indexes if hasattr(topic, "partition_indexes") else topic.partitions)
    ]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.none() | TOPICS), max_size=5), st.integers(1, 7))
def test_pieces_are_small_and_name_everything_once_in_order(groups: list[tuple[str, Topics | None]], size: int) -> None:
    division = Division([("groups", "topics", "partition_indexes")], [("groups", *PARTITIONS)], size)
    whole = request(groups)
    pieces = list(division.pieces(whole))
    assert [named for piece in pieces for named in flat(piece)] == flat(whole)
    assert all(len(flat(piece)) <= size for piece in pieces)
    assert {group.group_id for piece in pieces for group in piece.groups} == {name for name, _ in groups}
    joined = division.joined([answered(piece) for piece in pieces])
    assert flat(joined) == flat(answered(whole))
    names = [group.group_id for group in joined.groups]
    assert names == [name for name, before in zip(names, [None, *names], strict=False) if name != before]


def test_each_name_is_compared_with_its_neighbour_at_most() -> None:
    compared: list[object] = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    count = 1_000
    division = Division([("groups", "topics", "partition_indexes")], [("groups", *PARTITIONS)], 10, names_once=True)
    pieces = list(division.pieces(request([(Name(n), [("a", [1])]) for n in (*range(count), *range(count))])))
    assert len(pieces) == count / 10
    assert len(compared) <= 2 * count, "an equal name is found by its hash"
    compared.clear()
    assert len(division.joined([answered(piece) for piece in pieces]).groups) == count
    assert len(compared) <= 2 * count


@given(st.lists(st.integers(0, 5), min_size=1))
def test_equal_names_are_answered_once(numbers: list[int]) -> None:
    division = Division([("groups", "topics", "partition_indexes")], [("groups", *PARTITIONS)], 3, names_once=True)
    [piece, *others] = division.pieces(request([("x", [("a", numbers)])]))
    found = [named for each in (piece, *others) for named in flat(each)]
    assert found == [("x", "a", number) for number in dict.fromkeys(numbers)]


def test_groups_that_are_named_for_different_members_are_answered_once() -> None:
    """Otherwise a frame of 200 KB could ask 10,000 times for all offsets of a group."""
    schema = load_request_schema(FETCH_OFFSETS, 10)
    groups: list[dict[str, Any]] = [
        {"group_id": "g", "member_id": f"m{number}", "member_epoch": -1, "topics": topics}
        for number, topics in enumerate((None, (), None))
    ]
    pieces = list(DIVISIONS[FETCH_OFFSETS].pieces(build(schema, {"groups": groups, "require_stable": False})))
    assert [[(group.group_id, group.topics) for group in piece.groups] for piece in pieces] == [[("g", None)]]


def test_partitions_of_a_topic_that_is_named_repeatedly_are_answered_once() -> None:
    topics: list[dict[str, Any]] = [{"name": "t", "partition_indexes": [0, number]} for number in range(5)]
    [piece] = DIVISIONS[61].pieces(build(load_request_schema(61, 0), {"topics": topics}))
    assert [(topic.name, topic.partition_indexes) for topic in piece.topics] == [("t", (0, 1, 2, 3, 4))]


@pytest.mark.parametrize(
    ("api_key", "values"),
    [
        (61, {"topics": [{"name": "t", "partition_indexes": range(25)}]}),
        (65, {"transactional_ids": [f"t{number}" for number in range(25)]}),
    ],
    ids=["producers of a partition", "partitions of a transaction"],
)
def test_few_are_answered_at_once_whose_answers_can_be_long(api_key: int, values: dict[str, Any]) -> None:
    assert len(list(DIVISIONS[api_key].pieces(build(load_request_schema(api_key, 0), values)))) == 3


def test_error_of_a_piece_is_one_of_the_response() -> None:
    schema = load_response_schema(45, 1)
    sound = {"error_code": 0, "error_message": None, "responses": [{"name": "a", "partitions": []}]}
    failed = {"error_code": 41, "error_message": "not the controller", "responses": []}
    joined = DIVISIONS[45].joined([build(schema, sound), build(schema, failed)])
    assert (joined.error_code.value, joined.error_message) == (41, "not the controller")
    assert [topic.name for topic in joined.responses] == ["a"]


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("version", [7, 8], ids=["one group", "several groups"])
def test_error_of_a_group_in_one_piece_is_one_of_the_group(version: int, failing: int) -> None:
    """Otherwise a client takes the partitions that are missing for ones without a committed offset."""
    schema = load_response_schema(FETCH_OFFSETS, version)

    def piece(number: int) -> Any:
        partition = {"partition_index": number, "committed_offset": number, "metadata": "", "error_code": 0}
        group: dict[str, Any] = {"group_id": "g", "error_code": 0, "topics": [{"name": "t", "partitions": [partition]}]}
        if number == failing:
            group |= {"error_code": NOT_COORDINATOR, "topics": []}
        return build(schema, {"groups": [group]} if version == 8 else group)

    joined = DIVISIONS[FETCH_OFFSETS].joined([piece(number) for number in range(3)])
    [group] = joined.groups if version == 8 else [joined]
    assert group.error_code.value == NOT_COORDINATOR
    assert [partition.partition_index for topic in group.topics for partition in topic.partitions] == [
        number for number in range(3) if number != failing
    ]


def has(schema: Any, path: tuple[str, ...]) -> bool:
    return path[0] in {field.name for field in schema.__dataclass_fields__.values()}


@pytest.mark.parametrize("api_key", DIVISIONS)
def test_paths_exist_in_every_version(api_key: int) -> None:
    """Where a request has none of the paths, it names one thing only."""
    division = DIVISIONS[api_key]
    for version in SERVED_APIS[api_key].versions:
        asked, replied = load_request_schema(api_key, version), load_response_schema(api_key, version)
        divides = any(has(asked, path) for path in division.items)
        assert not divides or any(has(replied, path) for path in division.results)
