"""Client quotas: the quota that applies to a client, invalid quotas, and entities as text."""

import pytest

from conveyor.cluster.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    MAX_CLIENT_ID,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    Limit,
    Match,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
    changed_values,
    checked_entity,
    entity_text,
    from_entities,
)
from conveyor.kernel.errors import ErrorKind, RequestError

BY_PRECEDENCE: list[tuple[QuotaEntity, tuple[str | None, str | None]]] = [
    (((CLIENT_ID, "app"), (USER, "ann")), ("ann", "app")),
    (((CLIENT_ID, None), (USER, "ann")), ("ann", "app")),
    (((USER, "ann"),), ("ann", None)),
    (((CLIENT_ID, "app"), (USER, None)), ("ann", "app")),
    (((CLIENT_ID, None), (USER, None)), ("ann", "app")),
    (((USER, None),), ("ann", None)),
    (((CLIENT_ID, "app"),), (None, "app")),
    (((CLIENT_ID, None),), (None, "app")),
]


def rates(*entities: QuotaEntity) -> ClientQuotas:
    """Return quotas that give the entities the producer rates 1, 2, 3 and so on."""
    return from_entities({entity: {PRODUCER_BYTE_RATE: float(number)} for number, entity in enumerate(entities, 1)})


@pytest.mark.parametrize("first", range(len(BY_PRECEDENCE)))
def test_the_most_particular_quota_holds(first: int) -> None:
    less = [entity for entity, _ in BY_PRECEDENCE[first:]]
    limit = rates(*less).limit(PRODUCER_BYTE_RATE, "ann", "app")
    assert limit is not None
    assert limit.per_second == 1.0
    assert limit.rate_key == (PRODUCER_BYTE_RATE, *BY_PRECEDENCE[first][1])


def test_long_id_counts_as_its_beginning() -> None:
    """Rates keep the ids of clients, even of those who have not logged in yet."""
    name = "a" * MAX_CLIENT_ID
    quotas = from_entities({checked_entity([(CLIENT_ID, name + "c")]): {PRODUCER_BYTE_RATE: 100.0}})
    assert quotas.limit(PRODUCER_BYTE_RATE, "alice", name + "b" * 32_000) == Limit(
        per_second=100, rate_key=(PRODUCER_BYTE_RATE, None, name)
    )
    assert quotas.limit(PRODUCER_BYTE_RATE, "alice", name[1:] + "b") is None


def test_each_key_is_looked_for_by_itself() -> None:
    quotas = from_entities(
        {((USER, "ann"),): {REQUEST_PERCENTAGE: 5.0}, ((CLIENT_ID, None),): {PRODUCER_BYTE_RATE: 7.0}}
    )
    limit = quotas.limit(PRODUCER_BYTE_RATE, "ann", "app")
    assert limit is not None
    assert limit.per_second == 7.0


def test_nobody_else_is_limited() -> None:
    quotas = rates(((CLIENT_ID, "app"), (USER, "ann")), ((USER, "bob"),), ((CLIENT_ID, "other"),))
    assert quotas.limit(PRODUCER_BYTE_RATE, "ann", "web") is None
    assert quotas.limit(PRODUCER_BYTE_RATE, "eve", "app") is None
    assert quotas.limit(REQUEST_PERCENTAGE, "bob", "app") is None


def test_addresses_have_quotas_of_their_own_or_the_default() -> None:
    quotas = from_entities(
        {((IP, "10.0.0.1"),): {CONNECTION_CREATION_RATE: 1.0}, ((IP, None),): {CONNECTION_CREATION_RATE: 2.0}}
    )
    limits = [quotas.connection_limit(address) for address in ("10.0.0.1", "10.0.0.2")]
    assert [limit.per_second for limit in limits if limit] == [1.0, 2.0]
    assert [limit.rate_key[2] for limit in limits if limit] == ["10.0.0.1", "10.0.0.2"]
    assert ClientQuotas().connection_limit("10.0.0.1") is None


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("group", "g")],
        [(USER, "ann"), (USER, "bob")],
        [(IP, "10.0.0.1"), (USER, "ann")],
        [(USER, "")],
        [(IP, "a.host")],
    ],
)
def test_an_entity_that_makes_no_sense_is_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(RequestError) as caught:
        checked_entity(parts)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize("name", ["app", "a/b", "a=b,c", "ä ö", "..", "%2F", None])
def test_any_name_is_an_entitys(name: str | None) -> None:
    assert checked_entity([(USER, None), (CLIENT_ID, name)]) == ((CLIENT_ID, name), (USER, None))


def test_no_two_entities_have_the_same_text() -> None:
    names = ["app", "a/b", "a=b,user", "ä ö", "..", "%2F", "client-id", None]
    entities = [checked_entity([(USER, None), (CLIENT_ID, name)]) for name in names]
    assert len(set(map(entity_text, entities))) == len(names)
    assert entity_text(entities[0]) == "client-id=app,user"


def test_an_address_is_kept_as_the_system_writes_it() -> None:
    assert checked_entity([(IP, "0:0::0001")]) == ((IP, "::1"),)


def test_values_are_set_and_removed() -> None:
    entity = checked_entity([(CLIENT_ID, "app")])
    changes = [QuotaChange(key=REQUEST_PERCENTAGE, value=0.5), QuotaChange(key=PRODUCER_BYTE_RATE, value=None)]
    values = changed_values(entity, {PRODUCER_BYTE_RATE: 1.0}, changes)
    assert values == {REQUEST_PERCENTAGE: 0.5}
    assert changed_values(entity, {}, [QuotaChange(key="nothing", value=None)]) == {}


@pytest.mark.parametrize(
    ("kind", "key", "value", "reason"),
    [
        (USER, "no_such_rate", 1, "quota 'no_such_rate' is not supported for 'user'"),
        (IP, CONTROLLER_MUTATION_RATE, 1, "is not supported for"),
        (USER, CONTROLLER_MUTATION_RATE, 0, "more than 0"),
        (USER, CONNECTION_CREATION_RATE, 1, "is not supported for"),
        (IP, PRODUCER_BYTE_RATE, 1, "is not supported for"),
        (USER, PRODUCER_BYTE_RATE, 0, "more than 0"),
        (USER, REQUEST_PERCENTAGE, float("nan"), "more than 0"),
        (USER, REQUEST_PERCENTAGE, float("inf"), "more than 0"),
        (USER, PRODUCER_BYTE_RATE, 1.5, "a whole number"),
    ],
)
def test_a_value_that_cannot_be_enforced_is_refused(kind: str, key: str, value: float, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        changed_values(checked_entity([(kind, None)]), {}, [QuotaChange(key=key, value=value)])
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_a_key_is_changed_once_in_an_entry() -> None:
    change = QuotaChange(key=PRODUCER_BYTE_RATE, value=1.0)
    with pytest.raises(RequestError, match="changes a quota twice"):
        changed_values(((USER, None),), {}, [change, change])


ANN, DEFAULT, APP, ANNS_APP = (
    ((USER, "ann"),),
    ((USER, None),),
    ((CLIENT_ID, "app"),),
    ((CLIENT_ID, "app"), (USER, "ann")),
)
ALL = rates(ANN, DEFAULT, APP, ANNS_APP)
BY_NAME = QuotaFilter(entity_type=USER, match=Match.EXACT, name="ann")
BY_DEFAULT = QuotaFilter(entity_type=USER, match=Match.DEFAULT)
ANY_USER, ANY_ID = QuotaFilter(entity_type=USER, match=Match.ANY), QuotaFilter(entity_type=CLIENT_ID, match=Match.ANY)


@pytest.mark.parametrize(
    ("filters", "found", "found_strictly"),
    [
        ([], [APP, ANNS_APP, DEFAULT, ANN], []),
        ([BY_NAME], [ANNS_APP, ANN], [ANN]),
        ([BY_DEFAULT], [DEFAULT], [DEFAULT]),
        ([ANY_USER], [ANNS_APP, DEFAULT, ANN], [DEFAULT, ANN]),
        ([ANY_ID], [APP, ANNS_APP], [APP]),
        ([BY_NAME, ANY_ID], [ANNS_APP], [ANNS_APP]),
        ([BY_DEFAULT, ANY_ID], [], []),
    ],
)
def test_a_filter_finds_what_matches(
    filters: list[QuotaFilter], found: list[QuotaEntity], found_strictly: list[QuotaEntity]
) -> None:
    assert ALL.matching(filters, strict=False) == found
    assert ALL.matching(filters, strict=True) == found_strictly


@pytest.mark.parametrize(
    ("filters", "kind"),
    [
        ([QuotaFilter(entity_type="group", match=Match.ANY)], ErrorKind.UNSUPPORTED_VERSION),
        ([ANY_USER, BY_NAME], ErrorKind.INVALID_REQUEST),
        ([ANY_USER, QuotaFilter(entity_type=IP, match=Match.ANY)], ErrorKind.INVALID_REQUEST),
        ([QuotaFilter(entity_type=USER, match=Match.EXACT)], ErrorKind.INVALID_REQUEST),
        ([QuotaFilter(entity_type=USER, match=Match.ANY, name="ann")], ErrorKind.INVALID_REQUEST),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(filters: list[QuotaFilter], kind: ErrorKind) -> None:
    with pytest.raises(RequestError) as caught:
        ALL.matching(filters, strict=False)
    assert caught.value.kind is kind
