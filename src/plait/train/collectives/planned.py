r"""Carries out a :class:`~plait.train.collectives.plan.Plan` over a mesh, with what travels between islands encoded.

For every range of values a member waits for the sums of those who send to it, adds its own, and passes the whole on;
the root hands out the result, and all decode the same bytes. Whoever encodes keeps what was lost and adds it the next
time (Tang et al., 1-bit Adam, arXiv 2102.02888, algorithm 1), once a range and step: on the way up as what the paper
calls a worker, at the root as its server. All these errors are in units of the step's mean, so one buffer a member
holds them, and

.. math:: \text{result}_t + \sum_i e_{i,t} = \text{exact}_t + \sum_i e_{i,t-1}

whatever the plans, shares and members of the two steps. A member that passes values on as they are adds what it still
owes to them and owes nothing then.

An infinity or NaN is never encoded. Its range travels as an empty message in place of a sum, every member gets NaN for
it, and all know that the exchange does not count.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.train.collectives.mesh import Key, Mesh, MeshBroken, MeshWork
from plait.train.collectives.plan import Plan
from plait.train.compression.codec import BadValues, Codec
from plait.train.compression.message import MessageLayout


class Debt:
    """What the encodings of one stretch have lost so far, and what those of the running exchange lose.

    Attributes:
        owed: fp32, of the stretch's length.
        next: Likewise, after the running exchange.
    """

    def __init__(self, count: int, device: torch.device | None = None) -> None:
        self.owed = torch.zeros(count, device=device)
        self.next = torch.zeros(count, device=device)

    def commit(self) -> None:
        """The exchange counts."""
        self.owed, self.next = self.next, self.owed


@dataclass(frozen=True, slots=True)
class MomentumShare:
    """Says that the values are gradients, and what is summed a member's part of the next momentum.

    That is ``weight * beta * state + gradient_weight * (1 - beta) * values``; it is made while it is encoded.

    Attributes:
        state: The last momentum, fp32 and as long as the values; all members hold the same one.
        beta: Its decay.
        weight: This member's part of the step; all members' add up to 1.
        gradient_weight: What its gradients are multiplied by to be its part of their mean.
    """

    state: Tensor
    beta: float
    weight: float
    gradient_weight: float


@dataclass(slots=True)
class StageTimes:
    """Where the time of exchanges went.

    Attributes:
        encode_s: Encoding.
        decode_s: Decoding and adding up.
        wire_s: From the first message to the last result, less the two above.
        waiting_s: In the queue, before the first message.
        sent_bytes: What was handed to the links, without their own headers.
        exchanges: How many.
    """

    encode_s: float = 0.0
    decode_s: float = 0.0
    wire_s: float = 0.0
    waiting_s: float = 0.0
    sent_bytes: int = 0
    exchanges: int = 0


class Route:
    """A plan for one stretch of values, with what its messages look like. Made once, used every step."""

    def __init__(self, plan: Plan, layout: MessageLayout, codec: Codec) -> None:
        """``layout`` is that of all the plan's values; ``codec`` for what travels between islands."""
        self.plan = plan
        self.codec = codec
        self.is_exact = codec.name == "fp32"
        self.layouts = [layout.cut(tree.first, tree.end) for tree in plan.trees]
        self.bytes = [each.payload_bytes(codec) for each in self.layouts]
        self.result_is_coded = [not self.is_exact and plan.crosses(tree) for tree in plan.trees]

    def is_coded(self, number: int, sender: int) -> bool:
        """Whether what a member sends up a tree is encoded."""
        return not self.is_exact and self.plan.is_across(sender, self.plan.trees[number].up[sender])

    def size(self, number: int, *, is_coded: bool) -> int:
        """Returns the bytes of a message of a tree."""
        tree = self.plan.trees[number]
        return self.bytes[number] if is_coded else 4 * (tree.end - tree.first)


@dataclass(slots=True)
class _Knot:
    """What a member still waits for in one tree."""

    children: tuple[int, ...]
    heard: dict[int, bytearray] = field(default_factory=dict)


class PlanRun:
    """One member's part in a plan; told of messages by :meth:`take`, it sends its own."""

    def __init__(
        self,
        work: MeshWork,
        ranks: Sequence[int],
        values: Tensor,
        route: Route,
        *,
        debt: Debt | None = None,
        momentum: MomentumShare | None = None,
        times: StageTimes | None = None,
        first_tag: int = 0,
    ) -> None:
        """``ranks`` are those of the plan's members in the mesh; the result replaces ``values`` (fp32, one run).

        Where ``momentum`` is given, ``debt`` is, too.
        """
        self._work = work
        self._ranks = tuple(ranks)
        self._me = self._ranks.index(work.mesh.rank)
        self._values = values
        self._route = route
        self._debt = debt
        self._momentum = momentum
        self._times = times or StageTimes()
        self._first_tag = first_tag
        trees = route.plan.trees
        me = self._me
        self._knots = [_Knot(tuple(m for m, p in enumerate(tree.up) if p == me and m != me)) for tree in trees]
        self._left = len(trees)
        self.is_poisoned = False

    @property
    def is_over(self) -> bool:
        """Whether all results are in place, and all that others need of this member has been handed to the mesh."""
        return self._left == 0

    @property
    def num_tags(self) -> int:
        """How many tags its messages take, from ``first_tag`` on."""
        return 2 * len(self._knots)

    def begin(self) -> None:
        """Sends what does not depend on others, in the plan's order."""
        for number, knot in enumerate(self._knots):
            if not knot.children:
                self._pass_on(number)

    def missing(self) -> frozenset[int]:
        """Returns the ranks from which messages are missing; those that wait for others themselves only if no other."""
        knots = list(zip(self._route.plan.trees, self._knots, strict=True))
        senders = {m for _, knot in knots for m in set(knot.children) - knot.heard.keys()}
        above = {tree.down[self._me] for tree, _ in knots} - {self._me}
        return frozenset(self._ranks[m] for m in senders or above)

    def take(self, rank: int, tag: int, data: bytearray) -> None:
        """Takes in a sum on its way up (even tags) or a result (odd ones).

        Raises:
            MeshBroken: The message is not what this member waits for.
        """
        number, is_result = divmod(tag - self._first_tag, 2)
        sender = self._ranks.index(rank)
        if not 0 <= number < len(self._knots):
            raise MeshBroken(f"member {rank} sent message {tag}, of which there are {self.num_tags}")
        if is_result:
            self._check(rank, data, self._route.size(number, is_coded=self._route.result_is_coded[number]))
            self._put(number, data)
            return
        knot = self._knots[number]
        self._check(rank, data, self._route.size(number, is_coded=self._route.is_coded(number, sender)))
        knot.heard[sender] = data
        if len(knot.heard) == len(knot.children):
            self._pass_on(number)

    def _check(self, rank: int, data: bytearray, wanted: int) -> None:
        if len(data) not in {0, wanted}:
            name = self._route.codec.name
            raise MeshBroken(f"member {rank} sent {len(data)} bytes of {name} where {wanted} were expected")

    def _pass_on(self, number: int) -> None:
        """Adds up what has come, and sends it on its way; at the root, hands out the result."""
        tree = self._route.plan.trees[number]
        parent = tree.up[self._me]
        is_root = parent == self._me
        coded = self._route.result_is_coded[number] if is_root else self._route.is_coded(number, self._me)
        knot = self._knots[number]
        heard, knot.heard, knot.children = knot.heard, {}, ()
        data: Tensor | None = None
        if all(heard.values()):
            if coded and not heard and self._momentum is not None:
                data = self._packed_momentum(number, self._momentum)
            else:
                data = self._packed(number, self._total(number, heard), is_coded=coded)
        if is_root:
            self._put(number, data)
        else:
            self._send(parent, 2 * number, data)

    def _total(self, number: int, heard: dict[int, bytearray]) -> Tensor:
        """Returns the sum of this member's values and of what it has heard.

        It lies where this exchange's losses will, if anywhere: each value is read before its loss is written.
        """
        tree = self._route.plan.trees[number]
        own = self._values[tree.first : tree.end]
        if not heard and self._momentum is None:
            return own
        start_s = time.perf_counter()
        total = torch.empty_like(own) if self._debt is None else self._debt.next[tree.first : tree.end]
        if self._momentum is None:
            total.copy_(own)
        else:
            share = self._momentum
            torch.mul(share.state[tree.first : tree.end], share.beta * share.weight, out=total)
            total.add_(own, alpha=(1.0 - share.beta) * share.gradient_weight)
        for sender in sorted(heard):  # whoever comes first, the bits are the same
            self._decode(number, heard[sender], total, is_coded=self._route.is_coded(number, sender), add=True)
        self._times.decode_s += time.perf_counter() - start_s
        return total

    def _packed(self, number: int, total: Tensor, *, is_coded: bool) -> Tensor | None:
        """Returns the message of a sum, what is owed included; ``None`` for one that holds an infinity or NaN."""
        owed, left = self._owed_and_left(number)
        start_s = time.perf_counter()
        try:
            if not is_coded:
                if owed is not None and left is not None:
                    total = total + owed
                    left.zero_()
                return total.contiguous().view(torch.uint8)
            message = self._room(number)
            self._route.layouts[number].encode(self._route.codec, total, owed, left, message)
        except BadValues:
            return None
        else:
            return message
        finally:
            self._times.encode_s += time.perf_counter() - start_s

    def _packed_momentum(self, number: int, share: MomentumShare) -> Tensor | None:
        """Returns the message of this member's part of the momentum alone, made and encoded in one pass."""
        tree = self._route.plan.trees[number]
        owed, left = self._owed_and_left(number)
        assert owed is not None
        assert left is not None
        message = self._room(number)
        start_s = time.perf_counter()
        try:
            self._route.layouts[number].encode_momentum(
                self._route.codec,
                self._values[tree.first : tree.end],
                share.state[tree.first : tree.end],
                owed,
                message,
                new_error=left,
                beta=share.beta,
                weight=share.weight,
                gradient_weight=share.gradient_weight,
            )
        except BadValues:
            return None
        finally:
            self._times.encode_s += time.perf_counter() - start_s
        return message

    def _owed_and_left(self, number: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Returns a tree's part of what is owed, and of what will be."""
        if self._debt is None:
            return None, None
        tree = self._route.plan.trees[number]
        return self._debt.owed[tree.first : tree.end], self._debt.next[tree.first : tree.end]

    def _room(self, number: int) -> Tensor:
        """Returns room for the message of an encoded sum."""
        return torch.empty(self._route.bytes[number], dtype=torch.uint8, device=self._values.device)

    def _put(self, number: int, data: Tensor | bytearray | None) -> None:
        """Puts a result in place, and passes it on to those who get it from here."""
        tree = self._route.plan.trees[number]
        below = [m for m, parent in enumerate(tree.down) if parent == self._me and m != self._me]
        for member in below:
            self._send(member, 2 * number + 1, data)
        out = self._values[tree.first : tree.end]
        if data is None or len(data) == 0:
            self.is_poisoned = True
            out.fill_(math.nan)
            if self._debt is not None:
                self._debt.next[tree.first : tree.end] = self._debt.owed[tree.first : tree.end]
        else:
            start_s = time.perf_counter()
            self._decode(number, data, out, is_coded=self._route.result_is_coded[number])
            self._times.decode_s += time.perf_counter() - start_s
        self._left -= 1

    def _decode(self, number: int, data: Tensor | bytearray, out: Tensor, *, is_coded: bool, add: bool = False) -> None:
        message = data if isinstance(data, Tensor) else torch.frombuffer(data, dtype=torch.uint8)
        message = message.to(out.device)
        if is_coded:
            self._route.layouts[number].decode(self._route.codec, message, out, add=add)
        elif add:
            out.add_(message.view(torch.float32))
        else:
            out.copy_(message.view(torch.float32))

    def _send(self, member: int, tag: int, data: Tensor | bytearray | None) -> None:
        if data is None:
            view = memoryview(b"")
        else:
            view = memoryview(data.cpu().numpy().data if isinstance(data, Tensor) else data)
        self._times.sent_bytes += len(view)
        self._work.others[self._ranks[member]].send(self._work.key, self._first_tag + tag, view)


class PlannedSum(MeshWork):
    """An all-reduce by a plan on its way; the result replaces ``values``."""

    def __init__(
        self,
        mesh: Mesh,
        key: Key,
        ranks: Sequence[int],
        values: Tensor,
        route: Route,
        *,
        debt: Debt | None = None,
        momentum: MomentumShare | None = None,
        times: StageTimes | None = None,
    ) -> None:
        """``debt`` is committed by its owner, unless :attr:`is_poisoned`."""
        super().__init__(mesh, key, ranks)
        self.codec = route.codec.name
        self.size_bytes = values.nbytes
        self.begun_s = time.monotonic()
        self.over_s: float | None = None
        self._run = PlanRun(self, ranks, values, route, debt=debt, momentum=momentum, times=times)

    @property
    def is_poisoned(self) -> bool:
        """Whether somebody had an infinity or NaN where values were to be encoded; the same on all members."""
        return self._run.is_poisoned

    def begin(self) -> None:
        """Sends what does not depend on others."""
        self._run.begin()
        self._note()

    def missing(self) -> frozenset[int]:
        """Returns the ranks from which messages are missing."""
        return self._run.missing()

    def take(self, rank: int, hop: int, data: bytearray) -> None:
        """Takes in a message."""
        self._run.take(rank, hop, data)
        self._note()

    def _note(self) -> None:
        self.is_over = self._run.is_over
        if self.is_over and self.over_s is None:
            self.over_s = time.monotonic()
