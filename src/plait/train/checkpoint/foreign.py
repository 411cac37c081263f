"""DCP directories that others have written, read without executing what is in them."""

import io
import pickle
from pathlib import Path, PurePosixPath
from typing import Any, cast

import torch
from torch.distributed.checkpoint import filesystem as files
from torch.distributed.checkpoint import metadata as records
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from plait.train.checkpoint.checkpointer import CheckpointDamaged

_RECORDS = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_ALLOWED: dict[tuple[str, str], Any] = {
    (_RECORDS, "Metadata"): Metadata,
    (_RECORDS, "MetadataIndex"): MetadataIndex,
    (_RECORDS, "TensorStorageMetadata"): TensorStorageMetadata,
    (_RECORDS, "BytesStorageMetadata"): BytesStorageMetadata,
    (_RECORDS, "ChunkStorageMetadata"): ChunkStorageMetadata,
    (_RECORDS, "TensorProperties"): TensorProperties,
    (_RECORDS, "StorageMeta"): records.StorageMeta,
    (_RECORDS, "_MEM_FORMAT_ENCODING"): records._MEM_FORMAT_ENCODING,  # noqa: SLF001 - what its files are made of
    (_FILES, "_StorageInfo"): files._StorageInfo,  # noqa: SLF001
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,  # noqa: SLF001
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
    ("collections", "OrderedDict"): dict,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Makes the records of DCP's metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the few types that DCP's metadata consists of."""
        kind = _ALLOWED.get((module, name))
        if kind is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            kind = getattr(torch, name)
        if kind is None:
            raise CheckpointDamaged(f"the metadata asks for {module}.{name}, which DCP's metadata never holds")
        return kind


class ForeignReader(FileSystemReader):
    """Reads a DCP directory that somebody else has written, without executing what is in it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads ``.metadata`` with an unpickler that knows only DCP's own records.

        Raises:
            CheckpointDamaged: It holds anything else.
        """
        del args, kwargs
        with (Path(self.path) / ".metadata").open("rb") as file:
            try:
                found = _RestrictedUnpickler(file).load()
            except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, KeyError) as error:
                raise CheckpointDamaged(f"{self.path}/.metadata is no metadata of DCP: {error}") from error
        if not isinstance(found, Metadata):
            raise CheckpointDamaged(f"{self.path}/.metadata holds a {type(found).__name__}")
        return found


def read_foreign(directory: str | Path) -> dict[str, Any]:
    """Returns the whole state of a DCP directory, nested as it was saved.

    Raises:
        CheckpointDamaged: The directory holds something that would have to be executed.
    """
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    _load_state_dict(state, storage_reader=ForeignReader(str(directory)), planner=_planner(), no_dist=True)
    return state


def _planner() -> Any:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    class Careful(_EmptyStateDictLoadPlanner):
        def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
            loaded = torch.load(value, weights_only=True)
            if self.flatten_state_dict:
                from torch.distributed.checkpoint._traverse import set_element

                self.original_state_dict.pop(read_item.dest_index.fqn, None)
                set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)
            else:
                self.state_dict[read_item.dest_index.fqn] = loaded

    return cast("Any", Careful)()
