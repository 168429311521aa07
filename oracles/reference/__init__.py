"""The reference computation: plain float64, independent of every backend (spec/numerics.md)."""

from .entry import reference
from .expected import Alternative, Expected, ReferenceError

__all__ = ["Alternative", "Expected", "ReferenceError", "reference"]
