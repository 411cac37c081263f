"""A run that a live controller wrote down, played again by the simulator: the same events in the same order."""

import asyncio
from typing import TYPE_CHECKING

from plait.agent.messages import StartWorker
from plait.cli.main import execute
from plait.controller.client import Client
from plait.schedule.policies import policy
from plait.sim.recorded import is_recorded, read_records, reproduce

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Stage


async def _small_run(stage: "Stage") -> None:
    """Three jobs on two nodes: one waits, one loses a worker and starts anew, a node is drained and taken back."""
    async with stage.controller_at(stage.state) as controller:
        client = Client(stage.state)
        agents = [await stage.agent("n0", "a"), await stage.agent("n1", "b")]
        for name, workers in (("pair", 2), ("wide", 4), ("single", 1)):
            await asyncio.to_thread(client.submit, stage.job(name, workers), "/work")
        seen: set[tuple[str, str]] = set()
        ended = 0
        while ended < 3:
            for agent in agents:
                for order in [message for message in agent.heard if isinstance(message, StartWorker)]:
                    key = (order.attempt_id, order.worker_id)
                    if key in seen:
                        continue
                    seen.add(key)
                    agent.up(order)
                    is_lost = order.attempt_id == "single-1/train/0"
                    agent.down(order, 1 if is_lost else 0, failure="lost")
            if len(seen) == 2:
                await asyncio.to_thread(client.drain, "n1")
                await asyncio.to_thread(client.resume, "n1")
            await asyncio.sleep(0.02)
            ended = sum(job.state == "succeeded" for job in controller.writer.state.jobs.values())


async def test_the_simulator_reproduces_a_recorded_run_exactly(stage: "Stage") -> None:
    await _small_run(stage)
    assert is_recorded(stage.state)
    records = read_records(stage.state)
    assert sum(record.event.kind == "worker_exited" for record in records) >= 8
    answer = reproduce(records)
    assert answer.differences == ()
    assert answer.num_events == len(records)
    assert answer.num_commands == sum(len(record.commands) for record in records)
    assert await asyncio.to_thread(execute, ["simulate", str(stage.state)]) == 0


async def test_the_live_controller_names_the_binding_constraint(stage: "Stage") -> None:
    async with stage.controller_at(stage.state):
        client = Client(stage.state)
        agent = await stage.agent("n0", "a", slots=4)
        await asyncio.to_thread(client.submit, stage.job("first", 3), "/work")
        for index in range(3):
            await agent.acknowledged(agent.up(await agent.next(StartWorker, index + 1)))
        for name, workers in (("gang", 2), ("small", 1), ("huge", 9)):
            await asyncio.to_thread(client.submit, stage.job(name, workers), "/work")
        told = {name: (await asyncio.to_thread(client.explain, f"{name}-1"))["tasks"][0] for name in ("gang", "small")}
        assert told["gang"]["constraint"] == "gang"
        assert told["gang"]["constraint_reason"] == "needs 2 workers of T4 at once; 1 worker could start now"
        assert told["gang"]["starts"] == "not known: nobody knows when first-1/train/0 will be done"
        assert told["small"]["constraint"] == "reservation"
        assert (await asyncio.to_thread(client.explain, "first-1"))["tasks"][0]["constraint"] == ""
        assert await asyncio.to_thread(execute, ["explain", "huge-1", "--state", str(stage.state)]) == 0


async def test_another_policy_is_told_apart(stage: "Stage") -> None:
    await _small_run(stage)
    assert reproduce(read_records(stage.state), policy("srtf")).differences
