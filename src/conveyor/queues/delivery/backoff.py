"""How long a message waits before it is delivered again: exponential backoff with full jitter.

Source: "Exponential Backoff And Jitter", Marc Brooker, AWS Architecture Blog, 2015.
"""

from math import inf

from conveyor.queues.subscription.policy import Retry


def retry_delay_ms(retry: Retry, delivery_count: int, fraction: float) -> int:
    """A delay anywhere from 0 up to what the backoff has grown to after this many deliveries (the first is 1).

    fraction: where in that range, 0 or more and below 1; the caller's entropy.
    """
    try:
        grown_ms = retry.base_ms * retry.factor ** (delivery_count - 1)
    except OverflowError:
        grown_ms = inf if retry.base_ms else 0
    return int(min(grown_ms, retry.cap_ms) * fraction)
