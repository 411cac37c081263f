"""The workers of the session tests, and the process that starts them quickly.

``python worker.py`` is the nursery: it imports PyTorch once and forks a worker for each line that it is sent. A worker
runs the scenario that it is given, a plain loop over ``plait.session``, and writes down what it saw.
"""

import ctypes
import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what the first optimizer step would import in each worker anew
from torch import Tensor, nn
from torch.utils.data import Dataset

import plait
from plait.spec.job import DevicePrecision, PrecisionPlan
from plait.train.compression import CODECS, warm_up
from plait.train.observers import StepFacts
from plait.train.session import Session

_PR_SET_PDEATHSIG = 1
_TYPES = {"fp32": torch.float32, "fp64": torch.float64}
_compiled: set[str] = set()


class Samples(Dataset[tuple[Tensor, Tensor, int]]):
    """Sample ``i`` is the same in every process, and carries its number."""

    def __init__(self, num: int, dtype: torch.dtype) -> None:
        source = torch.Generator().manual_seed(11)
        self.x = torch.randn(num, 6, generator=source, dtype=torch.float64).to(dtype)
        self.y = (self.x[:, :1] * 2 - self.x[:, 1:2] * self.x[:, 2:3] + 0.5).to(dtype)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


class Counted(torch.autograd.Function):
    """Passes values on; backward it counts what it would allocate, and ends as PyTorch's allocator where it is much."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, most_rows: int) -> Tensor:
        ctx.most_rows = most_rows
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if len(gradients[0]) > ctx.most_rows:
            asked = f"you tried to allocate {gradients[0].nbytes} bytes. Error code 12 (Cannot allocate memory)"
            raise RuntimeError(f"[enforce fail] . DefaultCPUAllocator: can't allocate memory: {asked}")
        return gradients[0], None


class Limited(nn.Module):
    """A layer that has room for so many rows."""

    def __init__(self, most_rows: int) -> None:
        super().__init__()
        self.most_rows = most_rows

    def forward(self, values: Tensor) -> Tensor:
        passed: Tensor = Counted.apply(values, self.most_rows)  # type: ignore[no-untyped-call]
        return passed


def model_of(kind: str, seed: int, most_rows: int = 2**31) -> nn.Module:
    """Each member starts from weights of its own; the group must go on from the first member's."""
    torch.manual_seed(seed)
    layers: dict[str, list[nn.Module]] = {
        "plain": [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)],
        "wider": [nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 1)],
        "normed": [nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)],
        "large": [nn.Linear(6, 16), nn.Tanh(), Limited(most_rows), nn.Linear(16, 9000), nn.Tanh(), nn.Linear(9000, 1)],
        "huge": [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 20_000), nn.Tanh(), nn.Linear(20_000, 1)],
        "random": [nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)],
    }
    return nn.Sequential(*layers[kind])


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)).hexdigest()


class Book:
    """What one worker saw, written down at the end."""

    def __init__(self, run: Session, optimizer: torch.optim.Optimizer, expects: set[str]) -> None:
        self.run = run
        self.optimizer = optimizer
        self.expects = expects
        self.steps: list[dict[str, Any]] = []
        self.batches: list[tuple[int, list[int]]] = []
        self.norms: list[float] = []
        self.is_complete = not expects
        run.on_commit(self.on_commit)

    def on_commit(self, facts: StepFacts) -> None:
        work = {name: vote.micro_batches for name, vote in facts.members}
        self.is_complete = self.is_complete or self.expects <= {name for name, num in work.items() if num}
        momenta = [state["exp_avg"] for state in self.optimizer.state.values() if "exp_avg" in state]
        row = {"step": facts.step, "loss": facts.loss, "work": work, "rate": self.optimizer.param_groups[0]["lr"]}
        self.steps.append({**row, "momentum": digest(momenta)})

    def write(self, path: Path, model: nn.Module) -> None:
        found = {
            "step": self.run.step,
            "world": list(self.run.world),
            "weights": digest(list(model.parameters())),
            "buffers": {name: b.double().reshape(-1).tolist() for name, b in model.named_buffers()},
            "values": [p.detach().double().reshape(-1).tolist() for p in model.parameters()],
            "steps": self.steps,
            "batches": self.batches,
            "norms": self.norms,
        }
        path.write_text(json.dumps(found))


def precision_of(told: dict[str, Any]) -> PrecisionPlan:
    own = tuple(DevicePrecision(accelerator_type=name, precision=kind) for name, kind in told.get("own", {}).items())
    return PrecisionPlan(
        global_precision=told.get("all", "fp32"), device_specific=own, reduce=told.get("reduce", "fp32")
    )


def work(told: dict[str, Any]) -> None:
    """Runs one scenario in this process."""
    torch.set_num_threads(1)
    me = os.environ.get("PLAIT_MEMBER", f"w{os.environ.get('RANK', '0')}")
    dtype = _TYPES[told.get("dtype", "fp64")]
    kind = told.get("models", {}).get(me, told.get("model", "plain"))
    model = model_of(kind, int(me[1:]), told.get("room", {}).get(me, 2**31)).to(dtype)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if "freeze" in told:
        optimizer = plait.OneBitAdam(model.parameters(), lr=0.01, freeze=told["freeze"])
    if told.get("kind") == "lamb":
        optimizer = plait.OneBitLamb(model.parameters(), lr=0.05, freeze=told["freeze"])
    if told.get("kind") == "zero_one":
        optimizer = plait.ZeroOneAdam(model.parameters(), lr=0.01, kappa=4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5) if told.get("schedules") else None
    with plait.session(
        global_batch_size=24,
        micro_batches=12,
        bitwise=told.get("bitwise", False),
        precision=precision_of(told.get("precision", {})),
        heartbeat_timeout_s=told.get("timeout_s", 6.0),
        max_fused=told.get("max_fused"),
        max_share=told.get("max_share", {}).get(me),
        compression=told.get("compression", "none"),
        bucket_bytes=told.get("bucket_bytes", 25 * 2**20),
    ) as run:
        if "save" in told:
            run.save_every(told.get("save_interval_s", 1000.0), told["save"])
        samples = Samples(told.get("samples", 100), dtype)
        wrapped, closing, loader = run.prepare(
            model,
            optimizer,
            samples,
            steps=told.get("steps", 15),
            scheduler=scheduler,
            clip_grad_norm=told.get("clip"),
            batch_norm=told.get("batch_norm", "ghost"),
        )
        book = Book(run, optimizer, set(told.get("expects", ())))
        run.before_step(lambda: book.norms.append(float(nn.utils.get_total_norm(gradients_of(model)))))
        leaves_at = told.get("leaves", {}).get(me)
        for x, y, numbers in loader:
            book.batches.append((run.step, numbers.tolist()))
            if not book.is_complete and run.step + told["patient_steps"] >= run.total_steps:
                time.sleep(0.3)  # the run goes slowly towards its end until those who are to come have come
            with run.fits():
                loss = (wrapped(x) - y).square().mean()
                run.record(loss=loss)
                loss.backward()
                closing.step()
                closing.zero_grad()
            if me in told.get("own_rates", ()):
                optimizer.param_groups[0]["lr"] *= 0.9
            if leaves_at is not None and run.step >= leaves_at:  # a step in which it has no work is none of its loop
                break
        book.write(Path(os.environ["PLAIT_RUN_DIR"]) / f"{run.member}.json", model)


def live(order: dict[str, Any]) -> int:
    """A forked worker: takes its place, works, returns its exit code."""
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1)  # a test that waited in vain asks where everybody is
    try:
        work(order["scenario"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def compile_kernels(told: dict[str, Any]) -> None:
    """Compiles what a scenario's workers would each compile at the same time, where it is not on disk yet."""
    used = {str(told.get("compression")), "sign1" if "freeze" in told or "kind" in told else ""}
    for name in (used & CODECS.keys()) - _compiled:
        warm_up(CODECS[name]())
        _compiled.add(name)


def nurse() -> None:
    """Forks a worker a line; answers with its process number, or with the exit codes that are asked for."""
    children: dict[int, int | None] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            for pid in order["wait"]:
                if children[pid] is None:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    children[pid] = os.waitstatus_to_exitcode(status) if found else None
            answer: Any = [children[pid] for pid in order["wait"]]
        else:
            compile_kernels(order["scenario"])
            parent = os.getpid()
            answer = os.fork()
            if answer == 0:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                code = live(order)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            children[answer] = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(json.loads(sys.argv[1]))
    else:
        nurse()
