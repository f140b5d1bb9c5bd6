"""Arithmetic written as text, the way `published.toml` quotes a paper's formulas.

The papers write powers as `s^2`; a formula may call min and max and may compare. Nothing else is evaluated.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
}
CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


def evaluate(formula: str, variables: Mapping[str, float]) -> float | bool:
    """The value of `formula`, every name in it taken from `variables`.

    Raises ValueError naming the formula and what is wrong: a syntax that is not arithmetic, a name without
    a value, or a division by zero.
    """
    try:
        tree = ast.parse(formula.replace("^", "**"), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"formula {formula!r} is not arithmetic: {error.msg}") from None
    try:
        return _value(tree, variables, formula)
    except ZeroDivisionError:
        raise ValueError(f"formula {formula!r} divides by zero with {dict(variables)}") from None


def names(formula: str) -> frozenset[str]:
    """The variables that `formula` needs."""
    tree = ast.parse(formula.replace("^", "**"), mode="eval")
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - CALLS.keys()


def _value(node: ast.expr, variables: Mapping[str, float], formula: str) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name not in variables:
                known = ", ".join(sorted(variables)) or "none"
                raise ValueError(f"formula {formula!r} needs {name!r}; given: {known}")
            return variables[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, variables, formula)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_value(left, variables, formula), _value(right, variables, formula))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
            return COMPARE[type(op)](_value(left, variables, formula), _value(right, variables, formula))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in CALLS:
            return CALLS[name](*(_value(argument, variables, formula) for argument in arguments))
    raise ValueError(f"formula {formula!r} is not arithmetic: {ast.unparse(node)!r} is not evaluated")
