"""An agent runs exactly what the journal says, whatever was cut off, repeated or restarted in between."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from plait.agent.messages import Acknowledge, Heartbeat, Progress, StartWorker, StopWorker, TellLost
from plait.controller.agents import Timing
from plait.controller.client import Client
from plait.engines.engine import NodeGone
from plait.spec.job import FailureRules, Job, WorkerRange

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Stage


async def test_an_order_goes_out_once_and_its_end_finishes_the_job(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        client = Client(stage.state)
        agent = await stage.agent()
        answer = await asyncio.to_thread(client.submit, stage.job(), "/work")
        assert answer == {"job_id": "digits-1", "is_new": True}
        order = await agent.next(StartWorker)
        assert (order.attempt_id.rpartition("/")[0], order.worker_id) == ("digits-1/train", "w0")
        assert dict(order.environment)["WORLD_SIZE"] == "1"
        await agent.acknowledged(agent.up(order))
        assert (await asyncio.to_thread(client.job, "digits-1"))["state"] == "running"
        await agent.acknowledged(agent.down(order))
        job = await asyncio.to_thread(client.job, "digits-1")
        assert (job["state"], job["exit_code"]) == ("succeeded", 0)
        assert job["tasks"][0]["placement"][0]["state"] == "finished"
        assert agent.orders() == [("start_worker", "w0")]
        assert not list(controller.writer.ledger.all_orders())


async def test_a_report_counts_once_however_often_it_comes(stage: "Stage") -> None:
    rules = FailureRules(max_restarts=0)
    async with stage.controller_at(stage.state) as controller:
        client = Client(stage.state)
        agent = await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(workers=2, failure=rules), "/work")
        first, second = await agent.next(StartWorker), await agent.next(StartWorker, 2)
        for order in (first, second):
            agent.up(order)
        await agent.acknowledged(2)
        written = controller.writer.last_id
        await agent.hang_up()
        agent.workers = (stage.known(first), stage.known(second))
        await agent.connect(stage.state)
        agent.up(first, number=1)
        agent.up(second, number=2)
        await agent.acknowledged(2)
        assert agent.down(first, number=3) == 3
        agent.down(first, number=3)
        await agent.acknowledged(3)
        events = await asyncio.to_thread(client.events, written)
        kinds = [str(record["event"]) for record in events["events"]]
        assert sum("worker_exited" in kind for kind in kinds) == 1
        assert not any("worker_started" in kind for kind in kinds)


async def test_a_controller_that_comes_back_orders_what_the_agent_never_got_and_nothing_twice(stage: "Stage") -> None:
    async with stage.controller_at(stage.state):
        agent = await stage.agent()
        await asyncio.to_thread(Client(stage.state).submit, stage.job(workers=2), "/work")
        first, second = await agent.next(StartWorker), await agent.next(StartWorker, 2)
        await agent.acknowledged(agent.up(first))
        await agent.hang_up()
    # The second order was lost on its way; the first worker runs.
    agent.workers = (stage.known(first),)
    async with stage.controller_at(stage.state) as controller:
        await agent.connect(stage.state)
        again = await agent.next(StartWorker)
        assert again == second
        await agent.acknowledged(agent.up(again))
        await agent.acknowledged(agent.down(first))
        await agent.acknowledged(agent.down(second))
        assert (await asyncio.to_thread(Client(stage.state).job, "digits-1"))["state"] == "succeeded"
        assert agent.orders() == [("start_worker", second.worker_id)]
        assert controller.writer.ledger.starts == {"digits-1/train": 1}


async def test_what_an_agent_ran_and_no_longer_knows_is_lost(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        agent = await stage.agent()
        await asyncio.to_thread(Client(stage.state).submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        await agent.acknowledged(agent.up(order))
        await agent.hang_up()
        await agent.connect(stage.state)
        await stage.until(lambda: controller.writer.ledger.order(order.attempt_id, order.worker_id) is None)
        retried = await agent.next(StartWorker)
        assert retried.attempt_id != order.attempt_id
        assert dict(retried.environment)["TORCHELASTIC_RESTART_COUNT"] == "1"


async def test_workers_that_nobody_wants_are_stopped(stage: "Stage") -> None:
    async with stage.controller_at(stage.state):
        agent = await stage.agent()
        client = Client(stage.state)
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        await agent.acknowledged(agent.up(order))
        await agent.hang_up()
        await asyncio.to_thread(client.cancel, "digits-1")
        stray = StartWorker(
            attempt_id="gone-1/train/1",
            worker_id="w7",
            rank=7,
            command=("true",),
            working_directory="/",
            environment=(),
            device_ids=(),
            log_directory="/",
        )
        ended = replace(stray, worker_id="w8")
        agent.workers = (stage.known(order), stage.known(stray), stage.known(ended, alive=False))
        await agent.connect(stage.state)
        await agent.next(StopWorker, 2)
        assert sorted(agent.orders()) == [("stop_worker", "w0"), ("stop_worker", "w7")]
        await agent.acknowledged(agent.down(order, exit_code=143))
        assert (await asyncio.to_thread(client.job, "digits-1"))["state"] == "cancelled"


async def test_a_job_cancelled_before_its_agent_heard_of_it_never_starts(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        agent = await stage.agent()
        await agent.hang_up()
        client = Client(stage.state)
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        await asyncio.to_thread(client.cancel, "digits-1")
        await agent.connect(stage.state)
        await agent.welcome()
        await stage.until(lambda: controller.writer.state.jobs["digits-1"].state == "cancelled")
        assert agent.orders() == []


async def test_a_new_agent_process_means_that_the_old_ones_workers_are_dead(stage: "Stage") -> None:
    engine = stage.engine()
    engine.nodes = (stage.node("n0"),)
    async with stage.controller_at(stage.state, engine) as controller:
        old = await stage.agent(incarnation="a")
        assert (await old.welcome()).lease_s is None
        await asyncio.to_thread(Client(stage.state).submit, stage.job(), "/work")
        order = await old.next(StartWorker)
        await old.acknowledged(old.up(order))
        await old.hang_up()
        new = await stage.agent(incarnation="b")
        retried = await new.next(StartWorker)
        assert retried.attempt_id.rpartition("/")[0] == order.attempt_id.rpartition("/")[0]
        assert retried.attempt_id != order.attempt_id
        assert controller.writer.ledger.agents["n0"].incarnation == "b"
        assert controller.writer.ledger.order(order.attempt_id, order.worker_id) is None


async def test_two_agents_never_hold_one_node(stage: "Stage") -> None:
    async with stage.controller_at(stage.state):
        first = await stage.agent(incarnation="a")
        assert (await first.welcome()).lease_s is not None
        second = stage.unconnected("n0", "b")
        await second.connect(stage.state)
        await stage.until(lambda: second.is_refused)
        first.say(Heartbeat(sent_s=12.5))
        await first.acknowledged(0)
        assert (await first.next(Acknowledge)).heartbeat_sent_s == 12.5


async def test_a_wrong_token_is_not_let_in(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        agent = stage.unconnected("n0", "a")
        await agent.connect(stage.state, token="guess")
        await stage.until(lambda: agent.is_refused)
        assert not controller.writer.state.nodes
        assert not controller.switchboard.links


async def test_a_node_whose_agent_died_is_lost_and_its_work_moves(stage: "Stage") -> None:
    engine = stage.engine()
    async with stage.controller_at(stage.state, engine):
        doomed = await stage.agent("n0", slots=1)
        await asyncio.to_thread(Client(stage.state).submit, stage.job(), "/work")
        order = await doomed.next(StartWorker)
        other = await stage.agent("n1", slots=1)
        await doomed.acknowledged(doomed.up(order))
        await doomed.hang_up()
        engine.happenings.put_nowait(NodeGone(node="n0", reason="its agent was killed"))
        moved = await other.next(StartWorker)
        assert moved.attempt_id != order.attempt_id
        nodes = {node["node"]: node for node in await asyncio.to_thread(Client(stage.state).nodes)}
        assert nodes["n0"]["state"] == "lost"
        assert nodes["n1"]["devices"][0]["worker"] == f"{moved.attempt_id} {moved.worker_id}"


async def test_a_silent_agent_is_ended_through_the_engine_before_its_work_moves(stage: "Stage") -> None:
    engine = stage.engine()
    engine.nodes = (stage.node("n0", 1), stage.node("n1", 1))
    timing = Timing(heartbeat_timeout_s=0.3, fence_s=0.6)
    async with stage.controller_at(stage.state, engine, timing) as controller:
        frozen = await stage.agent("n0", slots=1)
        lively = await stage.agent("n1", slots=1)
        beating = asyncio.create_task(lively.beat())
        await stage.until(lambda: bool(engine.kept))
        assert engine.kept[0] == ("n1",)
        # Silence alone loses nothing: only the word that the agent is dead does.
        assert controller.writer.state.nodes["n0"].is_alive
        engine.happenings.put_nowait(NodeGone(node="n0", reason="ended"))
        await stage.until(lambda: not controller.writer.state.nodes["n0"].is_alive)
        assert controller.writer.state.nodes["n1"].is_alive
        beating.cancel()
        await frozen.hang_up()


async def test_without_an_engine_that_knows_only_the_end_of_the_lease_loses_a_node(stage: "Stage") -> None:
    timing = Timing(heartbeat_timeout_s=0.2, lease_s=1.0, lease_margin_s=0.2)
    async with stage.controller_at(stage.state, timing=timing) as controller:
        agent = await stage.agent()
        assert (await agent.welcome()).lease_s == 1.0
        agent.say(Heartbeat())
        await agent.acknowledged(0)
        await agent.hang_up()
        kinds: list[str] = []
        controller.writer.listen(lambda record: kinds.append(record.event.kind))
        successor = stage.unconnected("n0", "b")
        await successor.connect(stage.state)
        await stage.until(lambda: successor.is_refused)
        assert "node_joined" not in kinds
        await stage.until(lambda: "node_lost" in kinds)  # the old agent's lease has run out
        await successor.connect(stage.state)
        assert (await successor.welcome()).lease_s == 1.0
        assert kinds.index("node_lost") < kinds.index("node_joined")


async def test_survivors_are_told_of_the_lost_and_progress_is_kept(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        client = Client(stage.state)
        agent = await stage.agent(slots=3)
        task = stage.job().tasks[0]
        elastic = Job(name="digits", tasks=(replace(task, workers=WorkerRange(min=1, max=3)),))
        await asyncio.to_thread(client.submit, elastic, "/work")
        orders = [await agent.next(StartWorker, number) for number in (1, 2, 3)]
        for order in orders:
            await agent.acknowledged(agent.up(order))
        agent.say(
            Progress(
                attempt_id=orders[0].attempt_id,
                worker_id="w0",
                step=5,
                total_steps=50,
                samples_per_s=100.0,
                loss=float("nan"),
                generation="1",
                split=(("w0", 2), ("w1", 1), ("w2", 1)),
                reason="by measured speed",
            )
        )

        await stage.until(lambda: controller.writer.state.attempts[orders[0].attempt_id].progress is not None)
        line = (await asyncio.to_thread(client.progress, "digits-1"))[0]
        assert (line["loss"], line["split"]) == (None, {"w0": 2, "w1": 1, "w2": 1})
        explained = await asyncio.to_thread(client.explain, "digits-1")
        assert "by measured speed" in explained["tasks"][0]["split"]
        await agent.acknowledged(agent.down(orders[1], exit_code=137, failure="lost"))
        told = await agent.next(TellLost)
        assert told.lost == ("w1",)
