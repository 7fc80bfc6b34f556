"""Calls as Paddle Fluid's io has them are refused with how ours are called; nothing is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.errors import ChainError, ConfigurationError

pytestmark = pytest.mark.I9


class Executor:
    __module__ = "paddle.fluid.executor"


class Program:
    __module__ = "paddle.fluid.framework"


EXECUTOR, PROGRAM = Executor(), Program()
MODEL = {"weight": tf.Variable([1.0])}
IO: Any = hio


@pytest.mark.parametrize(
    "call, problem, ours",
    [
        (
            lambda d: IO.save_persistables(EXECUTOR, d, PROGRAM),
            "model is of type Executor",
            "(model, dirname, filename=None)",
        ),
        (
            lambda d: IO.save_persistables(MODEL, d, PROGRAM),
            "filename is of type Program",
            "(model, dirname, filename=None)",
        ),
        (
            lambda d: IO.save_params(executor=EXECUTOR, dirname=d, main_program=PROGRAM),
            "missing a required argument: 'model'",
            "save_params(model, dirname, filename=None)",
        ),
        (
            lambda d: IO.save_vars(MODEL, d, None, vars=["weight"]),
            "unexpected keyword argument 'vars'",
            "save_vars(model, dirname, variables=None, predicate=None, filename=None)",
        ),
        (
            lambda d: IO.save_vars(MODEL, d, None, ["weight"]),
            "predicate is of type list",
            "variables=None, predicate=None",
        ),
        (
            lambda d: IO.load_persistables(EXECUTOR, d, main_program=PROGRAM),
            "unexpected keyword argument 'main_program'",
            "load_persistables(model, dirname, position=None, *, filename=None)",
        ),
        (
            lambda d: IO.load_vars(MODEL, d, PROGRAM),
            "variables is of type Program",
            "load_vars(model, dirname, variables=None",
        ),
        (
            lambda d: IO.load_params(MODEL, d, PROGRAM),
            "filename is of type Program",
            "load_params(model, dirname, filename",
        ),
        (
            lambda d: IO.save_inference_model(d, ["x"], ["y"], EXECUTOR),
            "model is of type Executor",
            "save_inference_model(dirname, feeded_var_names, target_vars, model, save_incr_model=False)",
        ),
        (
            lambda d: IO.save_inference_model(d, ["x"], ["y"], MODEL, PROGRAM),
            "save_incr_model is of type Program",
            "model",
        ),
        (
            lambda d: IO.load_inference_model(d, EXECUTOR),
            "too many positional",
            "load_inference_model(dirname)",
        ),
    ],
)
def test_a_call_in_the_way_of_fluid_is_told_ours(
    tmp_path: Path, call: Callable[[Path], Any], problem: str, ours: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        call(tmp_path / "saved")

    assert problem in refused.value.message
    assert ours in refused.value.hint
    assert (
        "where Fluid takes an executor and a program there is one model here, or a Session"
        in refused.value.hint
    )
    assert not (tmp_path / "saved").exists()


def test_a_directory_that_cannot_be_used_is_told_nothing_that_loading_does_not_have(tmp_path: Path) -> None:
    hio.save_persistables(MODEL, tmp_path)
    for data in tmp_path.glob("*.data-*"):
        data.write_bytes(b"damaged")

    with pytest.raises(ChainError, match=r"no full checkpoint .* can be used") as refused:
        hio.load_persistables(MODEL, tmp_path)

    assert refused.value.hint == "bring the files back, or use another directory"
