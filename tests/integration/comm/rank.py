"""One of four ranks of plain PyTorch scripts that use ``plait.comm``; writes what it found as JSON."""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import plait
from plait import comm

Found = dict[str, Any]
SIZE = 4


class Bucket:
    """What a hook sees of a bucket of DDP."""

    def __init__(self, parameters: list[Tensor], gradients: list[Tensor], index: int = 0) -> None:
        self._parameters, self._index = parameters, index
        self._buffer = torch.cat([g.reshape(-1) for g in gradients])

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def buffer(self) -> Tensor:
        return self._buffer

    def index(self) -> int:
        return self._index


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))


def digest(tensors: Any) -> str:
    return hashlib.blake2b(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def train(engine: comm.CommEngine, codec: str | None, steps: int = 16, **options: Any) -> Found:
    """Trains a small net under DDP with buckets of 20 KB; several of them from the second step on."""
    model = net()
    rate = 3e-3
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    replica = DistributedDataParallel(model, bucket_cap_mb=0.02)
    if codec in {"onebit", "onebit early"}:
        optimizer = plait.OneBitAdam(model.parameters(), lr=rate, freeze=6)
        exchange = comm.DdpExchange(engine, optimizer=optimizer, updates_early=codec == "onebit early")
        replica.register_comm_hook(exchange, comm.ddp_hook)
    elif codec is not None:
        exchange = comm.DdpExchange(engine, codec, **options)
        replica.register_comm_hook(exchange, comm.ddp_hook)
    numbers = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(8 * SIZE, 64, generator=numbers)
        y = (x[:, :4] * 2).argmax(1)
        mine = slice(8 * engine.rank, 8 * engine.rank + 8)
        loss = nn.functional.cross_entropy(replica(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(float(whole) / SIZE)
    return {"losses": losses, "weights": digest(model.parameters())}


def sums(engine: comm.CommEngine) -> Found:
    """Many sums at once, of several sizes, shapes and types."""
    errors: Found = {}
    generator = torch.Generator().manual_seed(5)
    futures = []
    for count in (1, 17, 4096, 100_003):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for shape in ("direct", "islands", "ring"):
                rows = torch.randn(SIZE, count, generator=generator).to(dtype)
                mine = rows[engine.rank].clone().view(-1, 1)
                futures.append((count, dtype, shape, rows, engine.all_reduce(mine, shape=shape)))
    for count, dtype, shape, rows, future in futures:
        got = future.wait().view(-1).double()
        errors[f"{count} {dtype} {shape}"] = float((got - rows.double().sum(0)).abs().max())
    return errors


def errors_follow(engine: comm.CommEngine) -> Found:
    """Buckets are dealt anew between two steps: what arrived and what is owed is what was given."""
    parameters = [torch.zeros(40, 64), torch.zeros(64), torch.zeros(64, 30)]
    exchange = comm.DdpExchange(engine, "top_k")
    deals = [[[0, 1, 2]], [[2], [1, 0]], [[2], [1, 0]]]
    generator = torch.Generator().manual_seed(9)
    exact = [torch.zeros(p.shape) for p in parameters]
    arrived = [torch.zeros(p.shape) for p in parameters]
    for deal in deals:
        rows = [[torch.randn(p.shape, generator=generator) for p in parameters] for _ in range(SIZE)]
        futures = []
        for number, members in enumerate(deal):
            bucket = Bucket([parameters[i] for i in members], [rows[engine.rank][i] for i in members], number)
            futures.append((members, exchange.exchange(bucket)))  # type: ignore[arg-type]
        for members, future in futures:
            at, result = 0, future.wait()
            for i in members:
                arrived[i] += result[at : at + parameters[i].numel()].view(parameters[i].shape)
                at += parameters[i].numel()
        for i in range(len(parameters)):
            exact[i] += torch.stack([row[i] for row in rows]).mean(0)
    owed = [torch.zeros(p.shape) for p in parameters]
    for i, p in enumerate(parameters):
        debt, at = exchange._place[id(p)]
        owed[i] = debt.owed[at : at + p.numel()].clone().view(p.shape)
        dist.all_reduce(owed[i])
    return {
        "off": max(float((a + o - e).abs().max()) for a, o, e in zip(arrived, owed, exact, strict=True)),
        "owed": max(float(o.abs().max()) for o in owed),
        "kept": len(exchange._buckets),
    }


def owed_outlives(engine: comm.CommEngine) -> Found:
    """What four members owe goes into a state, and comes back to three of them."""
    model = nn.ParameterList([torch.randn(64, 40), torch.randn(300)])
    exchange = comm.DdpExchange(engine, "top_k")
    generator = torch.Generator().manual_seed(10 + engine.rank)
    rows = [torch.randn(p.shape, generator=generator) for p in model]
    exchange.exchange(Bucket(list(model), rows)).wait()  # type: ignore[arg-type]
    debt, _ = exchange._place[id(model[0])]
    state = exchange.state_dict(model)
    together = debt.owed.clone()
    dist.all_reduce(together)
    saved = torch.cat([state[name].reshape(-1) for name in ("0", "1")])
    found: Found = {"saved": float((saved - together).abs().max()), "owed": float(saved.abs().max())}
    fewer = dist.new_group([0, 1, 2])
    if engine.rank < 3:
        with comm.CommEngine(fewer) as three:
            other = comm.DdpExchange(three, "top_k")
            other.load_state_dict(state, model)
            nothing = [torch.zeros(p.shape) for p in model]
            result = other.exchange(Bucket(list(model), nothing)).wait()  # type: ignore[arg-type]
            left = other.state_dict(model)
            again = result + torch.cat([left[name].reshape(-1) for name in ("0", "1")])
            found["paid"] = float((again - saved).abs().max())
            found["sent"] = float(result.abs().max())
    dist.barrier()
    return found


def bad_values(engine: comm.CommEngine) -> Found:
    parameter = torch.zeros(64, 64)
    gradient = torch.ones(64, 64)
    if engine.rank == 1:
        gradient[0, 0] = float("inf")
    given = {name: Bucket([parameter], [gradient.clone()]) for name in ("int8", "low_rank", "fp32")}
    found: Found = {}
    for name, bucket in given.items():
        result = comm.DdpExchange(engine, name).exchange(bucket).wait()  # type: ignore[arg-type]
        found[name] = bool(torch.isfinite(result).all())
    optimizer = plait.OneBitAdam([nn.Parameter(parameter)], freeze=1)
    held = optimizer.param_groups[0]["params"][0]
    optimizer.momentum_of(held).fill_(0.5)
    optimizer.freeze()
    exchange = comm.DdpExchange(engine, optimizer=optimizer)
    momentum = exchange.exchange(Bucket([held], [gradient.clone()])).wait()  # type: ignore[arg-type]
    return found | {"momentum": [float(momentum.min()), float(momentum.max())], "refused": exchange.refused}


def sharded(engine: comm.CommEngine) -> Found:
    """Two islands of two: PyTorch shards inside, the engine averages across."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))
    found: Found = {}
    for codec in ("fp32", "bf16", "int8", "sign1"):
        model, reference = net(), net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            for layer in model.children():
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh["inside"])
            fully_shard(model, mesh=mesh["inside"])
            island = f"island {mesh['across'].get_local_rank()}"
            with comm.CommEngine(mesh["across"].get_group(), island=island) as across:
                modules = comm.attach_fsdp(model, across, codec)
                torch.manual_seed(100 + engine.rank)
                x = torch.randn(8, 64)
                model(x).pow(2).mean().backward()
            reference(x).pow(2).mean().backward()
            worst, largest = 0.0, 0.0
            for p, q in zip(model.parameters(), reference.parameters(), strict=True):
                assert q.grad is not None
                assert isinstance(p.grad, DTensor)
                dist.all_reduce(q.grad)
                q.grad.div_(SIZE)
                full = p.grad.full_tensor()
                worst = max(worst, float((full - q.grad).abs().max()))
                largest = max(largest, float(q.grad.abs().max()))
        found[codec] = worst / largest
        found["modules"] = modules
    return found


def gave_up(engine: comm.CommEngine) -> Found:
    """One member gives up while the others wait for it; afterwards nothing more is taken."""
    told = []
    if engine.rank == 2:
        engine.abort("the test wanted it")
    for _ in range(2):
        try:
            engine.all_reduce(torch.ones(10)).wait()
            told.append("")
        except comm.CommBroken as error:
            told.append(str(error))
    return {"told": told}


def too_slow(engine: comm.CommEngine) -> Found:
    with comm.CommEngine(timeout_s=0.2) as impatient:
        if engine.rank == 3:
            dist.barrier()
            return {"told": ""}
        try:
            impatient.all_reduce(torch.ones(10)).wait()
            told = ""
        except comm.CommBroken as error:
            told = str(error)
        dist.barrier()
    return {"told": told}


def tuned(engine: comm.CommEngine) -> Found:
    """Measures, sums by what was found often enough for decisions to be passed on, and reads the saved table."""
    folder = Path(sys.argv[1]).parent / "tables"
    table = engine.tune(("bf16",), saved=folder)
    off = 0.0
    for count in [1000] * 70 + [300_000]:
        values = torch.full((count,), float(engine.rank))
        off = max(off, float((engine.all_reduce(values, "auto").wait() - 6.0).abs().max()))
    rows = [str(table.choice(2**power).candidate) for power in range(12, 27)]
    return {"off": off, "rows": rows, "saved": len(list(folder.glob("*.json")))}


def times(engine: comm.CommEngine) -> Found:
    before = engine.times
    engine.all_reduce(torch.ones(400_000), codec="int8").wait()
    after = engine.times
    return {
        "exchanges": after.exchanges - before.exchanges,
        "sent_bytes": after.sent_bytes - before.sent_bytes,
        "encode_s": after.encode_s - before.encode_s,
        "decode_s": after.decode_s - before.decode_s,
        "wire_s": after.wire_s - before.wire_s,
    }


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: Found = {}
    engine = comm.CommEngine()
    parts: dict[str, Callable[[comm.CommEngine], Found]] = {
        "ddp": lambda e: train(e, None),
        **{name: (lambda e, name=name: train(e, name)) for name in ("plain", "fp32", "bf16", "fp16", "int8", "sign1")},  # type: ignore[misc]
        "top_k": lambda e: train(e, "top_k"),
        "low_rank": lambda e: train(e, "low_rank", rank=2),
        "onebit": lambda e: train(e, "onebit", steps=24),
        "onebit early": lambda e: train(e, "onebit early", steps=24),
        "sums": sums,
        "tuned": tuned,
        "auto": lambda e: train(e, "auto"),
        "errors_follow": errors_follow,
        "owed_outlives": owed_outlives,
        "bad_values": bad_values,
        "times": times,
        "sharded": sharded,
        "too_slow": too_slow,
        "gave_up": gave_up,
    }
    for name, part in parts.items():
        found[name] = part(engine)
    engine.close()
    dist.destroy_process_group()
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
