"""The retry delay of a message: exponential backoff with full jitter.

Source: "Exponential Backoff And Jitter", Marc Brooker, AWS Architecture Blog, 2015.
"""

from math import inf

from conveyor.queues.subscription.policy import RetryPolicy


def retry_delay_ms(retry: RetryPolicy, delivery_count: int, fraction: float) -> int:
    """Return a delay between 0 and the backoff for this delivery count (1 for the first delivery), in ms.

    fraction: the caller's random number in [0, 1), which selects the delay in that range.
    """
    try:
        grown_ms = retry.base_ms * retry.factor ** (delivery_count - 1)
    except OverflowError:
        grown_ms = inf if retry.base_ms else 0
    return int(min(grown_ms, retry.cap_ms) * fraction)
