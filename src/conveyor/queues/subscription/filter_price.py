"""An upper bound on the cost of a filter, computed from its expression before any message is seen.

A bound is a polynomial in two numbers of a message:

    weight   ns to decode the variables that the expression names, and to pass them to the evaluator
    rounds   the most elements in a list, map or string of these variables: how often a macro evaluates its condition

Each operator costs a share of its operands' weight. `+` produces a value whose weight is the sum of its operands. A
macro (`exists`, ...) evaluates its condition once per element. The elements of one list together have the weight of the
list, so the variable of a macro is counted separately (`element`).

The shares are measured, with a margin: tests/properties/test_filter_price.py checks them with generated expressions and
messages. Two costs of the evaluator are not obvious: it copies a selected field (`payload.l`) each time, and `filter`
copies its result for each element that it adds.
"""

from collections.abc import Mapping
from typing import NamedTuple

from conveyor.queues.subscription.filter_syntax import Node

MACROS = ("all", "exists", "exists_one", "existsOne", "filter")

_NODE_NS = 300
_ROUND_NS = 1_000
_CALL_NS = 3_000
"""The cost of a function written in Python (`matches`)."""
_COPIED = 0.2
_COMPARED = 0.7
_JOINED = 0.7
_SEARCHED = 1.0
_PARSED = 15.0
_MATCHED = 2.5
"""For each instruction of a compiled pattern: RE2 simulates all of them when it runs out of memory for states."""


class Amount(NamedTuple):
    """Coefficients of a polynomial: fixed + weight * W + element * E + rounds * R + round_weights * R * W, in ns."""

    fixed: float = 0
    weight: float = 0
    element: float = 0
    rounds: float = 0
    round_weights: float = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(*(first + second for first, second in zip(self, other, strict=True)))

    def times(self, factor: float) -> "Amount":
        return Amount(*(coefficient * factor for coefficient in self))

    def at(self, weight: float, rounds: float) -> float:
        """Evaluate the polynomial for one message."""
        return self.fixed + self.weight * weight + (self.rounds + self.round_weights * weight) * rounds


NOTHING = Amount()
MESSAGE = Amount(weight=1)
_SMALL = Amount(fixed=32)
"""The size of a number, a boolean or a time."""
_ELEMENT = Amount(element=1)

Scope = Mapping[str, Amount]
"""The size of each variable's value."""


class Priced(NamedTuple):
    """cost: of evaluating a node and its children. size: the largest size of its value. Both in ns."""

    cost: Amount
    size: Amount


def price(node: Node, scope: Scope, patterns: Mapping[str, int]) -> Priced:
    """Return the cost and size of a node. patterns: the instruction count of each regular expression, by its
    literal.
    """
    if node.kind == "call" and node.name in MACROS:
        return _price_macro(node, scope, patterns)
    parts = [price(part, scope, patterns) for part in node.parts]
    own, size = _price_node(node, [part.size for part in parts], scope, patterns)
    for part in parts:
        own = own.plus(part.cost)
    return Priced(own.plus(Amount(fixed=_NODE_NS)), size)


def _price_macro(node: Node, scope: Scope, patterns: Mapping[str, int]) -> Priced:
    source, variable, condition = node.parts
    cost, size = price(source, scope, patterns)
    round_cost, _ = price(condition, {**scope, variable.name: _ELEMENT}, patterns)
    if node.name == "filter":
        round_cost = round_cost.plus(size.times(_COPIED))
    fixed_rounds, rounds_per_weight = (len(source.parts), 0.0) if source.kind == "list" else (size.fixed, size.weight)
    looped = Amount(
        fixed=fixed_rounds * (round_cost.fixed + _ROUND_NS) + round_cost.element * size.fixed,
        weight=fixed_rounds * round_cost.weight + round_cost.element * size.weight,
        rounds=rounds_per_weight * (round_cost.fixed + _ROUND_NS),
        round_weights=rounds_per_weight * round_cost.weight,
    )
    result = size if node.name == "filter" else _SMALL
    return Priced(cost.plus(looped).plus(size.times(_COPIED)).plus(Amount(fixed=_NODE_NS)), result)


def _price_node(node: Node, sizes: list[Amount], scope: Scope, patterns: Mapping[str, int]) -> Priced:
    """Return the cost of a node without its parts."""
    if node.kind == "string":
        return Priced(NOTHING, Amount(fixed=_SMALL.fixed + len(node.name)))
    if node.kind == "variable":
        return Priced(NOTHING, scope.get(node.name, _SMALL))
    if node.kind in ("select", "index"):
        index = _sum(sizes[1:])
        return Priced(sizes[0].times(_COPIED).plus(index.times(_COMPARED)), sizes[0])
    if node.kind in ("list", "map"):
        total = _sum(sizes)
        return Priced(total.times(_COMPARED), total.plus(_SMALL))
    if node.kind == "operator":
        return _price_operator(node, sizes)
    if node.kind == "call":
        return _price_call(node, sizes, patterns)
    return Priced(NOTHING, _SMALL)


def _price_operator(node: Node, sizes: list[Amount]) -> Priced:
    if node.name == "?:":
        return Priced(NOTHING, sizes[1].plus(sizes[2]))
    if node.name == "+":
        return _price_sum(sizes)
    if node.name == "in":
        return Priced(_price_search(node, sizes).times(_COMPARED), _SMALL)
    if node.name in ("==", "!=", "<", "<=", ">", ">="):
        return Priced(min(sizes, key=_order).times(_COMPARED), _SMALL)
    return Priced(NOTHING, _SMALL)


def _price_sum(sizes: list[Amount]) -> Priced:
    """Each `+` in a chain builds a value of all operands before it."""
    cost, total = NOTHING, sizes[0]
    for size in sizes[1:]:
        total = total.plus(size)
        cost = cost.plus(total.times(_JOINED))
    return Priced(cost, total)


def _price_search(node: Node, sizes: list[Amount]) -> Amount:
    """Return the cost of `in`, which compares a list element by element, and searches a map by hash."""
    wanted, searched = sizes
    if node.parts[1].kind == "list":
        return min(searched, wanted.times(len(node.parts[1].parts)), key=_order)
    return wanted.plus(searched)


def _price_call(node: Node, sizes: list[Amount], patterns: Mapping[str, int]) -> Priced:
    total = _sum(sizes)
    if node.name == "matches":
        instructions = patterns.get(node.parts[-1].name, 0)
        return Priced(sizes[0].times(_SEARCHED + _MATCHED * instructions).plus(Amount(fixed=_CALL_NS)), _SMALL)
    if node.name in ("startsWith", "endsWith"):
        return Priced(total.times(_COPIED), _SMALL)
    if node.name in ("contains", "size", "type", "has"):
        return Priced(total.times(_SEARCHED), _SMALL)
    if node.name in ("string", "bytes", "dyn"):
        return Priced(total.times(_SEARCHED), total.plus(_SMALL))
    return Priced(total.times(_PARSED), _SMALL)


def _sum(sizes: list[Amount]) -> Amount:
    total = NOTHING
    for size in sizes:
        total = total.plus(size)
    return total


def _order(size: Amount) -> tuple[float, float, float]:
    return size.weight, size.element, size.fixed
