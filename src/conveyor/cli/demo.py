"""x"""


def demo() -> None:
    """x"""
