"""The shop: makes the topic and its three subscriptions, and takes orders."""

import json

from api import ask

SUBSCRIPTIONS = (
    # One order of a customer after the other. What fails is tried again: soon, and then less and less often.
    # Exactly once: what is acknowledged never comes again, and whoever is too late to acknowledge it is told so.
    {
        "name": "payments",
        "ordering": "key",
        "delivery": "exactly_once",
        "max_deliveries": 10,
        "retry": {"base_ms": 100, "factor": 2, "cap_ms": 60_000},
    },
    # Only what is worth the trouble.
    {"name": "fraud", "filter": "payload.total > 1000"},
    # What has failed twice becomes a dead letter, and waits for somebody to look at it.
    {"name": "emails", "max_deliveries": 2, "retry": {"base_ms": 100}},
)

ORDERS = (
    {"order": 1, "customer": "Ada Lovelace", "total": 30},
    {"order": 2, "customer": "Bob Martin", "total": 120},
    {"order": 3, "customer": "Cher", "total": 45},
    {"order": 4, "customer": "Bob Martin", "total": 15},
    {"order": 5, "customer": "Grace Hopper", "total": 2500},
    {"order": 6, "customer": "Voltaire", "total": 60},
    {"order": 7, "customer": "Ada Lovelace", "total": 3100},
)


def open_shop() -> None:
    """Subscriptions begin with what comes after them, so they are there before the first order."""
    ask("POST", "/topics", {"name": "orders"})
    for subscription in SUBSCRIPTIONS:
        ask("POST", "/topics/orders/subscriptions", subscription)


def publish_orders() -> None:
    """The key keeps the orders of one customer in line. By its id an order that is sent twice is taken once."""
    messages = [
        {"payload": json.dumps(order), "key": order["customer"], "dedup_id": f"order-{order['order']}"}
        for order in ORDERS
    ]
    receipts = ask("POST", "/topics/orders/messages:batch", {"messages": messages})["results"]
    for order, receipt in zip(ORDERS, receipts, strict=True):
        print(f"order {order['order']} of {order['customer']} is message {receipt['message_id']}")


if __name__ == "__main__":
    open_shop()
    publish_orders()
