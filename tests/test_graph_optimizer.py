"""Which graphs are optimized: those of tests that say so, and with them the exports that they load."""

from __future__ import annotations

import pytest
import tensorflow as tf

from loader.model.session_graph import config_of_this_process


def assert_optimizer_is_off(is_off: bool) -> None:
    assert tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"] == is_off
    # That of a Session without a config, and that of the Session of an export.
    default = tf.compat.v1.Session(graph=tf.Graph())._config
    for config in (default, config_of_this_process()):
        assert config.graph_options.rewrite_options.disable_meta_optimizer == is_off


def test_graphs_are_not_optimized() -> None:
    assert_optimizer_is_off(True)


@pytest.mark.optimized
def test_graphs_of_a_marked_test_are() -> None:
    assert_optimizer_is_off(False)


def test_after_it_they_are_not_again() -> None:
    assert_optimizer_is_off(True)
