"""The contract of exporter and loader: names, dtypes and shapes of an export's signatures, as plain data.

exporter writes SavedModels that keep this contract, loader drives them; neither imports the other, and neither
this module nor anything it imports needs TensorFlow.

An export holds, beside the user's signatures:

restore_full(prefix)          read a full checkpoint into every variable. One call, for any runtime.
restore_incremental(prefix)   check a delta (parent, shapes, ids) and apply it. One call, for any runtime.
stage_incremental(prefix)     read and check a delta into staging variables; live variables are not touched.
stage_rows(...)               the same, from fed values: `<key>-ids` and `<key>-rows` for each table,
                              `<key>-value` for each other variable, and `identity` and `step`. Parent and ids
                              are checked as above.
staged_preimage()             the present values of exactly what the staged update will overwrite, under the
                              names that stage_rows takes: fed to it after the apply, they undo the update
                              (`identity` is that of the live state, with the staged state as its parent).
apply_staged()                copy the staged update into the live variables and empty the staging variables.
                              Memory only; all it checks is that something is staged and its parent is live.
discard_staged()              empty the staging variables.
identity()                    what the live variables hold: `identity` (int64[8], see hotdelta.chain.format.position;
                              all zero when the export was made from a model in memory) and `step` (int64).
key_counts()                  of each table with keys, under the key of its rows: how many rows and how many buckets
                              of its index are in use, and how many unknown keys were looked up since it was loaded
                              (int64[3]). Only in an export that has such tables.

All but restore_full, identity and key_counts exist only in an export made with save_incr_model. `prefix` is a string of
shape [None], all equal, because TensorFlow Serving's batching refuses scalars. The restore, stage and apply signatures
answer `run`, `seq`, `step` and `rows`, discard_staged `rows` alone: int64 of the shape of `prefix`, or [1] where
there is none. The two restore signatures empty the staging variables too.
"""

from __future__ import annotations

RESTORE_FULL = "restore_full"
RESTORE_INCREMENTAL = "restore_incremental"
STAGE_INCREMENTAL = "stage_incremental"
STAGE_ROWS = "stage_rows"
STAGED_PREIMAGE = "staged_preimage"
APPLY_STAGED = "apply_staged"
DISCARD_STAGED = "discard_staged"
IDENTITY = "identity"
KEY_COUNTS = "key_counts"

FULL_SIGNATURES = (RESTORE_FULL, IDENTITY)
INCREMENTAL_SIGNATURES = (
    RESTORE_INCREMENTAL,
    STAGE_INCREMENTAL,
    STAGE_ROWS,
    STAGED_PREIMAGE,
    APPLY_STAGED,
    DISCARD_STAGED,
)
RESERVED_SIGNATURES = (*FULL_SIGNATURES, *INCREMENTAL_SIGNATURES, KEY_COUNTS)

PREFIX_INPUT = "prefix"
IDENTITY_VALUE = "identity"
STEP_VALUE = "step"
ROWS_OUTPUT = "rows"
RUN_OUTPUT = "run"
SEQ_OUTPUT = "seq"

# The attribute of a SavedModel's root that holds the served variables, in the order of the schema.
VARIABLES_ATTRIBUTE = "hotdelta_variables"

# The attribute of a serving graph's root that counts unknown keys, in the order of the schema's key tables.
UNKNOWN_KEYS_ATTRIBUTE = "hotdelta_unknown_keys"

# The highest number of an export's version; servers look at no longer names.
MAX_EXPORT_VERSION = 10**18 - 1

METADATA_FILE = "assets.extra/hotdelta.json"
METADATA_VERSION = 1
