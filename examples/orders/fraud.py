"""Looks at large orders. It need not pick them out: the filter of its subscription does."""

from typing import Any

from worker import work


def look_at(order: dict[str, Any], _delivery: int) -> str:
    return f"{order['total']} EUR, " + ("call the customer" if order["total"] > 3000 else "looks right")


if __name__ == "__main__":
    work("fraud", look_at)
