"""Quantities in one line each, by kind; arguments as those of Quantity."""

from common.claims.schema import Quantity


def exact(source: str, key: str, tolerance, published=None, **rest) -> Quantity:
    """From a trace at the published size, or from a schedule played at it."""
    return Quantity(source, key, "exact", tolerance, published, **rest)


def derived(source: str, key: str, tolerance, published=None, **rest) -> Quantity:
    """From the paper's own numbers."""
    return Quantity(source, key, "derived", tolerance, published, **rest)


def measured(source: str, key: str, tolerance, published=None, **rest) -> Quantity:
    """From a run on this machine."""
    return Quantity(source, key, "measured", tolerance, published, **rest)


def predicted(source: str, key: str, tolerance, published=None, **rest) -> Quantity:
    """From traces of the real code, priced on the record of the machine that the paper used."""
    return Quantity(source, key, "predicted", tolerance, published, **rest)
