"""The chain on disk: fulls and deltas, their manifests, and what follows from them. Never imports TensorFlow."""

from hotdelta.chain.bundle import BundleEntry, BundleReader, BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.commit import commit, publish_file
from hotdelta.chain.disk import Disk
from hotdelta.chain.identity import decode_identity, encode_identity
from hotdelta.chain.lock import TrainerLock, claim_run
from hotdelta.chain.manifest import FileRecord, HighestStep, Kind, Manifest, TableRecord, Tracking
from hotdelta.chain.plan import ApplyDelta, Plan, RestoreFull, Step, UndoTo, plan
from hotdelta.chain.position import Node, Position, new_state_id
from hotdelta.chain.retention import delete, expired, sweep
from hotdelta.chain.scan import Listing, Refused, Scanner
from hotdelta.chain.schema import Schema, SignatureSpec, TensorSpec, VariableSpec
from hotdelta.chain.signing import SigningKey
from hotdelta.chain.verification import directory_of, verify

__all__ = [
    "ApplyDelta",
    "BundleEntry",
    "BundleReader",
    "BundleWriter",
    "Disk",
    "FileRecord",
    "HighestStep",
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
