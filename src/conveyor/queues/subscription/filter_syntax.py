"""The syntax tree of a filter expression: the grammar of CEL (github.com/google/cel-spec, doc/langdef.md), without
messages.

The `cel` package checks the syntax first but exposes no tree. This parser reads expressions that the package has
accepted, so that functions, variables and the cost of an expression can be found in its structure. It refuses
everything that it does not recognise.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from conveyor.kernel.errors import ErrorKind, RequestError

_STRING = (
    r"""[bB]?[rR][bB]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*")"""
    r"""|[bB]?(?:'''(?:\\.|.)*?'''|\"\"\"(?:\\.|.)*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")"""
)
_NUMBER = r"0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?"
_TOKEN = re.compile(
    rf"(?P<space>[ \t\r\n\f]+|//[^\n]*)|(?P<string>{_STRING})|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>{_NUMBER})"
    r"|(?P<mark>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])",
    re.DOTALL,
)
_OPERATORS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
"""From the lowest to the highest precedence. Operators of one level are left-associative."""
_LEVELS = {operator: level for level, operators in enumerate(_OPERATORS) for operator in operators}
_CONSTANTS = ("true", "false", "null")
_MAX_DEPTH = 40
_SHOWN_CHARACTERS = 200


class Node(NamedTuple):
    """One part of an expression.

    kind: "string", "number" (and true, false, null), "variable", "select", "index", "call", "operator", "list", "map".
    name: the text of a constant, or the name of a variable, field, function or operator; "?:" and "!" are operators.
    parts: the operands in order. A map has alternating keys and values; a method has its target first.
    A chain of one operator, as in `a + b + c`, is one node with all operands.
    """

    kind: str
    name: str
    position: int
    parts: "tuple[Node, ...]" = ()
    is_method: bool = False


def parse_expression(expression: str) -> Node:
    """Parse an expression. Raises RequestError (INVALID_FILTER) with the position of the error."""
    return _Parser(expression).parse()


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants."""
    yield node
    for part in node.parts:
        yield from walk(part)


def refuse(expression: str, position: int, reason: str) -> NoReturn:
    """Raise RequestError (INVALID_FILTER) with the line, and a caret under the position."""
    before = expression[:position]
    line, column = before.count("\n"), position - (before.rfind("\n") + 1)
    refuse_at(expression, line, column, reason)


def refuse_at(expression: str, line: int, column: int, reason: str) -> NoReturn:
    """Raise the same by line and column, both from 0."""
    text = (expression.split("\n")[line : line + 1] or [""])[0].replace("\t", " ")
    start = max(0, column - _SHOWN_CHARACTERS // 2)
    shown = text[start : start + _SHOWN_CHARACTERS]
    where = f"line {line + 1}, column {column + 1}"
    message = f"the filter has an error at {where}: {reason}\n  {shown}\n  {' ' * (column - start)}^"
    raise RequestError(ErrorKind.INVALID_FILTER, message)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Parser:
    """A recursive descent parser for one expression."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = list(_tokens(expression))
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._conditional()
        if self._token.kind != "end":
            self._refuse()
        return node

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _takes(self, mark: str) -> bool:
        """Consume the next token if it is this mark. Returns whether it was."""
        is_taken = self._token.kind == "mark" and self._token.text == mark
        self._next += is_taken
        return is_taken

    def _expect(self, mark: str) -> None:
        if not self._takes(mark):
            self._refuse()

    def _refuse(self) -> NoReturn:
        token = self._token
        refuse(
            self._expression,
            token.position,
            f"`{token.text}` is not supported here" if token.text else "the expression ends too early",
        )

    def _deeper(self, by: int) -> None:
        self._depth += by
        if self._depth > _MAX_DEPTH:
            refuse(self._expression, self._token.position, "the expression nests too deeply")

    def _conditional(self) -> Node:
        self._deeper(1)
        node = self._operation(0)
        position = self._token.position
        if self._takes("?"):
            then = self._operation(0)
            self._expect(":")
            node = Node("operator", "?:", position, (node, then, self._conditional()))
        self._deeper(-1)
        return node

    def _operation(self, level: int) -> Node:
        """Parse operators of at least a precedence level."""
        node = self._unary()
        chained = 0
        while (operator_level := self._level()) >= level:
            token = self._take()
            following = self._operation(operator_level + 1)
            if node.kind == "operator" and node.name == token.text and token.text in ("||", "&&", "+"):
                node = node._replace(parts=(*node.parts, following))
                continue
            chained += 1
            self._deeper(1)
            node = Node("operator", token.text, token.position, (node, following))
        self._deeper(-chained)
        return node

    def _level(self) -> int:
        token = self._token
        return _LEVELS.get(token.text, -1) if token.kind in ("mark", "word") else -1

    def _unary(self) -> Node:
        sign = None
        while self._token.kind == "mark" and self._token.text in ("!", "-"):
            sign = self._take()
        node = self._member()
        return node if sign is None else Node("operator", "!", sign.position, (node,))

    def _member(self) -> Node:
        node = self._primary()
        chained = 0
        while True:
            position = self._token.position
            if self._takes("."):
                node = self._selection(node)
            elif self._takes("["):
                node = Node("index", "", position, (node, self._conditional()))
                self._expect("]")
            else:
                break
            chained += 1
            self._deeper(1)
        self._deeper(-chained)
        return node

    def _selection(self, target: Node) -> Node:
        field = self._take()
        if field.kind != "word":
            self._next -= 1
            self._refuse()
        if self._takes("("):
            return Node("call", field.text, field.position, (target, *self._list(")")), is_method=True)
        return Node("select", field.text, field.position, (target,))

    def _primary(self) -> Node:
        if self._takes("("):
            node = self._conditional()
            self._expect(")")
            return node
        token = self._token
        if self._takes("["):
            return Node("list", "", token.position, self._list("]"))
        if self._takes("{"):
            return Node("map", "", token.position, self._entries())
        if token.kind in ("string", "number"):
            return Node(token.kind, self._take().text, token.position)
        if token.kind != "word" or token.text in _LEVELS:
            self._refuse()
        self._take()
        if token.text in _CONSTANTS:
            return Node("number", token.text, token.position)
        if self._takes("("):
            return Node("call", token.text, token.position, self._list(")"))
        return Node("variable", token.text, token.position)

    def _list(self, end: str) -> tuple[Node, ...]:
        """Parse expressions up to a closing mark; a comma may follow the last."""
        items: list[Node] = []
        while not self._takes(end):
            items.append(self._conditional())
            if not self._takes(","):
                self._expect(end)
                break
        return tuple(items)

    def _entries(self) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while not self._takes("}"):
            nodes.append(self._conditional())
            self._expect(":")
            nodes.append(self._conditional())
            if not self._takes(","):
                self._expect("}")
                break
        return tuple(nodes)


def _tokens(expression: str) -> Iterator[_Token]:
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            refuse(expression, position, f"`{expression[position]}` is not a valid character")
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match.group(), position)
        position = match.end()
    yield _Token("end", "", len(expression))
