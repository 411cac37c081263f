"""``plait checkpoints``: what a run has saved; check, tidy, go back, take away."""

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plait.cli.failures import FAILED, OK
from plait.cli.options import JsonOption, StateOption
from plait.cli.output import human_bytes, print_json, print_table, say

if TYPE_CHECKING:
    from plait.train.checkpoint.catalogue import Found
    from plait.train.checkpoint.repository import Repository

PlaceArgument = Annotated[
    str,
    typer.Argument(metavar="JOB|PLACE", help="Id of a job, a job file, or a directory or URL such as s3://bucket/run."),
]
Action = Literal["list", "verify", "prune", "restore", "export"]
ActionArgument = Annotated[Action, typer.Argument(help="What to do.")]
ToOption = Annotated[
    int | None,
    typer.Option("--to", metavar="STEP", help="With restore: the step that the next run goes on from."),
]
StepOption = Annotated[
    int | None, typer.Option("--step", metavar="STEP", help="With verify and export: this step only; export: newest.")
]
KeepOption = Annotated[int | None, typer.Option("--keep", min=1, help="With prune: how many of the last are kept.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="With export: where to.")]
FormatOption = Annotated[
    Literal["hf", "torch"],
    typer.Option("--format", help="With export: model.safetensors of Hugging Face, or one file of torch.save."),
]


def checkpoints(
    place: PlaceArgument,
    action: ActionArgument = "list",
    *,
    to: ToOption = None,
    step: StepOption = None,
    keep: KeepOption = None,
    out: OutOption = None,
    form: FormatOption = "hf",
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """List a run's checkpoints, or verify, prune, restore or export them.

    restore makes the next run go on from an older step: later ones no longer count, and a run that still writes here is
    fenced off. prune removes what --keep does not keep and what dead writers have left.
    """
    from plait.train.checkpoint.repository import Repository
    from plait.train.checkpoint.stores import open_store

    repository = Repository(open_store(_url_of(place, state)))
    if action == "list":
        return _list(list(repository.found()), as_json=as_json)
    if action == "verify":
        return _verify(repository, step, as_json=as_json)
    if action == "prune":
        return _prune(repository, keep, as_json=as_json)
    if action == "restore":
        if to is None:
            raise typer.BadParameter("restore needs --to STEP")
        return _restore(repository, to, as_json=as_json)
    if out is None:
        raise typer.BadParameter("export needs --out DIR")
    return _export(repository, step, out, form, as_json=as_json)


def _url_of(place: str, state: Path | None) -> str:
    """Returns where checkpoints lie: a URL or directory stands for itself, a job file or job for its checkpoint.url."""
    from plait.errors import PlaitError

    if "://" in place or Path(place).is_dir():
        return place
    if place.endswith((".yaml", ".yml")):
        from plait.spec.load import load_job

        found = load_job(place).checkpoint
        url = found.url if found is not None else None
    else:
        from plait.cli.connection import connect

        url = connect(state).job(place)["checkpoint"]
    if url is None:
        raise PlaitError(f"{place} keeps no checkpoints: its job file has no section checkpoint")
    return url


def _list(found: "list[Found]", *, as_json: bool) -> int:
    if as_json:
        print_json([_document(one) for one in found])
        return OK
    if not found:
        say("no checkpoints")
        return OK
    print_table(("step", "generation", "written", "size", "ranks", "score", ""), [_row(one) for one in found])
    return OK


def _document(one: "Found") -> dict[str, object]:
    manifest = one.manifest
    return {
        "step": one.name.step,
        "generation": one.name.writer.generation,
        "bytes": manifest.num_bytes if manifest else None,
        "ranks": len(manifest.receipts) if manifest else None,
        "written_s": manifest.written_s if manifest else None,
        "score": manifest.metric if manifest else None,
        "fault": one.fault,
    }


def _row(one: "Found") -> tuple[str, ...]:
    manifest = one.manifest
    if manifest is None:
        return str(one.name.step), str(one.name.writer.generation), "", "", "", "", f"damaged: {one.fault}"
    written = ""
    if manifest.written_s is not None:
        written = dt.datetime.fromtimestamp(manifest.written_s, dt.UTC).astimezone().isoformat(" ", "seconds")
    size = human_bytes(manifest.num_bytes) or ""
    score = "" if manifest.metric is None else f"{manifest.metric:.6g}"
    return str(one.name.step), str(one.name.writer.generation), written, size, str(len(manifest.receipts)), score, ""


def _verify(repository: "Repository", step: int | None, *, as_json: bool) -> int:
    names = [name for name in repository.names() if step is None or name.step == step]
    faults = {name.step: repository.verify(name) for name in names}
    if as_json:
        print_json([{"step": number, "ok": fault is None, "fault": fault} for number, fault in faults.items()])
        return OK if faults and not any(faults.values()) else FAILED
    for number, fault in faults.items():
        say(f"step {number}: {'every byte is as it was written' if fault is None else fault}")
    if not faults:
        say("no checkpoints" if step is None else f"no checkpoint of step {step}")
    return OK if faults and not any(faults.values()) else FAILED


def _prune(repository: "Repository", keep: int | None, *, as_json: bool) -> int:
    from plait.train.checkpoint.commit import Retention, surplus

    gone = surplus(repository.names(), Retention(last=keep)) if keep is not None else []
    for name in gone:
        repository.remove(name)
    swept = repository.sweep()
    if as_json:
        print_json({"removed_steps": [name.step for name in gone], "swept": swept})
    else:
        steps = ", ".join(str(name.step) for name in gone)
        say(f"removed {len(gone)} checkpoints{f' (steps {steps})' if gone else ''} and {swept} left-over objects")
    return OK


def _restore(repository: "Repository", to: int, *, as_json: bool) -> int:
    from plait.errors import PlaitError

    steps = sorted({name.step for name in repository.names()})
    name = next((name for name in repository.names() if name.step == to), None)
    if name is None:
        raise PlaitError(f"there is no checkpoint of step {to}; there are {', '.join(map(str, steps)) or 'none'}")
    if (fault := repository.verify(name)) is not None:
        raise PlaitError(f"the checkpoint of step {to} is damaged: {fault}")
    claim = repository.claim(to)
    if as_json:
        print_json({"step": to, "generation": claim.writer.generation})
    else:
        say(f"the next run goes on from step {to} (generation {claim.writer.generation})")
    return OK


def _export(
    repository: "Repository", step: int | None, out: Path, form: Literal["hf", "torch"], *, as_json: bool
) -> int:
    from plait.train.checkpoint.export import newest_good, to_safetensors, to_torch

    manifest = newest_good(repository, step)
    out.mkdir(parents=True, exist_ok=True)
    write = to_safetensors if form == "hf" else to_torch
    files = write(repository, manifest, out)
    if as_json:
        print_json({"step": manifest.step, "files": [str(path) for path in files]})
    else:
        say(f"step {manifest.step}: {', '.join(str(path) for path in files)}")
    return OK
