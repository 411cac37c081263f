"""Devices that failed, and drills, through a real controller: what agents are asked, and what people see."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from plait.agent.messages import CheckDevice, DeviceChecked, InjectFault, LinkStall, StartWorker
from plait.controller.client import Client, RequestRefused
from plait.spec.cluster import Cluster, Quarantine

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Stage

SOON = Cluster(quarantine=Quarantine(cool_down_s=0.1), drills=True)


async def test_a_device_that_failed_is_tested_by_its_agent_and_works_again(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state, cluster=SOON) as controller:
        agent = await stage.agent(slots=1)
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        agent.up(order)
        agent.down(order, exit_code=77, failure="device_fault")
        check = await agent.next(CheckDevice)
        assert (check.device, check.limit_s) == ("n0/0", 60.0)
        (seen,) = (await asyncio.to_thread(client.nodes))[0]["devices"]
        assert (seen["state"], seen["tested_in_s"]) == ("probation", None)
        assert "n0/0 is being tested, kept from work since" in seen["reason"]
        told = (await asyncio.to_thread(client.explain, "digits-1"))["tasks"][0]
        assert "n0/0 is being tested, kept from work since" in told["waiting"]
        assert "n0/0 is quarantined: tested in 0 s" in " ".join(told["history"])
        # An order that was lost with its connection comes again; a test that is answered twice counts once.
        await agent.connect(stage.state)
        again = await agent.next(CheckDevice)
        assert again == check
        for number in (3, 3):
            agent.say(DeviceChecked(number=number, device="n0/0", test=check.test, passed=True, detail="well"))
        await agent.acknowledged(3)
        assert not controller.writer.state.nodes["n0"].troubles
        assert (await agent.next(StartWorker)).attempt_id == "digits-1/train/1"


async def test_a_drill_reaches_the_agent_and_is_written_down(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state, cluster=SOON):
        agent = await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        await agent.acknowledged(agent.up(order))
        await asyncio.to_thread(client.inject, "digits-1", "train", "w0", "freeze")
        injected = await agent.next(InjectFault)
        assert (injected.attempt_id, injected.worker_id, injected.deed) == (order.attempt_id, "w0", "freeze")
        told = await asyncio.to_thread(client.explain, "digits-1")
        assert "freeze of w0 was asked for, as a drill" in told["tasks"][0]["history"]
        with pytest.raises(RequestRefused, match="no running worker 'w7'; running are w0"):
            await asyncio.to_thread(client.inject, "digits-1", "train", "w7", "kill")


async def test_what_held_a_worker_up_is_explained(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        agent = await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        number = agent.up(order) + 1
        stall = LinkStall(
            number=number, attempt_id=order.attempt_id, worker_id="w0", is_transient=False, reason="eth0 has no link"
        )
        agent.say(stall)
        await agent.acknowledged(number)
        told = await asyncio.to_thread(client.explain, "digits-1")
        assert "w0 was held up by the network: eth0 has no link" in told["tasks"][0]["history"]
