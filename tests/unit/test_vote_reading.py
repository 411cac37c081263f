"""The vote: what the members put in, and what all of them read."""

from typing import Any

import pytest
import torch

from plait.errors import ContractMismatch
from plait.train.vote import Ballot, Vote, cast, read

MEMBERS = ("w0", "w1", "w2")


def ballot(**other: Any) -> Ballot:
    return Ballot(**{"step": 5, "plan_hash": 2**31 - 1, "count": 8, "loss_sum": 4.0, **other})


def reduced(ballots: list[Ballot]) -> list[int]:
    values = torch.stack([cast(b, index, len(ballots)) for index, b in enumerate(ballots)]).sum(0)
    return [int(value) for value in values.tolist()]


def test_counts_losses_and_times_come_together() -> None:
    ballots = [
        ballot(compute_us=1000, micro_batches=4),
        ballot(count=4, loss_sum=1.0, compute_us=3000, micro_batches=2),
        ballot(count=0, loss_sum=0.0, is_ready=False),
    ]
    values = reduced(ballots)
    votes = [read(values, MEMBERS, b) for b in ballots]
    assert votes[0] == votes[1] == votes[2]
    vote = votes[0]
    assert (vote.step, vote.count, vote.found_inf) == (5, 12, False)
    assert vote.loss == pytest.approx(5.0 / 12.0)
    told = {name: (m.compute_us, m.micro_batches, m.is_ready) for name, m in vote.members}
    assert told == {"w0": (1000, 4, True), "w1": (3000, 2, True), "w2": (0, 0, False)}
    assert vote.ready == {"w0", "w1"}


def test_one_infinity_is_everybody_s() -> None:
    ballots = [ballot(), ballot(found_inf=True), ballot()]
    assert read(reduced(ballots), MEMBERS, ballots[0]).found_inf


@pytest.mark.parametrize("loss", [None, float("inf"), float("nan"), -float("inf"), 1e30])
def test_a_loss_that_one_member_cannot_tell_is_not_told(loss: float | None) -> None:
    ballots = [ballot(), ballot(loss_sum=loss), ballot()]
    vote = read(reduced(ballots), MEMBERS, ballots[0])
    assert vote.loss is None
    assert vote.count == 24


@pytest.mark.parametrize("other", [{"step": 6}, {"plan_hash": 7}])
def test_members_of_different_minds_apply_nothing(other: dict[str, int]) -> None:
    ballots = [ballot(), ballot(**other), ballot()]
    for mine in ballots:
        with pytest.raises(ContractMismatch, match="do not work on the same step"):
            read(reduced(ballots), MEMBERS, mine)


def test_members_that_would_apply_a_step_at_different_rates_apply_nothing() -> None:
    ballots = [ballot(rates_hash=5), ballot(rates_hash=6), ballot(rates_hash=5)]
    for mine in ballots:
        with pytest.raises(ContractMismatch, match=r"in step 5 w0, w2 and w1 have different learning rates"):
            read(reduced(ballots), MEMBERS, mine)
    waiting = [ballot(rates_hash=5), ballot(rates_hash=6, is_ready=False), ballot(rates_hash=5)]
    assert read(reduced(waiting), MEMBERS, waiting[0]).ready == {"w0", "w2"}, "it gets its rates with its state"


def test_a_vote_comes_through_json_as_it_was() -> None:
    ballots = [ballot(compute_us=17, micro_batches=3), ballot(found_inf=True, is_ready=False), ballot(loss_sum=None)]
    vote = read(reduced(ballots), MEMBERS, ballots[0])
    assert Vote.from_json(vote.as_json()) == vote


def test_a_group_of_one_reads_its_own_vote() -> None:
    mine = ballot(micro_batches=12, compute_us=9)
    vote = read([int(v) for v in cast(mine, 0, 1).tolist()], ("w0",), mine)
    assert vote.loss == pytest.approx(0.5)
    assert vote.ready == {"w0"}
