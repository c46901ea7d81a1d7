"""Random walks through all transitions, stale workers and lost time included: what must hold holds after every step."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from mcptasks.model import Claim, Guard, Hint, Place, Timer, new_task_id
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek, Stored
from tests.support.tasks import ANN, TERMINAL, asking, create, end, hint, question

pytestmark = pytest.mark.anyio

WALKS: Final = 30
STEPS: Final = 60
_TERMINAL: Final = {str(status) for status in TERMINAL}
_KEYS: Final = ("a", "b", "c")


class Walk:
    """One task, everybody who ever had to do with it, and what was seen of it so far."""

    def __init__(self, store: TaskStore, peek: Peek, chance: random.Random) -> None:
        self.store, self.peek, self.chance = store, peek, chance
        self.task_id = new_task_id()
        self.claims: list[Claim] = []
        self.messages: list[Hint] = [hint(self.task_id)]
        #: What happened, for whoever must understand a failure.
        self.path: list[str] = []
        self.seen: Stored | None = None
        self.moves: list[Callable[[], Awaitable[object]]] = [
            self.deliver,
            self.deliver,
            self.guess,
            self.renew,
            self.progress,
            self.ask,
            self.ask,
            self.sleep,
            self.sleep,
            self.park,
            self.answer,
            self.answer,
            self.cancel,
            self.step,
            self.finish,
            self.release,
            self.retry,
            self.lose_time,
            self.sweep,
            self.sweep,
        ]

    async def create(self) -> None:
        """The task exists."""
        limit = self.chance.choice([None, 60_000])
        policy = Policy(ttl_ms=600_000, max_attempts=2, time_limit_ms=limit, retry_ms=(1_000, 1, 3_600_000))
        await create(self.store, self.task_id, policy=policy, key=self.chance.choice([None, "k"]))

    def claim(self) -> Claim | None:
        """One of the runs that ever were, most likely the latest."""
        if not self.claims:
            return None
        return self.claims[-1] if self.chance.random() < 0.7 else self.chance.choice(self.claims)

    def sent(self, answer: Next) -> str:
        """The message that came out of a transition will be delivered, some day, perhaps twice."""
        if answer.hint is not None:
            self.messages.append(answer.hint)
        return answer.outcome

    async def deliver(self) -> str:
        """Any message that was ever sent arrives."""
        answer = await self.store.claim(self.chance.choice(self.messages), f"w{len(self.claims)}")
        if isinstance(answer, Claim):
            self.claims.append(answer)
            return "CLAIMED"
        return self.sent(answer)

    async def guess(self) -> str:
        """A message that nobody sent arrives."""
        answer = await self.store.claim(hint(self.task_id, self.chance.randint(0, 9), self.chance.randint(0, 6)), "wx")
        if isinstance(answer, Claim):
            self.claims.append(answer)
            return "CLAIMED"
        return self.sent(answer)

    async def renew(self) -> object:
        return await self.store.renew((claim.task_id, claim.token) for claim in self.claims)

    async def progress(self) -> object:
        claim = self.claim()
        return claim and await self.store.progress(claim, self.chance.choice(["x", "y"]), self.chance.random(), 1)

    async def ask(self) -> object:
        claim, keys = self.claim(), self.chance.sample(_KEYS, self.chance.randint(0, 3))
        text = "Sure?" if self.chance.random() < 0.9 else "Really?"
        guard = Guard(round=1, request_state="s", keys={}) if self.chance.random() < 0.2 else None
        asked = asking(*(question(key, text) for key in keys))
        hold = self.chance.random() < 0.4
        return claim and self.sent(await self.store.ask(claim, asked, guard=guard, hold=hold))

    async def sleep(self) -> object:
        claim, name = self.claim(), self.chance.choice(["sleep#1", "sleep#2", "sleep#3"])
        times = {"delay_ms": self.chance.choice([1_000, 3_600_000])} if self.chance.random() < 0.8 else {"until_ms": 1}
        timer = Timer(name=name, place=Place(0, 1), **times)
        return claim and self.sent(await self.store.sleep(claim, [timer], hold=self.chance.random() < 0.3))

    async def park(self) -> object:
        claim = self.claim()
        return claim and self.sent(await self.store.park(claim))

    async def answer(self) -> object:
        keys = self.chance.sample([*_KEYS, "never asked"], self.chance.randint(1, 3))
        owner = ANN if self.chance.random() < 0.9 else "bob"
        return self.sent(await self.store.answer(self.task_id, owner, dict.fromkeys(keys, self.chance.random())))

    async def cancel(self) -> object:
        owner = ANN if self.chance.random() < 0.15 else "bob"
        return await self.store.cancel(self.task_id, owner, "No more")

    async def step(self) -> object:
        claim = self.claim()
        return claim and await self.store.step(claim, self.chance.choice(["s#1", "s#2"]), str(self.chance.random()))

    async def finish(self) -> object:
        claim = self.claim()
        if self.chance.random() < 0.7:  # else every walk is a short one
            return None
        return claim and await end(self.store, claim, self.chance.choice(TERMINAL))

    async def release(self) -> object:
        claim = self.claim()
        return claim and self.sent(await self.store.release(claim))

    async def retry(self) -> object:
        claim = self.claim()
        return claim and self.sent(await self.store.retry(claim, "Busy", '{"code":1,"message":"Busy"}'))

    async def lose_time(self) -> object:
        if self.peek.field(self.task_id, "status") == "retrying":
            self.peek.put(self.task_id, due="1")
        if self.peek.field(self.task_id, "wake") is not None:
            self.peek.put(self.task_id, wake="1")
        index = self.chance.choice(["leases", "leases", "unsent", "countdowns"])
        if self.peek.score(index, self.task_id) is not None:
            self.peek.make_due(index, self.task_id)
            return index
        if self.chance.random() < 0.05 and self.peek.score("expiry", self.task_id) is not None:
            self.peek.expire(self.task_id)
            return "expiry"
        return None

    async def sweep(self) -> object:
        found = await self.store.sweep("me")
        assert found is not None
        return [self.sent(await self.store.reap(task_id)) for task_id in found]

    def check(self) -> None:
        """All that must hold, whatever happened."""
        now = self.peek.stored(self.task_id)
        task, before = now.task, self.seen
        status, held = task["status"], task.get("held") == "1"
        open_keys = {name for name in task if name.startswith("q:")}
        # 7. All keys of the task die together.
        assert len(set(now.expires.values())) == 1
        # Questions are counted right, and open while the task is parked or one of its timers has set it going.
        assert len(open_keys) == int(task.get("open", "0"))
        assert open_keys or status != "parked"
        assert not open_keys or status in ("parked", "queued", "running", "retrying")
        assert not {f"a:{name[2:]}" for name in open_keys} & set(now.journal), "an answered key is not open"
        # Where a task stands in the indexes follows from its status: nobody is forgotten, nothing is left over.
        expected = set[str]() if status in _TERMINAL else {"expiry"}
        if status in ("queued", "retrying", "sleeping") or (status == "parked" and not held and "wake" in task):
            expected.add("unsent")
        if status == "running" or held:
            expected.add("leases")
        if (status == "parked" and not held and task["look"] != "0") or status in ("retrying", "sleeping"):
            expected.add("countdowns")
        assert now.indexes.keys() - {"countdowns"} == expected - {"countdowns"}
        assert "countdowns" not in now.indexes or "countdowns" in expected
        assert (status in _TERMINAL) == ("reason" in task)
        if status not in _TERMINAL:
            assert ("worker" in task) == (status == "running" or held)
        # An acknowledged cancel is never left without somebody who hears of it.
        assert task.get("cancel") != "1" or status in _TERMINAL or "worker" in task
        if before is not None:
            for name in ("token", "attempt", "rev", "updated"):
                assert int(task[name]) >= int(before.task[name]), f"{name} goes back"
            assert before.journal.items() <= {**now.journal, "mrtr": before.journal.get("mrtr", "")}.items(), (
                "what was asked, answered or done stays"
            )
            if before.task["status"] in _TERMINAL:
                assert now == before, "4. terminal is final"
        self.seen = now


@covers("N5", "P30")
@pytest.mark.parametrize("seed", range(WALKS))
async def test_what_must_hold_holds_after_every_step(open_store: OpenStore, peek: Peek, seed: int) -> None:
    """Invariants 2, 3, 4, 6 and 7, in orders of events that nobody would write down."""
    walk = Walk(open_store(countdowns_ms=(2_000, 5_000)), peek, random.Random(seed))
    await walk.create()
    for _ in range(STEPS):
        move = walk.chance.choice(walk.moves)
        walk.path.append(f"{move.__name__}: {await move()}")
        try:
            walk.check()
        except AssertionError as broken:
            raise AssertionError(f"{broken}\nafter:\n" + "\n".join(walk.path)) from broken
