"""Snapshots of the training state into memory that was faulted in beforehand and outlives the trainer.

The layout is computed once. A snapshot is then one copy: on CPUs one call over all tensors, on accelerators
non-blocking copies into pinned pages on a stream of their own, with one event a bucket, so that the update of a bucket
waits only for the copy of that bucket.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from plait.train.checkpoint.image import FileImage, TensorSpec, file_image
from plait.train.checkpoint.index import Index, places_of, split_values, tensor_names
from plait.train.checkpoint.segment import Segment, SlotRecord
from plait.train.checkpoint.tree import described

_log = logging.getLogger(__name__)

BUCKET_BYTES = 64 * 2**20

Template = None | bool | tuple[Any, list[Any]]
"""What a state looks like where it holds tensors: True is a tensor, None anything without one, a tuple says the keys of
a dictionary (or kind and length of a list) and the templates of the items."""


def _template(value: Any) -> Template:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Mapping):
        inner = [_template(item) for item in value.values()]
        return (tuple(value), inner) if any(part is not None for part in inner) else None
    if isinstance(value, (list, tuple)):
        inner = [_template(item) for item in value]
        return ((type(value), len(value)), inner) if any(part is not None for part in inner) else None
    return None


def _gather(value: Any, template: Template, tensors: list[Tensor], values: list[Any]) -> None:
    """Takes a state of this template apart; much faster than describing it anew."""
    if template is None:
        values.append(_plain_form(value))
    elif template is True:
        if not isinstance(value, Tensor):
            raise LayoutChanged("a tensor of the state is none any more")
        tensors.append(value)
    else:
        assert isinstance(template, tuple)
        keys, inner = template
        is_dict = isinstance(value, Mapping)
        if (tuple(value) if is_dict else (type(value), len(value) if hasattr(value, "__len__") else -1)) != keys:
            raise LayoutChanged("the state has other parts than before")
        for item, part in zip(value.values() if is_dict else value, inner, strict=True):
            _gather(item, part, tensors, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """Where each tensor of a state lies in the file image, and the form of the state."""

    specs: tuple[TensorSpec, ...]
    image: FileImage
    index: Index
    form_json: bytes
    """The index without plain values, encoded once; see :func:`_with_values`."""


def state_layout(state: Any) -> tuple[StateLayout, list[Tensor], list[Any]]:
    """Returns the layout of a state, its tensors and its plain values.

    Raises:
        CheckpointUnsupported: The state holds something that no checkpoint can hold.
    """
    whole, tensors = described(state)
    form, values = split_values(whole)
    names = tensor_names(whole)
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            num_bytes=tensor.numel() * tensor.element_size(),
            item_bytes=tensor.element_size(),
        )
        for name, tensor in zip(names, tensors, strict=True)
    )
    image = file_image(specs)
    index = Index(form=form, values=(), tensors=places_of(specs, image))
    return StateLayout(specs=specs, image=image, index=index, form_json=index.encoded()), tensors, values


_NO_VALUES = b'"values":[]'


def _with_values(form_json: bytes, values: Sequence[Any]) -> bytes:
    """Returns the encoded index with these values in it."""
    at = form_json.rindex(_NO_VALUES + b',"tensors":')
    filled = b'"values":' + json.dumps(list(values), separators=(",", ":")).encode()
    return form_json[:at] + filled + form_json[at + len(_NO_VALUES) :]


def _plain_form(value: Any) -> Any:
    """As :func:`~plait.train.checkpoint.tree.described` writes what holds no tensor."""
    if value is None or type(value) in {bool, int, str}:
        return value
    if type(value) is float:
        return {"float": value.hex() if math.isfinite(value) else str(value)}
    form, tensors = described(value)
    if tensors:
        raise LayoutChanged("the state holds more tensors than before")
    return form


class Snapshot:
    """A snapshot that may still be on its way into the arena."""

    def __init__(self, events: Sequence[Any], finish: Callable[[], SlotRecord]) -> None:
        """Made by :meth:`Arena.start`."""
        self._events = list(events)
        self._finish = finish
        self._record: SlotRecord | None = None

    def before_update(self, bucket: int | None = None) -> None:
        """Makes the device's present stream wait until a bucket (or all) may be overwritten; the CPU does not wait."""
        for event in self._events if bucket is None else self._events[bucket : bucket + 1]:
            event.wait()

    @property
    def is_over(self) -> bool:
        """Whether all bytes have arrived."""
        return all(event.query() for event in self._events)

    def complete(self) -> SlotRecord:
        """Waits for the bytes and marks the slot as whole."""
        if self._record is None:
            for event in self._events:
                event.synchronize()
            self._record = self._finish()
        return self._record


class Arena:
    """The shared memory of one rank, laid out for its state."""

    def __init__(self, state: Any, *, num_slots: int = 2, name: str = "plait-arena") -> None:
        """Allocates and faults in all slots; takes about 1 s for 2 GB, best spent while the first batch loads.

        Args:
            state: A state with the layout of all later ones.
            num_slots: With two, one is whole at any time, also while the other is written or persisted.
            name: Shown by the kernel for this memory.

        Raises:
            CheckpointUnsupported: The state holds something that no checkpoint can hold.
            SegmentUnusable: There is not that much memory.
        """
        self.layout, tensors, values = state_layout(state)
        self._template = _template(state)
        index_bytes = 2 * len(_with_values(self.layout.form_json, values)) + 64 * 1024
        self.segment = Segment.create(
            name, num_slots=num_slots, index_bytes=index_bytes, data_bytes=self.layout.image.num_bytes
        )
        self._targets = [self._views(slot) for slot in range(num_slots)]
        self._devices = _Devices(self.segment, tensors)
        for note in self._devices.notes:
            _log.warning("%s", note)
        self.busy: set[int] = set()
        """Slots that somebody reads and that must not be written."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not go the fast way on this machine, and why."""
        return self._devices.notes

    def _views(self, slot: int) -> list[Tensor]:
        data = self.segment.data(slot)
        data[: len(self.layout.image.header)] = self.layout.image.header
        whole = torch.frombuffer(data, dtype=torch.uint8)
        views = []
        for spec, offset in zip(self.layout.specs, self.layout.image.offsets, strict=True):
            kind = cast("torch.dtype", getattr(torch, spec.dtype))
            flat = whole[offset : offset + spec.num_bytes]
            views.append(_typed(flat, kind, spec.shape))
        return views

    def free_slot(self) -> int | None:
        """Returns the slot to write next: not busy, and not the only whole one where there is another choice."""
        free = [slot for slot in range(self.segment.num_slots) if slot not in self.busy]
        newest = self.segment.newest()
        others = [slot for slot in free if slot != newest]
        return others[0] if others else (free[0] if free else None)

    def snapshot(self, state: Any, *, step: int, generation: int = 0) -> tuple[int, SlotRecord] | None:
        """Copies a state into a free slot; returns the slot, None where all are busy.

        Raises:
            LayoutChanged: The state has another layout: make a new arena.
        """
        slot = self.free_slot()
        if slot is None:
            return None
        return slot, self.start(slot, state, step=step, generation=generation).complete()

    def start(self, slot: int, state: Any, *, step: int, generation: int = 0) -> Snapshot:
        """Begins to copy a state into a slot; on a CPU the copy is over when this returns.

        Raises:
            LayoutChanged: The state has another layout: make a new arena.
        """
        tensors: list[Tensor] = []
        values: list[Any] = []
        _gather(state, self._template, tensors, values)
        targets = self._targets[slot]
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(tensors, targets, strict=True)):
            raise LayoutChanged("a tensor of the state has changed its shape or type")
        self.segment.begin(slot)
        index = _with_values(self.layout.form_json, values)
        events = self._devices.copy(targets, tensors)

        def finish() -> SlotRecord:
            return self.segment.complete(
                slot, step=step, generation=generation, index=index, data_bytes=self.layout.image.num_bytes
            )

        return Snapshot(events, finish)

    def close(self) -> None:
        """Lets go of the memory."""
        self._devices.close()
        self._targets.clear()
        self.segment.close()


class LayoutChanged(Exception):
    """A state does not fit into the arena."""


def _typed(flat: Tensor, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not flat.numel():
        return torch.empty(shape, dtype=kind)
    if flat.data_ptr() % kind.itemsize == 0:
        return flat.view(kind).view(shape)
    raise AssertionError(f"a tensor of {kind} begins at {flat.data_ptr()}")


class _Devices:
    """How bytes get from the state's devices into the segment."""

    def __init__(self, segment: Segment, tensors: Sequence[Tensor]) -> None:
        self.notes: tuple[str, ...] = ()
        self._streams: dict[torch.device, Any] = {}
        self._registered: int | None = None
        accelerators = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        if accelerators:
            self._pin(segment, {device.type for device in accelerators})
            self._streams = {device: _module(device).Stream(device=device) for device in accelerators}

    def _pin(self, segment: Segment, kinds: set[str]) -> None:
        """Registers the pages with the driver, so that copies run beside computing (cudaHostRegister, hipHostRegister).

        The pages stay those of the segment: a pinned buffer of PyTorch would die with the trainer.
        """
        if kinds != {"cuda"}:
            self.notes = (f"the pages cannot be pinned for {', '.join(sorted(kinds))}: copies into them are staged",)
            return
        address = torch.frombuffer(memoryview(segment.memory), dtype=torch.uint8).data_ptr()
        code = int(torch.cuda.cudart().cudaHostRegister(address, len(segment.memory), 0))
        if code:
            self.notes = (f"the driver does not pin the arena's pages (error {code}): copies into them are staged",)
        else:
            self._registered = address

    def copy(self, targets: list[Tensor], sources: list[Tensor]) -> list[Any]:
        """Starts all copies; returns one event a bucket, none for what is over already."""
        if not sources:
            return []
        if not self._streams:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
            return []
        events: list[Any] = []
        near = [(t, s) for t, s in zip(targets, sources, strict=True) if s.device.type == "cpu"]
        if near:
            torch._foreach_copy_([t for t, _ in near], [s for _, s in near])
        for device, stream in self._streams.items():
            pairs = [(t, s) for t, s in zip(targets, sources, strict=True) if s.device == device]
            events += _copied_beside(device, stream, pairs)
        return events

    def close(self) -> None:
        if self._registered is not None:
            torch.cuda.cudart().cudaHostUnregister(self._registered)
            self._registered = None


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _copied_beside(device: torch.device, stream: Any, pairs: list[tuple[Tensor, Tensor]]) -> list[Any]:
    """Copies on a side stream which first waits for what computes the state; one event a bucket of bytes."""
    module = _module(device)
    events: list[Any] = []
    stream.wait_stream(module.current_stream(device))
    with torch.no_grad(), module.stream(stream):
        bucket = 0
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
            source.record_stream(stream)
            bucket += target.numel() * target.element_size()
            if bucket >= BUCKET_BYTES:
                events.append(_event(module, stream))
                bucket = 0
        if bucket:
            events.append(_event(module, stream))
    return events


def _event(module: Any, stream: Any) -> Any:
    event = module.Event()
    event.record(stream)
    return event
