"""The header of messages: what was sealed is unsealed, and anything else is refused by the first field that differs."""

import dataclasses
import struct

import pytest
import torch
from torch import Tensor

from plait.train.compression import MalformedMessage
from plait.train.compression.header import HEADER_BYTES, Header, generation_hash, new_message, parse, seal, unseal

HEADER = Header(codec=5, bucket=3, step=2**40, generation=generation_hash("g7"), count=100, payload_bytes=20)


def sealed(*, with_checksum: bool = True) -> Tensor:
    message = new_message(HEADER.payload_bytes)
    message[HEADER_BYTES:] = torch.arange(20, dtype=torch.uint8)
    seal(message, HEADER, with_checksum=with_checksum)
    return message


def test_a_header_has_48_bytes_so_that_a_payload_is_aligned() -> None:
    assert HEADER_BYTES == 48


@pytest.mark.parametrize("with_checksum", [True, False])
def test_what_was_sealed_is_unsealed_without_a_copy(with_checksum: bool) -> None:
    message = sealed(with_checksum=with_checksum)
    payload = unseal(message, HEADER)
    assert payload.tolist() == list(range(20))
    assert payload.data_ptr() == message.data_ptr() + HEADER_BYTES
    header, checksum = parse(bytes(message.tolist()))
    assert header == HEADER
    assert (checksum is not None) == with_checksum
    longer = torch.cat([message, torch.ones(5, dtype=torch.uint8)])
    assert len(unseal(longer, HEADER)) == 20


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Header)])
def test_the_first_field_that_differs_is_named(field: str) -> None:
    wanted = dataclasses.replace(HEADER, **{field: getattr(HEADER, field) + 1})
    got = getattr(HEADER, field)
    with pytest.raises(MalformedMessage, match=f"{field} of the message is {got}, expected {got + 1}"):
        unseal(sealed(), wanted)


def test_the_first_of_several_is_named() -> None:
    wanted = dataclasses.replace(HEADER, step=1, bucket=1, count=1)
    with pytest.raises(MalformedMessage, match="bucket of the message is 3"):
        unseal(sealed(), wanted)


@pytest.mark.parametrize(
    ("place", "text"), [(0, "magic"), (4, "version of the message is 9, expected 1"), (6, "flags")]
)
def test_another_protocol_is_refused(place: int, text: str) -> None:
    message = sealed()
    message[place] = 9
    with pytest.raises(MalformedMessage, match=text):
        unseal(message, HEADER)


@pytest.mark.parametrize("size", [0, 47, 48, 67])
def test_a_message_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(MalformedMessage, match=f"the message has {size} bytes"):
        unseal(sealed()[:size], HEADER)


def test_each_flipped_bit_is_found() -> None:
    for bit in range(8 * len(sealed())):
        message = sealed()
        message[bit // 8] ^= 1 << bit % 8
        if bit // 8 == 7:  # fills up the first word and means nothing
            unseal(message, HEADER)
            continue
        if bit == 8 * 6:  # says that there is no checksum
            assert parse(bytes(message.tolist()))[1] is None
            continue
        with pytest.raises(MalformedMessage):
            unseal(message, HEADER)


def test_a_message_of_another_size_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="69 bytes cannot hold 20"):
        seal(torch.zeros(69, dtype=torch.uint8), HEADER)


def test_generations_have_numbers_of_their_own_that_do_not_change() -> None:
    assert len({generation_hash(f"g{number}") for number in range(1000)}) == 1000
    assert struct.pack("<Q", generation_hash("g7"))
    assert generation_hash("g7") == generation_hash("g7")
