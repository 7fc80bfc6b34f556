"""The chain on disk: fulls and deltas, their manifests, and what follows from them. Never imports TensorFlow."""

from hotdelta.chain.bundle.index import BundleEntry
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import FileRecord, HighestStep, Kind, Manifest, TableRecord, Tracking
from hotdelta.chain.format.position import Node, Position, decode_identity, encode_identity, new_state_id
from hotdelta.chain.format.schema import KeyTable, Schema, SignatureSpec, TensorSpec, VariableSpec
from hotdelta.chain.history.plan import ApplyDelta, Plan, RestoreFull, Step, UndoTo, plan
from hotdelta.chain.history.scan import Listing, Refused, Scanner
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.history.verification import directory_of, verify
from hotdelta.chain.store.commit import commit, publish_file
from hotdelta.chain.store.lock import TrainerLock, claim_run
from hotdelta.chain.store.retention import delete, expired, sweep

__all__ = [
    "ApplyDelta",
    "BundleEntry",
    "BundleReader",
    "BundleWriter",
    "Disk",
    "FileRecord",
    "HighestStep",
    "KeyTable",
    "Kind",
    "Listing",
    "Manifest",
    "Node",
    "Plan",
    "Position",
    "PreparedBundle",
    "Refused",
    "RestoreFull",
    "Scanner",
    "Schema",
    "SignatureSpec",
    "SigningKey",
    "Step",
    "TableRecord",
    "TensorLayout",
    "TensorSpec",
    "Tracking",
    "TrainerLock",
    "UndoTo",
    "VariableSpec",
    "claim_run",
    "commit",
    "decode_identity",
    "delete",
    "directory_of",
    "encode_identity",
    "expired",
    "new_state_id",
    "plan",
    "publish_file",
    "sweep",
    "verify",
]
