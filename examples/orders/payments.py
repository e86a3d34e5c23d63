"""Charges every order. For one of them it takes a while until the bank answers."""

from typing import Any

from worker import work


def charge(order: dict[str, Any], delivery: int) -> str:
    if order["order"] == 2 and delivery < 3:
        raise TimeoutError("the bank does not answer")
    return f"charged {order['total']} EUR"


if __name__ == "__main__":
    work("payments", charge)
