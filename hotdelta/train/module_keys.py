"""Keys for what a tf.Module holds: the path of attributes that leads to it.

tf.Module has no public walk that tells the paths, hence the private one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.train.sharded import is_sharded


def module_keys(module: tf.Module) -> dict[int, str]:
    """id(variable) to key. A variable that is reached by several paths has the first of them."""
    return {id(variable): key for key, variable in module_variables(module).items()}


def module_variables(module: tf.Module) -> dict[str, Any]:
    """Key to variable, each variable once; a sharded variable is one."""
    paths = module._flatten(predicate=_is_variable, with_path=True)  # noqa: SLF001
    found: dict[int, tuple[str, Any]] = {}
    for path, variable in paths:
        found.setdefault(id(variable), ("/".join(map(str, path)), variable))
    return dict(found.values())


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable) or is_sharded(value)


def module_resources(module: tf.Module) -> list[Any]:
    """Lookup tables and the like: a SavedModel keeps only those that its root tracks."""
    return list(module._flatten(predicate=lambda value: hasattr(value, "resource_handle")))  # noqa: SLF001
