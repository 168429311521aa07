"""``fact``: a value that is derived from a scene at its first use and kept there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Optional, TypeVar, Union, overload

T = TypeVar("T")

Int = Optional[int]
Lens = Optional[tuple[int, ...]]


class fact(Generic[T]):
    """A derived fact: computed at its first use and kept on the scene. It is functools.cached_property without the lock that this
    takes before Python 3.12: a prediction asks for some sixty facts, and a scene belongs to one thread."""

    def __init__(self, derive: Callable[[Any], T]) -> None:
        self.derive = derive
        self.name = derive.__name__
        self.__doc__ = derive.__doc__

    @overload
    def __get__(self, scene: None, owner: Any = None) -> fact[T]: ...

    @overload
    def __get__(self, scene: object, owner: Any = None) -> T: ...

    def __get__(self, scene: Optional[object], owner: Any = None) -> Union[fact[T], T]:
        if scene is None:
            return self
        value = scene.__dict__[self.name] = self.derive(scene)
        return value
