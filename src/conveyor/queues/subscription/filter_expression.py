"""Checks a filter expression before it is stored: every check that needs no message.

The following is refused, so that no expression can block a broker:
- an expression with more than MAX_CHARACTERS, or one that costs more than MAX_COST_NS on an empty message
(`filter_price`);
- a macro (`exists`, `all`, ...) within another macro, whose cost is a product of lengths; and `map`, whose result may
be as large as the product of two parts of a message;
- a regular expression that is large or is not a literal. A literal is compiled once, by RE2, whose time is linear in
the text.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.filter_price import MACROS, Amount, Scope, price
from conveyor.queues.subscription.filter_syntax import Node, parse_expression, refuse, refuse_at, walk

if TYPE_CHECKING:
    import re2
    from cel import Program

MAX_CHARACTERS = 4096
MAX_COST_NS = 20_000_000
"""The highest cost of evaluating a filter on one message, as computed by `filter_price`."""
FUNCTIONS = (
    "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate", "getDayOfMonth", "getDayOfWeek",
    "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has", "int",
    "matches", "size", "startsWith", "string", "timestamp", "type", "uint", *MACROS,
)  # fmt: skip
TYPES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})

_MATCHES, _OWN_MATCHES = "matches", "rematch"
"""Both names have the same length, so that columns in error messages stay correct."""
_MAX_PATTERN_BYTES = 1 << 20
"""The memory limit of a compiled regular expression and of its search state."""
_MAX_INSTRUCTIONS = 10_000
"""The limit for all compiled regular expressions of a filter together."""

_PARSE_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_REASONS = (
    (re.compile(r"token recognition error at: '= ?.*"), "`=` is not a comparison: write `==`"),
    (re.compile(r"token recognition error at: '['\"].*"), "the string is not closed"),
    (re.compile(r"token recognition error at: '(.*)'"), r"`\1` is not a valid character"),
    (re.compile(r"(?:mismatched|extraneous|no viable alternative at) input '<EOF>'.*"),
     "the expression ends too early"),
    (re.compile(r"(?:mismatched|extraneous|no viable alternative at) input '(.*?)' expecting.*"),
     r"`\1` is not expected here"),
    (re.compile(r"missing '(.)' at .*"), r"`\1` is missing"),
    (re.compile(r".*ecursion.*"), "the expression nests too deeply"),
)  # fmt: skip
_SHOWN_CHARACTERS = 200

OwnFunctions = Mapping[str, Callable[[object, str], bool | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedExpression:
    """A program that is safe to execute, with `functions` and the variables that it names as its context.

    payload_fields: the fields of `payload` that it reads; None if it reads the payload as a whole.
    """

    program: "Program"
    variables: frozenset[str]
    payload_fields: frozenset[str] | None
    functions: OwnFunctions
    cost: Amount


def check_expression(expression: str, scope: Scope) -> CheckedExpression:
    """Compile an expression over the variables of `scope`. Raises RequestError (INVALID_FILTER) with the position
    of the error.
    """
    if not expression.strip() or len(expression) > MAX_CHARACTERS:
        raise RequestError(
            ErrorKind.INVALID_FILTER,
            f"a filter has 1 to {MAX_CHARACTERS} characters, not {len(expression)};"
            " omit the filter to receive every message",
        )
    from cel import compile as compile_program  # The import takes 0.2 s, so only filters pay for it.

    try:
        program = compile_program(expression)
    except ValueError as error:
        _refuse_syntax(expression, str(error))
    tree = parse_expression(expression)
    nodes = list(walk(tree))
    _check_functions(expression, nodes)
    _check_macros(expression, tree, inside_macro=False)
    used = _check_variables(expression, tree, scope)
    patterns = _compile_patterns(expression, nodes)
    if patterns:
        program = compile_program(_with_own_matches(expression, nodes))
    sizes = {literal: pattern.programsize for literal, pattern in patterns.items()}
    cost = price(tree, scope, sizes).cost
    if cost.at(0, 1) > MAX_COST_NS:
        raise RequestError(
            ErrorKind.INVALID_FILTER, "the filter is too expensive for every message: use fewer or cheaper operators"
        )
    return CheckedExpression(
        program=program,
        variables=used,
        payload_fields=_payload_fields(tree),
        functions=_own_functions(patterns),
        cost=cost,
    )


def _refuse_syntax(expression: str, text: str) -> NoReturn:
    error = _PARSE_ERROR.search(text, text.find("': ERROR") + 1)
    if error is None:
        raise RequestError(ErrorKind.INVALID_FILTER, f"the filter is not a CEL expression: {text[-_SHOWN_CHARACTERS:]}")
    line, column, reason = int(error[1]) - 1, int(error[2]) - 1, error[3]
    for pattern, plain in _REASONS:
        if pattern.fullmatch(reason):
            reason = pattern.sub(plain, reason)
            break
    refuse_at(expression, line, column, reason[:_SHOWN_CHARACTERS])


def _check_functions(expression: str, nodes: Collection[Node]) -> None:
    for node in nodes:
        if node.kind == "call" and node.name == "map":
            refuse(expression, node.position, "`map` is not supported: use exists, all or filter")
        if node.kind == "call" and node.name not in FUNCTIONS:
            refuse(expression, node.position, f"there is no function `{node.name}`; there are {', '.join(FUNCTIONS)}")


def _check_macros(expression: str, node: Node, *, inside_macro: bool) -> None:
    """Check that no macro is nested in another, and that each has a variable and a condition."""
    is_macro = node.kind == "call" and node.name in MACROS
    if is_macro and inside_macro:
        refuse(expression, node.position, f"`{node.name}` is nested in another macro, which is not supported")
    if is_macro and not (node.is_method and len(node.parts) == 3 and node.parts[1].kind == "variable"):
        refuse(expression, node.position, f"`{node.name}` takes a variable and a condition: list.{node.name}(x, x > 1)")
    for number, part in enumerate(node.parts):
        _check_macros(expression, part, inside_macro=inside_macro or (is_macro and number > 0))


def _check_variables(expression: str, node: Node, known: Collection[str]) -> frozenset[str]:
    """Return the message variables that are named. A macro's own variable is valid only inside the macro."""
    if node.kind == "variable":
        if node.name not in known and node.name not in TYPES:
            refuse(expression, node.position, f"there is no variable `{node.name}`; there are {', '.join(known)}")
        return frozenset((node.name,)) - TYPES
    if node.kind == "call" and node.name in MACROS:
        source, variable, condition = node.parts
        inside = _check_variables(expression, condition, (*known, variable.name)) - {variable.name}
        return _check_variables(expression, source, known) | inside
    return frozenset().union(*(_check_variables(expression, part, known) for part in node.parts))


def _payload_fields(node: Node) -> frozenset[str] | None:
    """See `CheckedExpression.payload_fields`."""
    if node.kind == "select" and node.parts[0].kind == "variable" and node.parts[0].name == "payload":
        return frozenset((node.name,))
    if node.kind == "variable" and node.name == "payload":
        return None
    names: frozenset[str] = frozenset()
    for part in node.parts:
        fields = _payload_fields(part)
        if fields is None:
            return None
        names |= fields
    return names


def _compile_patterns(expression: str, nodes: Collection[Node]) -> "dict[str, re2._Regexp[str]]":
    """Compile the argument of each `matches`, by its literal. Raises RequestError if it is not one literal."""
    patterns: dict[str, re2._Regexp[str]] = {}
    instructions = 0
    for node in nodes:
        if node.kind != "call" or node.name != _MATCHES:
            continue
        if not node.is_method or len(node.parts) != 2 or node.parts[1].kind != "string":
            refuse(expression, node.position, "`matches` takes exactly one regular expression in quotes")
        literal = node.parts[1]
        if literal.name[0] in "bB" or literal.name[1] in "bB":
            refuse(expression, literal.position, "`matches` takes text, not bytes")
        if literal.name not in patterns:
            patterns[literal.name] = pattern = _compile_pattern(expression, literal)
            instructions += pattern.programsize
        if instructions > _MAX_INSTRUCTIONS:
            refuse(
                expression,
                literal.position,
                f"the regular expressions compile to more than {_MAX_INSTRUCTIONS} instructions",
            )
    return patterns


def _compile_pattern(expression: str, literal: Node) -> "re2._Regexp[str]":
    import re2  # Brokers without regular expressions never load this package.

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_PATTERN_BYTES
    try:
        return re2.compile(_text_of(literal.name), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it is not RE2 syntax"
        refuse(expression, literal.position, f"this regular expression is not valid: {reason}")


def _text_of(literal: str) -> str:
    from cel import evaluate

    return str(evaluate(literal))


def _with_own_matches(expression: str, nodes: Collection[Node]) -> str:
    changed = list(expression)
    for node in nodes:
        if node.kind == "call" and node.name == _MATCHES:
            changed[node.position : node.position + len(_MATCHES)] = _OWN_MATCHES
    return "".join(changed)


def _own_functions(patterns: "Mapping[str, re2._Regexp[str]]") -> OwnFunctions:
    """`rematch` returns null for anything but text: for an exception, the `cel` package would write a log line of
    its own.
    """
    if not patterns:
        return {}
    compiled = {_text_of(literal): pattern for literal, pattern in patterns.items()}

    def rematch(text: object, pattern: str) -> bool | None:
        return compiled[pattern].search(text) is not None if isinstance(text, str) else None

    return {_OWN_MATCHES: rematch}
