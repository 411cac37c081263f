"""The test of one device that failed: its driver's word, its memory, and products that must be right to the last bit.

``python -m plait.train.device_check --vendor nvidia --index 3 --kind cuda`` prints one JSON line. The process sees the
device alone, as a worker would. Numbers are small whole ones, so that every product is exact in any precision that
the device may choose, and one wrong bit is found.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plait.hardware.health import ask

MEMORY_BYTES = 64 << 20
PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
PRODUCT_SIZE = 256
PRODUCTS = 8
_LARGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether the device may work again, and what was found."""

    passed: bool
    detail: str


def check_health(vendor: str, index: int) -> Finding:
    """Returns what the driver says of the device."""
    found = next((device for device in ask(vendor) if device.index == index), None)
    if found is None:
        return Finding(passed=False, detail=f"its driver does not show device {index}")
    return Finding(passed=found.kind in {"ok", "slowed", "unknown"}, detail=f"health {found.health or 'not told'}")


def check_memory(device: torch.device, num_bytes: int = MEMORY_BYTES) -> Finding:
    """Writes patterns to memory, reads them back, and counts the bytes that came back wrong."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    for pattern in PATTERNS:
        there.fill_(pattern)
        wrong = int((there.cpu() != pattern).sum())
        if wrong:
            return Finding(
                passed=False, detail=f"{wrong} of {num_bytes} bytes came back wrong (written {pattern:#04x})"
            )
    there.copy_(noise)
    wrong = int((there.cpu() != noise).sum())
    if wrong:
        return Finding(passed=False, detail=f"{wrong} of {num_bytes} bytes came back wrong (random ones)")
    return Finding(passed=True, detail=f"{num_bytes >> 20} MiB read back right {len(PATTERNS) + 1} times")


def check_products(device: torch.device, size: int = PRODUCT_SIZE, count: int = PRODUCTS) -> Finding:
    """Multiplies matrices of small whole numbers and compares with whole-number arithmetic on the host."""
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        left, right = (
            torch.randint(-_LARGEST, _LARGEST + 1, (size, size), generator=generator, dtype=torch.int64)
            for _ in range(2)
        )
        product = (left.float().to(device) @ right.float().to(device)).cpu()
        wrong = int((product.to(torch.int64) != left @ right).sum())
        if wrong:
            return Finding(passed=False, detail=f"{wrong} of {size * size} sums of product {number} are wrong")
    return Finding(passed=True, detail=f"{count} products of {size} x {size} are exact")


def check(vendor: str | None, index: int, kind: str) -> Finding:
    """Runs the whole test, up to the first thing that is wrong."""
    began_s = time.monotonic()
    told = []
    try:
        if vendor is not None:
            told.append(check_health(vendor, index))
        if all(finding.passed for finding in told):
            if kind == "npu":
                __import__("torch_npu")
            device = torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")
            for part in (check_memory, check_products):
                told.append(part(device))
                if not told[-1].passed:
                    break
    except Exception as error:  # noqa: BLE001 - a driver may raise anything, and all of it means that it does not work
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        told.append(Finding(passed=False, detail=f"{type(error).__name__}: {first[:200]}"))
    if not told[-1].passed:
        return told[-1]
    details = [*(finding.detail for finding in told), f"in {time.monotonic() - began_s:.1f} s"]
    return Finding(passed=True, detail=", ".join(details))


def main(arguments: Sequence[str] | None = None) -> int:
    """Tests the device and prints the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vendor", help="whose driver to ask; none unless given")
    parser.add_argument("--index", type=int, default=0, help="the driver's number of the device")
    parser.add_argument("--kind", choices=("cpu", "cuda", "npu"), default="cpu", help="as PyTorch calls it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = check(options.vendor, options.index, options.kind)
    sys.stdout.write(json.dumps({"passed": found.passed, "detail": found.detail}) + "\n")
    sys.stdout.flush()
    # Some drivers crash while they are unloaded, when the answer has long been given.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
