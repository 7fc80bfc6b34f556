"""Keys for what a tf.Module holds: the path of attributes that leads to it.

tf.Module has no public walk that tells the paths, hence the private one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def module_keys(module: tf.Module) -> dict[int, str]:
    """id(variable) to key. A variable that is reached by several paths has the first of them."""
    paths = module._flatten(predicate=lambda value: isinstance(value, tf.Variable), with_path=True)  # noqa: SLF001
    return {id(variable): "/".join(map(str, path)) for path, variable in reversed(list(paths))}


def module_resources(module: tf.Module) -> list[Any]:
    """Lookup tables and the like: a SavedModel keeps only those that its root tracks."""
    return list(module._flatten(predicate=lambda value: hasattr(value, "resource_handle")))  # noqa: SLF001
