"""The small language in which a claim is tested: arithmetic over scores, printed numbers and tables of sizes.

    score(theseus) - score("theseus-constant") > 0
    retention(theseus) - printed(kept) > -margin
    abs(size("BERT-base", "parameters") / size("TinyBERT4", "parameters") / printed(ratio) - 1) <= 0.05

A test is one comparison (`<`, `<=`, `>`, `>=`); its left side is the effect, its right side the bound. Sides are built
from numbers, `margin` (the claim's), `+ - * /`, brackets, `abs(...)` and these calls, whose arguments are names, or
texts in quotes where a name holds a hyphen or a dot:

* `score(run)`: score in percent of a method or of `method-variant`, for one task and one seed
* `retention(run)`: 100 * its score / the score of the teacher `bert` of the same seed
* `value(run, field)`: a number of its record, one of `FIELDS`
* `int8_drop(run)`: what eight-bit weights change in its score, in points: a cell of `results/students.csv`
* `printed(name)`: the number that the claim's evidence `name` refers to in `reported.csv`; of a bound (">2") the number
* `printed_retention(student, teacher)`: 100 * student / teacher over the rows of two evidences, task by task, then the
  mean; of a claim that runs answer over the tasks that count in it
* `size(system, column)`: a cell of `results/sizes.csv`
* `block(column, length=...)`: a cell of `results/blocks.csv`, one BERT-base block by part
* `latency(system, backend=..., batch=..., length=...)`: BERT-base's milliseconds over the system's speed-up, both from
  `results/efficiency.csv`

Text is parsed by Python's own parser and every node that is not listed here is refused; nothing of it is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lib.errors import InputError, one_of, shorten

LIMIT = 900  # characters of an expression
FIELDS = ("peak_memory_mb", "tokens", "wall_seconds", "steps", "parameters", "parameters_without_embeddings")
RUNS = ("score", "retention", "value", "int8_drop")
ON_ROWS = ("score", "retention")  # those that the scored rows decide
TABLES = ("size", "block", "latency")
PRINTED = ("printed", "printed_retention")
# Arguments without a name, and names of the others
CALLS = {"score": 1, "retention": 1, "value": 2, "int8_drop": 1, "printed": 1, "printed_retention": 2, "size": 2,
         "block": 1, "latency": 1}
NAMED = {"block": ("length",), "latency": ("length", "batch", "backend", "threads")}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Call:
    """One call: its name, arguments, and named arguments as sorted pairs."""

    name: str
    arguments: tuple[str, ...]
    named: tuple[tuple[str, object], ...] = ()


class Expression:
    """A parsed arithmetic expression. `calls` are all calls in it, in the order written."""

    def __init__(self, text: str, node: ast.expr, what: str):
        self.text, self._node, self.calls = text, node, []
        self.margin = False
        self._check(node, what)

    def _check(self, node: ast.expr, what: str) -> None:
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                return
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
                self._check(inner, what)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                self._check(left, what)
                self._check(right, what)
            case ast.Name(id="margin"):
                self.margin = True
            case ast.Call(func=ast.Name(id="abs"), args=[inner], keywords=[]):
                self._check(inner, what)
            case ast.Call(func=ast.Name(id=name)):
                self.calls.append(_call(node, name, what))
            case _:
                raise InputError(f"{what}: {shorten(ast.unparse(node))} is not allowed; allowed: numbers, margin, "
                                 f"+ - * /, brackets, abs, {', '.join(CALLS)}")

    @property
    def divides(self) -> bool:
        """Whether a division is the last step: the value is a ratio."""
        return isinstance(self._node, ast.BinOp) and isinstance(self._node.op, ast.Div)

    @property
    def relative(self) -> bool:
        """Whether it is `abs(a / b - 1)`."""
        match self._node:
            case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(
                    left=ast.BinOp(op=ast.Div()), op=ast.Sub(), right=ast.Constant(value=1))]):
                return True
        return False

    def value(self, functions: Mapping[str, Callable], margin: float = 0.0):
        """The value, with each call answered by `functions[name](*arguments, **named)`: a number or an array.

        Raises `InputError` for a division by zero.
        """

        def of(node: ast.expr):
            match node:
                case ast.Constant(value=number):
                    return float(number)
                case ast.UnaryOp(op=op, operand=inner):
                    return -of(inner) if isinstance(op, ast.USub) else of(inner)
                case ast.BinOp(left=left, op=op, right=right):
                    return _OPERATORS[type(op)](of(left), of(right))
                case ast.Name():
                    return margin
                case ast.Call(func=ast.Name(id="abs"), args=[inner]):
                    return abs(of(inner))
                case ast.Call():
                    call = _call(node, node.func.id, self.text)
                    return functions[call.name](*call.arguments, **dict(call.named))
            raise AssertionError(ast.dump(node))  # refused by _check

        try:
            return of(self._node)
        except ZeroDivisionError:
            raise InputError(f"{self.text}: divides by zero") from None
        except OverflowError:
            raise InputError(f"{self.text}: holds a number that is too large") from None


@dataclass(frozen=True)
class Test:
    """A comparison: the effect on its left, the bound on its right."""

    __test__ = False  # pytest takes the name for its own

    text: str
    effect: Expression
    sign: str
    bound: Expression

    @property
    def calls(self) -> list[Call]:
        return self.effect.calls + self.bound.calls

    @property
    def kind(self) -> str:
        """What answers it: "runs", "tables" or "printed"."""
        names = {c.name for c in self.calls}
        return "runs" if names & set(RUNS) else "tables" if names & set(TABLES) else "printed"

    @property
    def unit(self) -> str:
        """What the effect is counted in: points of a score, percent of a teacher's score, ratio, relative difference.

        Empty for a plain difference of printed numbers, which has theirs.
        """
        names = {c.name for c in self.effect.calls}
        if "retention" in names:
            return "percent of the teacher's score"
        if names & set(ON_ROWS) or "int8_drop" in names:
            return "points"
        if self.effect.relative:
            return "relative difference"
        return "ratio" if self.effect.divides else ""

    @property
    def upward(self) -> bool:
        """Whether the claim is that the effect is above the bound."""
        return self.sign in (">", ">=")

    def holds(self, effect: float, bound: float) -> bool:
        """Whether the comparison is true. Decimal fractions are compared with a slack of 1e-9: 0.05 means 0.05."""
        slack = 1e-9 if self.sign in ("<=", ">=") else 0.0
        return _HOLDS[self.sign](effect, bound + slack if self.sign == "<=" else bound - slack)


def _call(node: ast.Call, name: str, what: str) -> Call:
    one_of(f"{what}: function", name, [*CALLS, "abs"])
    arguments = tuple(_text(a, what) for a in node.args)
    if len(arguments) != CALLS.get(name, 1):
        raise InputError(f"{what}: {name} takes {CALLS.get(name, 1)} arguments, {len(arguments)} given")
    named = []
    for k in node.keywords:
        one_of(f"{what}: argument of {name}", k.arg, NAMED.get(name, ()))
        if not isinstance(k.value, ast.Constant) or not isinstance(k.value.value, int | str):
            raise InputError(f"{what}: {k.arg} of {name} must be a whole number or a text")
        named.append((k.arg, k.value.value))
    if name == "value":
        one_of(f"{what}: field", arguments[1], FIELDS)
    return Call(name, arguments, tuple(sorted(named)))


def _text(node: ast.expr, what: str) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=str(text)):
            return text
    raise InputError(f"{what}: argument {shorten(ast.unparse(node))} must be a name or a text in quotes")


def _parsed(text: object, what: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{what}: {shorten(text)} must be an expression")
    if len(text) > LIMIT:
        raise InputError(f"{what}: has {len(text)} characters; at most {LIMIT}")
    try:
        return ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise InputError(f"{what}: {shorten(text)} cannot be read ({getattr(e, 'msg', None) or e})") from None


def expression(text: object, what: str) -> Expression:
    """`text` as an expression; `InputError` naming `what` where it is none."""
    return Expression(str(text), _parsed(text, what), what)


def test(text: object, what: str) -> Test:
    """`text` as one comparison of an effect with a bound that no run decides; `InputError` naming `what` otherwise."""
    node = _parsed(text, what)
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS):
        raise InputError(f"{what}: {shorten(text)} must be one comparison with <, <=, > or >=")
    effect = Expression(str(text), node.left, what)
    bound = Expression(str(text), node.comparators[0], what)
    if any(c.name not in PRINTED for c in bound.calls):
        raise InputError(f"{what}: the right side of {shorten(text)} may hold numbers, margin and "
                         f"{', '.join(PRINTED)} only")
    return Test(" ".join(str(text).split()), effect, _COMPARISONS[type(node.ops[0])], bound)


test.__test__ = False
