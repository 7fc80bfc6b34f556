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
        "BundleRows",
        "NewCheckpointReader",
        "RestoreV2",
        "SavedState",
        "StateIndex",
        "StateReader",
        "StoredTensors",
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
LOADER = "the loader verifies what it has read"
PART = "it is a part of a reader that others call"
# Who calls one of these, and what has checked signature and digests before, or why nothing need to.
READERS = {
    "exporter/signatures/update_tensors.py": "a graph for others (docs/threat-model.md); both callers check before",
    "exporter/value_files.py": f"{STATE}, and the index that TensorFlow just wrote",
    "exporter/proof.py": STATE,
    "hotdelta/chain/bundle/index.py": PART,
    "hotdelta/chain/bundle/parts.py": OWN,
    "hotdelta/chain/bundle/reader.py": PART,
    "hotdelta/chain/bundle/part_patch.py": OWN,
    "hotdelta/chain/history/state_index.py": PART,
    "hotdelta/chain/history/state_reader.py": PART,
    "hotdelta/chain/store/compaction.py": PART,
    "hotdelta/chain/store/folding.py": f"{STATE} before the links, which the publisher verifies",
    "hotdelta/chain/store/sweep.py": "it asks for the names of files that no manifest lists, to delete them",
    "hotdelta/cli/history/compact.py": STATE,
    "hotdelta/cli/rows/diff.py": STATE,
    "hotdelta/cli/doctor/run_directory.py": "whether a tensor is there, for people; no value is used",
    "hotdelta/cli/rows/key_life.py": "for people; each commit is verified before it is read",
    "hotdelta/compat/v1/estimator/estimator.py": FULL,
    "hotdelta/compat/v1/estimator/export_job.py": "Saver.restore",
    "hotdelta/compat/v1/estimator/warm_start.py": FULL,
    "hotdelta/compat/v1/restore/restoring.py": f"{STATE}, {FULL}",
    "hotdelta/compat/v1/sessions/saver.py": f"{STATE}, {FULL}",
    "hotdelta/compat/v1/chain/session_chain.py": STATE,
    "hotdelta/compat/v1/restore/warm_starts.py": FULL,
    "hotdelta/io/contents.py": "names and shapes for people; signatures are checked, values are not read",
    "hotdelta/io/loading.py": STATE,
    "hotdelta/io/saved_state.py": PART,
    "hotdelta/keras/attachment.py": "names alone, to build an optimizer with; signatures are checked",
    "hotdelta/train/save/progress.py": "restores what the user registered, of a resume point",
    "hotdelta/train/resume/loading.py": STATE,
    "hotdelta/train/save/server_delta.py": OWN,
    "hotdelta/train/save/server_full.py": OWN,
    "hotdelta/train/trainer_progress.py": STATE,
    "hotdelta/train/resume/trainer_state.py": "restores what the user registered, of a resume point",
    "loader/checks/checks.py": LOADER,
    "loader/checks/sanity_gate.py": LOADER,
    "loader/files/delta_in_memory.py": LOADER,
    "loader/files/full_reader.py": LOADER,
    "loader/exports/values.py": "an export, which is a program: see docs/threat-model.md",
}
