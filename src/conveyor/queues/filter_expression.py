"""A filter's expression, looked over before it is taken: what can be said of it without a message, is said here.

Three things that the language allows are refused, so that no expression can hold up a broker:

- a macro (`exists`, `all`, ...) within another, whose cost is a product of lengths; and `map`, whose result may be as
  large as the product of two parts of a message;
- a regular expression that is not a literal; a literal is compiled once, by RE2, whose time is linear in the text;
- more than MAX_CHARACTERS.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import re2

from conveyor.kernel.errors import ErrorKind, RequestError

if TYPE_CHECKING:
    from cel import Program

MAX_CHARACTERS = 4096
MACROS = ("all", "exists", "exists_one", "existsOne", "filter")
FUNCTIONS = (
    "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate", "getDayOfMonth", "getDayOfWeek",
    "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has", "int",
    "matches", "size", "startsWith", "string", "timestamp", "type", "uint", *MACROS,
)  # fmt: skip
TYPES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})

_MATCHES, _OWN_MATCHES = "matches", "rematch"
"""Of the same length, so that columns stay what they are."""

_LITERAL = (
    r"""[bB]?[rR][bB]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*")"""
    r"""|[bB]?(?:'''(?:\\.|.)*?'''|\"\"\"(?:\\.|.)*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")"""
)
_TEXT = re.compile(rf"//[^\n]*|(?<![A-Za-z0-9_])(?:{_LITERAL})", re.DOTALL)
_ARGUMENT = re.compile(rf"\(\s*({_LITERAL})\s*\)", re.DOTALL)
_WORD = r"(?<![A-Za-z0-9_]){}(?![A-Za-z0-9_])"
_BOUND = re.compile(rf"\.\s*(?:{'|'.join(MACROS)})\s*\(\s*([A-Za-z_]\w*)\s*,")
_PARENTHESIS = re.compile(r"(?:\.\s*(\w+)\s*)?\(|\)")
_PARSE_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_REASONS = (
    (re.compile(r"token recognition error at: '= ?.*"), "`=` compares nothing: write `==`"),
    (re.compile(r"token recognition error at: '['\"].*"), "this quote is not closed"),
    (re.compile(r"token recognition error at: '(.*)'"), r"`\1` is not understood"),
    (re.compile(r"(?:mismatched|extraneous|no viable alternative at) input '<EOF>'.*"), "it ends too early"),
    (re.compile(r"(?:mismatched|extraneous|no viable alternative at) input '(.*?)' expecting.*"),
     r"`\1` is not expected here"),
    (re.compile(r"missing '(.)' at .*"), r"`\1` is missing"),
    (re.compile(r".*ecursion.*"), "it nests too deeply"),
)  # fmt: skip
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedExpression:
    """A program that may be executed, with `functions` beside the variables that it names."""

    program: "Program"
    variables: frozenset[str]
    has_macro: bool
    functions: Mapping[str, Callable[[str, str], bool]]


def check_expression(expression: str, variables: Collection[str]) -> CheckedExpression:
    """Compile an expression over these variables. Raises RequestError (INVALID_FILTER), pointing into it."""
    if not expression.strip() or len(expression) > MAX_CHARACTERS:
        raise RequestError(
            ErrorKind.INVALID_FILTER,
            f"a filter has 1 to {MAX_CHARACTERS} characters, not {len(expression)}; leave it out to get every message",
        )
    from cel import compile as compile_program  # Takes 0.2 s, with its command line: only who filters pays.

    try:
        program = compile_program(expression)
    except ValueError as error:
        _refuse_syntax(expression, str(error))
    code = _TEXT.sub(lambda found: " " * len(found.group()), expression)
    _check_functions(expression, code, program.functions())
    has_macro = _check_macros(expression, code)
    used = _check_variables(expression, code, program.variables(), variables)
    patterns = {_literal(found): _compile_pattern(expression, found) for found in _patterns(expression, code)}
    if patterns:
        program = compile_program(_with_own_matches(expression, code))
    functions = {_OWN_MATCHES: lambda text, pattern: patterns[pattern].search(text) is not None} if patterns else {}
    return CheckedExpression(program=program, variables=used, has_macro=has_macro, functions=functions)


def refuse(expression: str, position: int, reason: str) -> NoReturn:
    """Raises RequestError (INVALID_FILTER) with the line, and a caret under the position."""
    before = expression[:position]
    line, column = before.count("\n"), position - (before.rfind("\n") + 1)
    _refuse_at(expression, line, column, reason)


def _refuse_at(expression: str, line: int, column: int, reason: str) -> NoReturn:
    text = (expression.split("\n")[line : line + 1] or [""])[0].replace("\t", " ")
    start = max(0, column - _SHOWN_CHARACTERS // 2)
    shown = text[start : start + _SHOWN_CHARACTERS]
    where = f"line {line + 1}, column {column + 1}"
    message = f"the filter is wrong at {where}: {reason}\n  {shown}\n  {' ' * (column - start)}^"
    raise RequestError(ErrorKind.INVALID_FILTER, message)


def _refuse_syntax(expression: str, text: str) -> NoReturn:
    found = _PARSE_ERROR.search(text, text.find("': ERROR") + 1)
    if found is None:
        raise RequestError(ErrorKind.INVALID_FILTER, f"the filter is no CEL expression: {text[-_SHOWN_CHARACTERS:]}")
    line, column, reason = int(found[1]) - 1, int(found[2]) - 1, found[3]
    for pattern, plain in _REASONS:
        if pattern.fullmatch(reason):
            reason = pattern.sub(plain, reason)
            break
    _refuse_at(expression, line, column, reason[:_SHOWN_CHARACTERS])


def _check_functions(expression: str, code: str, used: Collection[str]) -> None:
    for name in used:
        if name.isidentifier() and name not in FUNCTIONS:
            position = _position(code, name)
            refuse(expression, position, f"there is no function `{name}`; there are {', '.join(FUNCTIONS)}")


def _check_variables(expression: str, code: str, used: Collection[str], known: Collection[str]) -> frozenset[str]:
    bound = {found[1] for found in _BOUND.finditer(code)}
    for name in used:
        if name not in known and name not in bound and name not in TYPES:
            position = _position(code, name)
            refuse(expression, position, f"there is no variable `{name}`; there are {', '.join(known)}")
    return frozenset(used) & frozenset(known)


def _check_macros(expression: str, code: str) -> bool:
    """Whether there is one; none may stand inside another."""
    open_calls: list[bool] = []
    has_macro = False
    for found in _PARENTHESIS.finditer(code):
        if found.group() == ")":
            if open_calls:
                open_calls.pop()
            continue
        if found[1] == "map":
            refuse(expression, found.start(1), "`map` is not offered: use exists, all or filter")
        is_macro = found[1] in MACROS
        if is_macro and any(open_calls):
            refuse(expression, found.start(1), f"`{found[1]}` stands inside another macro: one is the most")
        open_calls.append(is_macro)
        has_macro = has_macro or is_macro
    return has_macro


def _patterns(expression: str, code: str) -> Iterator[re.Match[str]]:
    """The argument of each `matches`. Raises RequestError if it is not one literal."""
    for found in re.finditer(_WORD.format(_MATCHES) + r"(?=\s*\()", code):
        argument = _ARGUMENT.match(expression, code.index("(", found.end()))
        if argument is None:
            refuse(expression, found.start(), "`matches` takes a regular expression in quotes, and nothing else")
        yield argument


def _compile_pattern(expression: str, found: re.Match[str]) -> "re2._Regexp[str]":
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(_literal(found), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it is not RE2 syntax"
        refuse(expression, found.start(1), f"this regular expression is not valid: {reason}")


def _literal(found: re.Match[str]) -> str:
    from cel import evaluate

    return str(evaluate(found[1]))


def _with_own_matches(expression: str, code: str) -> str:
    changed = list(expression)
    for found in re.finditer(_WORD.format(_MATCHES) + r"(?=\s*\()", code):
        changed[found.start() : found.end()] = _OWN_MATCHES
    return "".join(changed)


def _position(code: str, name: str) -> int:
    found = re.search(_WORD.format(re.escape(name)), code)
    return found.start() if found else 0
