from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from hotdelta.sanity_limits import LimitChange
from server.configuration import all_settings, read_configuration
from server.setting_values import parse

pytestmark = pytest.mark.I9

DIRECTORIES = {"export_dir": Path("export"), "checkpoint_dir": Path("run")}


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environment = {"HOTDELTA_PORT": "1", "HOTDELTA_MAX_QUEUE": "7", "HOTDELTA_POLLING_ONLY": "true"}

    configuration = read_configuration({**DIRECTORIES, "port": 2}, environment)

    server, (model,) = configuration.server, configuration.models
    assert (server.port, model.max_queue, model.polling_only) == (2, 7, True)
    assert server.host == "127.0.0.1"


def test_directories_may_come_from_the_environment() -> None:
    (model,) = read_configuration({}, {"HOTDELTA_EXPORT_DIR": "a", "HOTDELTA_CHECKPOINT_DIR": "b"}).models

    assert (model.export_dir, model.checkpoint_dir) == (Path("a"), Path("b"))


def test_a_missing_directory_names_flag_and_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"--export-dir is missing.*HOTDELTA_EXPORT_DIR"):
        read_configuration({"checkpoint_dir": Path("run")}, {})


@pytest.mark.parametrize("flag, value", [("pin", Position(3, 17)), ("state_dir", Path("state"))])
def test_what_needs_a_chain_is_refused_without_one(flag: str, value: object) -> None:
    assert read_configuration({"export_dir": Path("export")}, {}).models[0].checkpoint_dir is None
    wrong = f"--{flag.replace('_', '-')} without --checkpoint-dir"
    with pytest.raises(ConfigurationError, match=wrong):
        read_configuration({"export_dir": Path("export"), flag: value}, {})


@pytest.mark.parametrize(
    "variable, text, problem",
    [
        ("HOTDELTA_PORT", "70000", "--port is 70000. give a number from 0 to 65535"),
        ("HOTDELTA_PORT", "http", "--port is 'http', which is not a whole number"),
        ("HOTDELTA_MAX_BATCH_SIZE", "0", "--max-batch-size is 0"),
        ("HOTDELTA_REQUEST_TIMEOUT_SECONDS", "nan", "--request-timeout-seconds is nan"),
        ("HOTDELTA_POLLING_ONLY", "maybe", "write true or false"),
        ("HOTDELTA_LOG_FORMAT", "xml", "write text or json"),
        ("HOTDELTA_SANITY", "max_abs=5,max=1", "--sanity: there is no limit 'max'"),
        ("HOTDELTA_MAX_CONNECTIONS", "0", "--max-connections is 0"),
        ("HOTDELTA_MAX_BUFFERED_BYTES", str(2**20), "give at least --max-body-bytes, which is 16777216"),
        ("HOTDELTA_UNDO_BYTES", "-1", "--undo-bytes is -1"),
    ],
)
def test_a_value_out_of_bounds_is_refused(variable: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(DIRECTORIES, {variable: text})

    assert problem in str(raised.value)


@pytest.mark.parametrize("body, buffered", [(2**29, 2**29), (2**25, 2**28)])
def test_by_default_there_is_place_for_one_body(body: int, buffered: int) -> None:
    assert (
        read_configuration({**DIRECTORIES, "max_body_bytes": body}, {}).server.max_buffered_bytes == buffered
    )
    # What is given is taken at its word.
    with pytest.raises(ConfigurationError, match=f"give at least --max-body-bytes, which is {2**29}"):
        read_configuration(
            {**DIRECTORIES, "max_body_bytes": 2**29}, {"HOTDELTA_MAX_BUFFERED_BYTES": str(2**28)}
        )


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(ConfigurationError, match="not a directory"):
        read_configuration({**DIRECTORIES, "export_dir": file}, {})


def test_sanity_limits_come_from_flags_or_from_one_variable() -> None:
    variables = {"HOTDELTA_SANITY": "max_abs=5, users:max_deleted_share=0.1"}
    limits = (LimitChange("", "max_abs", 5.0), LimitChange("users", "max_deleted_share", 0.1))

    assert read_configuration(DIRECTORIES, variables).models[0].sanity == limits
    assert (
        read_configuration({**DIRECTORIES, "sanity": [limits[1]]}, variables).models[0].sanity == limits[1:]
    )
    assert read_configuration(DIRECTORIES, {}).models[0].sanity == ()


def test_every_setting_is_documented_and_every_number_is_bounded() -> None:
    for setting in all_settings():
        assert setting.metadata["help"]
        assert setting.type not in ("int", "float") or setting.metadata["bounds"] is not None


@pytest.mark.parametrize("name", ["HOTDELTA_MAX_BATCHSIZE", "HOTDELTA_LOGFORMAT", "HOTDELTA_STOP_SECOND"])
def test_a_variable_that_is_almost_a_setting_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is no setting. did you mean HOTDELTA_"):
        read_configuration(DIRECTORIES, {name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "HOTDELTA_SERVICE_PORT",
        "HOTDELTA_PORT_8000_TCP",
        "HOTDELTA_ADMIN_TOKEN",
        "HOTDELTA_CHAOS_SEED",
        "HOTDELTA_HOSTS",
        "HOTDELTA_PORT2",
        "HOTDELTA_EXPORT_DIR_2",
    ],
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert read_configuration(DIRECTORIES, {name: "tcp://10.0.0.1:8000"}).server.port == 8000


def test_a_variable_beside_the_setting_that_it_resembles_is_left_alone() -> None:
    flags, environment = {**DIRECTORIES, "max_queue": 7}, {"HOTDELTA_MAX_QUEUE2": "1"}
    assert read_configuration(flags, environment).models[0].max_queue == 7
    environment = {"HOTDELTA_LOGFORMAT": "text", "HOTDELTA_LOG_FORMAT": "json", "HOTDELTA_EXPORT_DIRS": "x"}
    assert read_configuration(DIRECTORIES, environment).server.log_format == "json"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match="HOTDELTA_PORT: --port is 'tcp://"):
        read_configuration(DIRECTORIES, {"HOTDELTA_PORT": "tcp://10.0.0.1:80"})


def test_an_empty_directory_name_is_not_this_directory() -> None:
    setting = next(setting for setting in all_settings() if setting.name == "export_dir")
    with pytest.raises(ConfigurationError, match=r"--export-dir is empty\. write \. for this directory"):
        parse(setting, "")
