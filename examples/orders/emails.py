"""Thanks every customer by e-mail. It has a bug; `--fixed` stands for tomorrow's version."""

import sys
from typing import Any

from worker import work


def thank(order: dict[str, Any], _delivery: int) -> str:
    first_name, last_name = order["customer"].split()
    return f"wrote 'Thank you, {first_name} {last_name}'"


def thank_fixed(order: dict[str, Any], _delivery: int) -> str:
    return f"wrote 'Thank you, {order['customer']}'"


if __name__ == "__main__":
    work("emails", thank_fixed if "--fixed" in sys.argv else thank)
