"""Every way from disk into a model, and every module that reads what is on disk.

Who adds one adds it here, and to the test that walks it: tests/test_ways_in.py, or graph_mode/checks_of_ways_in.py of
tests/compat.
"""

GRAPH_WAYS = (
    "Saver.restore with deltas",
    "Saver.restore",
    "MonitoredTrainingSession",
    "MonitoredTrainingSession that only reads",
    "SingularMonitoredSession",
    "ChiefSessionCreator and Scaffold",
    "Supervisor",
    "SessionManager",
    "import_meta_graph",
    "init_from_checkpoint",
    "warm_start",
    "Estimator(warm_start_from)",
    "Estimator.train",
    "Estimator.evaluate",
    "Estimator.evaluate(checkpoint_path)",
    "Estimator.predict(checkpoint_path)",
    "Estimator.export_saved_model(checkpoint_path)",
    "Estimator.get_variable_value",
    "io.load_persistables into a Session",
    "io.load_vars into a Session",
)
OTHER_WAYS = (
    "DeltaCheckpoint.resume",
    "DeltaWriter",
    "io.load_persistables",
    "io.load_params",
    "io.load_vars of a position",
    "export_saved_model",
    "the command exporter",
    "a server",
    "hotdelta verify",
)

# What opens a bundle, or has TensorFlow open one.
READING = frozenset(
    {
        "BundleReader",
        "NewCheckpointReader",
        "RestoreV2",
        "SavedState",
        "StateIndex",
        "StateReader",
        "import_meta_graph",
        "init_from_checkpoint",
        "load_checkpoint",
        "load_variable",
        "load_weights",
        "parse_index",
        "read_index",
        "restore",
        "restore_v2",
        "warm_start",
    }
)
STATE = "find_state"
FULL = "find_full_state"
OWN = "it reads what this trainer is writing, before it is committed"
PART = "it is a part of a reader that others call"
# Who calls one of these, and what has checked signature and digests before, or why nothing need to.
READERS = {
    "exporter/sources.py": STATE,
    "exporter/update_tensors.py": "a graph for others, see docs/threat-model.md; exporter and loader check before",
    "exporter/value_files.py": f"{STATE}, and the index that TensorFlow just wrote",
    "exporter/verification.py": STATE,
    "hotdelta/chain/bundle_index.py": PART,
    "hotdelta/chain/bundle_parts.py": OWN,
    "hotdelta/chain/bundle_reader.py": PART,
    "hotdelta/chain/part_patch.py": OWN,
    "hotdelta/chain/state_index.py": PART,
    "hotdelta/chain/state_reader.py": PART,
    "hotdelta/chain/sweep.py": "it asks for the names of files that no manifest lists, to delete them",
    "hotdelta/compat/v1/estimator/estimator.py": FULL,
    "hotdelta/compat/v1/estimator/export_job.py": "Saver.restore",
    "hotdelta/compat/v1/estimator/warm_start.py": FULL,
    "hotdelta/compat/v1/restoring.py": f"{STATE}, {FULL}",
    "hotdelta/compat/v1/saver.py": f"{STATE}, {FULL}",
    "hotdelta/compat/v1/session_chain.py": STATE,
    "hotdelta/compat/v1/warm_starts.py": FULL,
    "hotdelta/io/contents.py": "names and shapes for people; signatures are checked, values are not read",
    "hotdelta/io/loading.py": STATE,
    "hotdelta/io/saved_state.py": PART,
    "hotdelta/keras/saved_keys.py": "names alone, to build an optimizer with; signatures are checked",
    "hotdelta/train/progress.py": "restores what the user registered, of a resume point",
    "hotdelta/train/resume_load.py": STATE,
    "hotdelta/train/server_delta.py": OWN,
    "hotdelta/train/server_full.py": OWN,
    "hotdelta/train/trainer_progress.py": STATE,
    "hotdelta/train/trainer_state.py": "restores what the user registered, of a resume point",
    "loader/bundle_rows.py": "the loader verifies what it has read",
    "loader/delta_files.py": "the loader verifies what it has read",
    "loader/export_values.py": "an export, which is a program: see docs/threat-model.md",
}
