"""Subscriptions that push: real targets that fail, hang and recover, verified by the libraries of receivers."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook

from conveyor.testing import Broker, Cluster
from tests.clients.rest_client import Rest
from tests.clients.webhook_server import Received, Reply, WebhookServer, eventually

PRIVATE = {"push.allow_private": True}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=PRIVATE) as running:
        yield running


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


def subscribe(rest: Rest, topic: str, push: dict[str, Any], partitions: int = 1, **policy: Any) -> dict[str, Any]:
    """Create a topic and a subscription `<topic>-s` that pushes. Returns its document."""
    rest.create(topic, partitions=partitions)
    body = {"name": f"{topic}-s", "push": {"allow_private": True, **push}, **policy}
    answer = rest.post(f"/topics/{topic}/subscriptions", body)
    assert answer.status == 201, answer.body
    document: dict[str, Any] = answer.json
    return document


def details(rest: Rest, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = rest.get(f"/subscriptions/{topic}-s").json
    return found


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
def test_receivers_verify_what_they_get(rest: Rest, topic: str, hook: WebhookServer, mode: str) -> None:
    push = subscribe(rest, topic, {"url": hook.url, "mode": mode, "content_type": "application/json"})["push"]
    rest.publish(topic, '{"n": 1}', key="k", headers={"ce_type": "order.paid", "tenant": "M\u00fcller"})
    request = hook.wait_taken(1)[0]
    Webhook(push["secret"]).verify(request.body, dict(request.headers), json_parse=False)
    body, headers = request.body, dict(request.headers)
    if mode == "batch":
        body = json.dumps(json.loads(body)[0]).encode()
        headers["content-type"] = headers["content-type"].replace("-batch", "")
    event = from_http_event(HTTPMessage(headers=headers, body=body))
    assert (event.get_id(), event.get_source(), event.get_type()) == ("0-0", f"/topics/{topic}", "order.paid")
    assert event.get_data() == {"n": 1}
    assert (event.get_extension("partitionkey"), event.get_extension("tenant")) == ("k", "M\u00fcller")
    assert request.headers["conveyor-subscription"] == f"{topic}-s"
    eventually(lambda: details(rest, topic)["unsettled"] == 0)


def test_batch_has_several_messages(rest: Rest, topic: str, hook: WebhookServer) -> None:
    subscribe(rest, topic, {"url": hook.url, "mode": "batch", "batch_size": 3, "paused": True})
    rest.publish(topic, *map(str, range(7)))
    rest.patch(f"/subscriptions/{topic}-s", {"push": {"paused": False}})
    requests = hook.wait_taken(3)
    assert sorted(len(json.loads(request.body)) for request in requests) == [1, 3, 3]


def test_secret_is_shown_once_and_two_sign_while_they_rotate(rest: Rest, topic: str, hook: WebhookServer) -> None:
    first = subscribe(rest, topic, {"url": hook.url})["push"]["secret"]
    path = f"/subscriptions/{topic}-s"
    assert "secret" not in details(rest, topic)["push"]
    assert first.removeprefix("whsec_") not in rest.get("/subscriptions").body.decode()
    second = rest.patch(path, {"push": {"rotate_secret": True}}).json["push"]
    assert second["has_old_secret"]
    rest.publish(topic, "both")
    request = hook.wait_taken(1)[-1]
    for secret in (first, second["secret"]):
        Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)
    changed = rest.patch(path, {"push": {"drop_old_secret": True}}).json["push"]
    assert (changed["has_old_secret"], "secret" in changed) == (False, False)
    rest.publish(topic, "new")
    request = hook.wait_taken(2)[-1]
    assert len(request.headers["webhook-signature"].split(" ")) == 1
    Webhook(second["secret"]).verify(request.body, dict(request.headers), json_parse=False)


def test_secret_of_the_client_signs_and_is_not_shown(rest: Rest, topic: str, hook: WebhookServer) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert "secret" not in subscribe(rest, topic, {"url": hook.url, "secret": secret})["push"]
    rest.publish(topic, "x")
    request = hook.wait_taken(1)[0]
    Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)


def test_target_that_recovers_gets_every_message_in_order_within_the_allowed_concurrency(topic: str) -> None:
    """It answers 500 for a while, hangs, is cut off by its own timeout, then recovers; time is the test's."""
    fails = threading.Event()
    fails.set()
    hangs = {"0-3", "0-7"}
    hung_count = len(hangs)

    def respond(request: Received) -> Reply | None:
        message_id = request.headers["ce-id"]
        if message_id in hangs:
            hangs.discard(message_id)
            return None
        return Reply(500) if fails.is_set() else Reply()

    with WebhookServer(respond) as hook, Broker(memory=True, manual_clock=True, settings=PRIVATE) as broker:
        rest = Rest(broker)
        subscribe(
            rest, topic, {"url": hook.url, "max_concurrency": 3, "timeout_ms": 30_000},
            ordering="key", max_deliveries=0, retry={"base_ms": 100, "cap_ms": 2_000},
        )  # fmt: skip
        published: defaultdict[str, list[str]] = defaultdict(list)
        for number in range(60):
            key = f"k{number % 7}"
            published[key] += rest.publish(topic, str(number), key=key)
        hook.wait(lambda: bool(hook.received))

        def advance() -> None:
            """Move on once the target has answered: real time must not become a virtual timeout."""
            eventually(lambda: hook.open_count <= hung_count - len(hangs))
            broker.clock.advance(seconds=1)

        for _ in range(50):
            advance()
        state = details(rest, topic)["push_status"][0]
        assert (state["breaker"], state["failed"] > 0) != ("closed", False)
        fails.clear()
        while len(_ids(hook)) < 60:
            advance()
        taken: defaultdict[str, list[str]] = defaultdict(list)
        for request in hook.taken:
            if request.headers["ce-id"] not in taken[request.headers["ce-partitionkey"]]:
                taken[request.headers["ce-partitionkey"]].append(request.headers["ce-id"])
        assert taken == published
        assert hook.most_open <= 3 + 2  # The two that the broker has given up hang in the target still.
        eventually(lambda: details(rest, topic)["unsettled"] == 0)
        state = details(rest, topic)["push_status"][0]
        assert (state["breaker"], state["delivered"], state["in_flight"]) == ("closed", 60, 0)
        by_id: defaultdict[str, set[str]] = defaultdict(set)
        for request in hook.received:
            by_id[request.headers["ce-id"]].add(request.webhook_id)
        assert all(len(ids) == 1 for ids in by_id.values())
        rest.close()


@pytest.mark.parametrize(("status", "retry_after"), [(429, "30"), (503, "30"), (429, "Tue, 14 Nov 2023 22:13:50 GMT")])
def test_target_that_asks_for_time_gets_it(topic: str, status: int, retry_after: str) -> None:
    replies = [Reply(status, {"Retry-After": retry_after})]
    with (
        WebhookServer(lambda _: replies.pop() if replies else Reply()) as hook,
        Broker(memory=True, manual_clock=True, settings=PRIVATE) as broker,
    ):
        rest = Rest(broker)
        subscribe(rest, topic, {"url": hook.url})
        rest.publish(topic, "x")
        hook.wait(lambda: len(hook.received) == 1)
        eventually(lambda: details(rest, topic)["push_status"][0]["released"] == 1)
        broker.clock.advance(ms=28_900)
        assert len(hook.received) == 1
        assert details(rest, topic)["push_status"][0]["retry_in_ms"] > 0
        broker.clock.advance(ms=1_200)
        assert hook.wait_taken(1)[0].headers["conveyor-delivery-count"] == "1"
        rest.close()


def test_refused_messages_become_dead_letters_and_the_others_arrive(
    rest: Rest, topic: str, hook: WebhookServer
) -> None:
    hook.respond = lambda request: Reply(422 if request.body == b"bad" else 204)
    subscribe(rest, topic, {"url": hook.url}, max_deliveries=2, retry={"base_ms": 1, "cap_ms": 1})
    rest.publish(topic, "good", "bad", "good")
    eventually(lambda: details(rest, topic)["dead"] == 1)
    assert len(hook.wait_taken(2)) == 2
    state = details(rest, topic)["push_status"][0]
    assert (state["breaker"], state["failed"], state["last_error"]) == ("closed", 2, "the target answers 422")


def test_gone_target_pauses_until_a_client_resumes(rest: Rest, topic: str, hook: WebhookServer) -> None:
    hook.respond = lambda _: Reply(410)
    subscribe(rest, topic, {"url": hook.url})
    rest.publish(topic, "x")
    eventually(lambda: details(rest, topic)["push"]["paused"] == "gone")
    shown = details(rest, topic)
    assert (shown["push_status"][0]["state"], shown["unsettled"], len(hook.received)) == ("paused", 1, 1)
    hook.respond = lambda _: Reply()
    rest.patch(f"/subscriptions/{topic}-s", {"push": {"paused": False}})
    assert hook.wait_taken(1)[0].headers["conveyor-delivery-count"] == "1"
    assert details(rest, topic)["push"]["paused"] is None


def test_answer_of_the_target_before_says_nothing_about_the_one_after_it(topic: str, hook: WebhookServer) -> None:
    changed = threading.Event()

    def respond(_: Received) -> Reply:
        assert changed.wait(30)
        return Reply(410)

    with WebhookServer(respond) as before, Broker(memory=True, settings=PRIVATE) as broker:
        rest = Rest(broker)
        subscribe(rest, topic, {"url": before.url})
        rest.publish(topic, "x")
        before.wait(lambda: bool(before.received))
        assert rest.patch(f"/subscriptions/{topic}-s", {"push": {"url": hook.url}}).status == 200
        changed.set()
        hook.wait_taken(1)
        assert details(rest, topic)["push"]["paused"] is None
        rest.close()


def test_messages_of_a_key_are_sent_one_after_the_other_though_a_consumer_may_lease_several(topic: str) -> None:
    fails = threading.Event()
    fails.set()
    open_keys: set[str] = set()

    def respond(request: Received) -> Reply:
        key = request.headers["ce-partitionkey"]
        assert key not in open_keys
        open_keys.add(key)
        is_failed = fails.is_set() and request.headers["ce-id"] == "0-0"
        fails.clear()
        open_keys.discard(key)
        return Reply(500 if is_failed else 204)

    with WebhookServer(respond) as hook, Broker(memory=True, settings=PRIVATE) as broker:
        rest = Rest(broker)
        subscribe(
            rest, topic, {"url": hook.url, "paused": True},
            ordering="key", max_in_flight_per_key=10, retry={"base_ms": 1, "cap_ms": 1},
        )  # fmt: skip
        ids = rest.publish(topic, *map(str, range(20)), key="k")
        rest.patch(f"/subscriptions/{topic}-s", {"push": {"paused": False}})
        hook.wait_taken(20)
        assert [request.headers["ce-id"] for request in hook.received] == ["0-0", *ids]
        rest.close()


def test_redirect_is_a_failed_delivery(rest: Rest, topic: str, hook: WebhookServer) -> None:
    with WebhookServer() as elsewhere:
        hook.respond = lambda _: Reply(307, {"Location": elsewhere.url})
        subscribe(rest, topic, {"url": hook.url}, max_deliveries=1)
        rest.publish(topic, "x")
        eventually(lambda: details(rest, topic)["dead"] == 1)
        assert "redirects are not followed" in details(rest, topic)["push_status"][0]["last_error"]
        assert not elsewhere.received


def test_push_and_clients_share_the_messages(rest: Rest, topic: str, hook: WebhookServer) -> None:
    subscribe(rest, topic, {"url": hook.url, "paused": True})
    rest.publish(topic, "a", "b")
    leased = rest.lease(f"{topic}-s", max_messages=1)
    rest.patch(f"/subscriptions/{topic}-s", {"push": {"paused": False}})
    assert [request.body for request in hook.wait_taken(1)] == [b"b"]
    rest.post(f"/subscriptions/{topic}-s/ack", {"ack_ids": [leased[0]["ack_id"]]})
    eventually(lambda: details(rest, topic)["unsettled"] == 0)


def test_push_can_be_given_later_changed_and_ended(rest: Rest, topic: str, hook: WebhookServer) -> None:
    rest.create(topic, f"{topic}-s")
    path = f"/subscriptions/{topic}-s"
    assert details(rest, topic)["push"] is None
    assert rest.patch(path, {"push": {"mode": "batch"}}).status == 400
    made = rest.patch(path, {"push": {"url": hook.url, "allow_private": True}}).json["push"]
    assert made["secret"].startswith("whsec_")
    rest.publish(topic, "x")
    hook.wait_taken(1)
    with WebhookServer() as other:
        changed = rest.patch(path, {"push": {"url": other.url, "timeout_ms": 1_000}}).json["push"]
        assert (changed["url"], changed["timeout_ms"], changed["allow_private"]) == (other.url, 1_000, True)
        rest.publish(topic, "y")
        other.wait_taken(1)
    assert rest.patch(path, {"push": None}).json["push"] is None
    rest.publish(topic, "z")
    assert [message["payload"] for message in rest.lease(f"{topic}-s")] == ["z"]
    assert details(rest, topic)["push_status"] == []


@pytest.mark.parametrize(
    ("push", "status"),
    [
        ({"url": "https://user:pass@example.com/"}, 400),
        ({"url": "http://example.com/"}, 400),
        ({"url": "ftp://example.com/"}, 400),
        ({}, 400),
        ({"url": "https://example.com/", "secret": "whsec_x"}, 400),
        ({"url": "https://example.com/", "secret": "whsec_" + "A" * 44, "rotate_secret": True}, 400),
        ({"url": "https://example.com/", "mode": "xml"}, 400),
        ({"url": "https://example.com/", "max_concurrency": 0}, 400),
        ({"url": "https://example.com/", "timeout_ms": 1e30}, 400),
        ({"url": "https://example.com/", "owner": "User:admin"}, 400),
        ({"url": "https://example.com/", "secrets": []}, 400),
    ],
)
def test_illegal_targets_are_refused(rest: Rest, topic: str, push: dict[str, Any], status: int) -> None:
    rest.create(topic)
    answer = rest.post(f"/topics/{topic}/subscriptions", {"name": f"{topic}-s", "push": push})
    assert answer.status == status, answer.body
    assert rest.get(f"/subscriptions/{topic}-s").status == 404


def test_private_addresses_need_the_operators_permission(topic: str, hook: WebhookServer) -> None:
    with Broker(memory=True) as broker:
        rest = Rest(broker)
        rest.create(topic)
        path, target = f"/topics/{topic}/subscriptions", {"url": hook.url, "allow_private": True}
        assert rest.post(path, {"name": f"{topic}-s", "push": target}).status == 409
        made = rest.post(path, {"name": f"{topic}-s", "push": {"url": hook.url}})
        assert made.status == 201
        rest.publish(topic, "x")
        eventually(lambda: details(rest, topic)["push_status"][0]["released"] > 0)
        shown = details(rest, topic)
        assert "not public" in shown["push_status"][0]["last_error"]
        assert (shown["unsettled"], shown["retried"], hook.received) == (1, 0, [])
        rest.close()


def test_number_of_targets_is_limited(topic: str) -> None:
    with Broker(memory=True, settings={"push.max_targets": 1}) as broker:
        rest = Rest(broker)
        rest.create(topic, "b", "c")
        push = {"push": {"url": "https://example.com/", "paused": True}}
        assert rest.patch("/subscriptions/b", push).status == 200
        assert rest.patch("/subscriptions/c", push).status == 409
        assert rest.patch("/subscriptions/b", {"push": None}).status == 200
        assert rest.patch("/subscriptions/c", push).status == 200
        rest.delete("/subscriptions/c")
        assert rest.patch("/subscriptions/b", push).status == 200
        rest.close()


def test_push_goes_on_after_a_restart(topic: str, hook: WebhookServer) -> None:
    with Broker(settings=PRIVATE) as broker:
        rest = Rest(broker)
        secret = subscribe(rest, topic, {"url": hook.url})["push"]["secret"]
        rest.close()
        broker.stop()
        broker.start()
        rest = Rest(broker)
        rest.publish(topic, "x")
        request = hook.wait_taken(1)[0]
        Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)
        rest.close()


def test_new_leader_goes_on_with_the_push(topic: str, hook: WebhookServer) -> None:
    with Cluster(settings=PRIVATE) as cluster:
        rest = Rest(cluster.brokers[1])
        body = {"name": topic, "partitions": 3, "replicas": 3, "config": {"min.insync.replicas": 2}}
        assert rest.post("/topics", body).status == 201
        push = {"url": hook.url, "allow_private": True, "max_concurrency": 3}
        made = rest.post(f"/topics/{topic}/subscriptions", {"name": f"{topic}-s", "push": push})
        assert made.status == 201, made.body
        first = rest.publish(topic, *map(str, range(30)))
        hook.wait(lambda: len(_ids(hook)) == len(first))
        assert hook.most_open <= 3
        assert {state["broker"] for state in details(rest, topic)["push_status"]} == {1, 2, 3}
        cluster.kill(3)
        second = rest.publish(topic, *map(str, range(30)))
        hook.wait(lambda: _ids(hook) >= {*first, *second})
        eventually(lambda: details(rest, topic)["unsettled"] == 0)
        request = hook.taken[-1]
        Webhook(made.json["push"]["secret"]).verify(request.body, dict(request.headers), json_parse=False)
        rest.close()


def _ids(hook: WebhookServer) -> set[str]:
    return {request.headers["ce-id"] for request in list(hook.taken)}


def test_subscriptions_share_the_connections_of_a_broker(topic: str, hook: WebhookServer) -> None:
    settings = PRIVATE | {"push.max_connections": 2, "push.max_in_flight_bytes": 100}
    with Broker(memory=True, settings=settings) as broker:
        rest = Rest(broker)
        rest.create(topic)
        for number in range(5):
            push = {"url": f"{hook.url}/{number}", "allow_private": True}
            assert rest.post(f"/topics/{topic}/subscriptions", {"name": f"s{number}", "push": push}).status == 201
        rest.publish(topic, *("x" * 90 for _ in range(10)))
        taken = hook.wait_taken(50)
        assert hook.most_open <= 2
        assert {request.path for request in taken} == {f"/hook/{number}" for number in range(5)}
        rest.close()


def test_broker_stops_although_a_target_hangs(topic: str, hook: WebhookServer) -> None:
    hook.respond = lambda _: None
    with Broker(memory=True, settings=PRIVATE) as broker:
        rest = Rest(broker)
        subscribe(rest, topic, {"url": hook.url, "timeout_ms": 300_000})
        rest.publish(topic, "x")
        hook.wait(lambda: bool(hook.received))
        rest.close()
