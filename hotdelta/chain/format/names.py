"""Every magic file name of the chain. Names are made here and never parsed: manifests name their files."""

from __future__ import annotations

from hotdelta.chain.format.position import Position

DELTA_DIRECTORY = ".incremental_checkpoint"
STATE_FILE = "checkpoint"
MANIFEST_SUFFIX = ".manifest.json"
INDEX_SUFFIX = ".index"
TEMPORARY_PREFIX = ".tmp-"
LOCK_FILE = "trainer.lock"
CLAIM_PREFIX = "run-"
CLAIM_SUFFIX = ".claim"
SCHEMA_PREFIX = "schema-"
SERVING_GRAPH_PREFIX = "serving_graph-"
SCHEMA_NAME_DIGITS = 12

FULL_STEM = "model.ckpt-"
DELTA_STEM = "incremental_model.ckpt-"

# Tensor names inside a bundle. A delta holds, for each table, the ids of the rows that changed and the rows; for
# each other variable a value with a leading axis of 1 when it changed and of 0 when it did not, so that a static
# graph can read every delta. A full holds every variable under its own key.
IDS_SUFFIX = "-ids"
ROWS_SUFFIX = "-rows"
VALUE_SUFFIX = "-value"
# Beside the rows of a table with keys: the keys of the parent that are gone.
DELETED_SUFFIX = "-deleted"
# Before the key of such a table: how often and when each of its rows was trained, which only some trainers keep.
USAGE_PREFIX = "usage/"
# The same for what some trainers keep of keys that have no row yet: a table, and its counts under one more name.
WAITING_PREFIX = "hotdelta-waiting/"
WAITING_COUNTS_SUFFIX = "/counts"
IDENTITY_TENSOR = "hotdelta-identity"
STEP_TENSOR = "hotdelta-step"
TRAINER_STATE_TENSOR = "hotdelta-trainer-state"
# In the JSON of the trainer state: the keys of the variables that are trained, and by which rules ids are made.
PARAMETERS_MEMBER = "parameters"
ID_RULES_MEMBER = "id_rules"

# Roles of the files of a bundle. A serving replica needs the index and the serving files only.
ROLE_INDEX = "index"
ROLE_SERVING = "serving"
ROLE_TRAINING = "training"
ROLES = (ROLE_INDEX, ROLE_SERVING, ROLE_TRAINING)
SERVING_ROLES = (ROLE_INDEX, ROLE_SERVING)


def full_prefix(step: int, position: Position, *, is_step_fresh: bool) -> str:
    return _prefix(FULL_STEM, step, position, is_step_fresh)


def delta_prefix(step: int, position: Position, *, is_step_fresh: bool) -> str:
    return _prefix(DELTA_STEM, step, position, is_step_fresh)


def _prefix(stem: str, step: int, position: Position, is_step_fresh: bool) -> str:
    return f"{stem}{step}" if is_step_fresh else f"{stem}{step}-{position}"


def index_name(prefix: str) -> str:
    return f"{prefix}{INDEX_SUFFIX}"


def data_name(prefix: str, shard: int, num_shards: int) -> str:
    return f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"


def manifest_name(prefix: str) -> str:
    return f"{prefix}{MANIFEST_SUFFIX}"


def claim_name(run: int) -> str:
    return f"{CLAIM_PREFIX}{run}{CLAIM_SUFFIX}"


def schema_name(schema: str) -> str:
    return f"{SCHEMA_PREFIX}{schema[:SCHEMA_NAME_DIGITS]}.json"


def serving_graph_name(schema: str) -> str:
    return f"{SERVING_GRAPH_PREFIX}{schema[:SCHEMA_NAME_DIGITS]}"
