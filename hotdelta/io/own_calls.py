"""Refuses calls as Paddle Fluid's io has them, before anything is read or written, and says how ours are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from hotdelta.errors import ConfigurationError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_KINDS: dict[str, Callable[[Any], bool]] = {
    "filename": lambda given: given is None or isinstance(given, str),
    "predicate": lambda given: given is None or callable(given),
    "save_incr_model": lambda given: isinstance(given, bool),
}


def called_our_way(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Raises ConfigurationError instead of TypeError, and where an argument can only be one of Fluid's."""
    signature = inspect.signature(function)
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _refusal(name, str(error), signature) from error
        for argument, value in given.items():
            kind = type(value)
            is_of_fluid = kind.__module__.partition(".")[0] == "paddle"
            if is_of_fluid or not _KINDS.get(argument, lambda _: True)(value):
                raise _refusal(name, f"{argument} is of type {kind.__qualname__}", signature)
        return function(*args, **kwargs)

    return call


def _refusal(name: str, problem: str, signature: inspect.Signature) -> ConfigurationError:
    shown = []
    has_keywords = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_keywords:
            has_keywords = True
            shown.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{parameter.name}{default}")
    return ConfigurationError(
        f"{name}: {problem}",
        hint=f"it is called {name}({', '.join(shown)}); where Fluid takes an executor and a program there is one model "
        "here, or a Session",
    )
