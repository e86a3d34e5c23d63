"""The loop that all workers share: lease orders, do the work, say how it went."""

import json
from collections.abc import Callable
from typing import Any

from api import ask

Task = Callable[[dict[str, Any], int], str]
"""Does the work for an order, which is delivered for the n-th time, and says what it did. Raises if it cannot."""


def work(subscription: str, task: Task) -> None:
    """Work until nothing is left to do. (A worker in earnest would say `while True`: its requests wait for orders.)"""
    path = f"/subscriptions/{subscription}"
    while ask("GET", path)["unsettled"]:
        for message in ask("GET", f"{path}/messages?max_messages=10&wait=1s")["messages"]:
            order, delivery = json.loads(message["payload"]), message["delivery_count"]
            try:
                outcome = task(order, delivery)
            except Exception as error:
                ask("POST", f"{path}/nack", {"ack_id": message["ack_id"]})
                outcome = f"FAILED, delivery {delivery}: {error}"
            else:
                ask("POST", f"{path}/ack", {"ack_id": message["ack_id"]})
            print(f"order {order['order']} of {order['customer']}: {outcome}")
