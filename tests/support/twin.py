"""A task in the store and its `Life` beside it; whatever happens to both, they must agree on everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcptasks.model import Submission, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.callers import Created
from mcptasks.store.store import TaskStore
from tests.support.life import OWNER, Answer, Life, Terms
from tests.support.moves import QUEUE, TOOL, Move, Pass, Ripen, RunOut, Script
from tests.support.sight import differences, look


def terms_of(settings: Settings, policy: Policy) -> Terms:
    """The terms under which a task of that policy lives in that store."""
    return Terms(
        lease_ms=settings.lease_ms,
        resend_ms=settings.resend_ms,
        countdowns_ms=settings.countdowns_ms,
        countdown_budget=settings.countdown_budget,
        questions_max=settings.questions_max,
        ttl_ms=None if policy.unlimited else policy.ttl_ms or settings.ttl_ms,
        max_attempts=policy.max_attempts,
        hard_limit_ms=policy.hard_limit_ms,
        retry_ms=policy.retry_ms,
        deferrals_ms=settings.deferrals_ms,
        artifacts_max=settings.artifacts_max,
        artifacts_total_max=settings.artifacts_total_max,
    )


class Twin:
    """Both of one task. Made by `create`."""

    def __init__(self, store: TaskStore, task_id: str, life: Life) -> None:
        self.store, self.task_id, self.life = store, task_id, life
        self._revision = 1

    @classmethod
    async def create(cls, store: TaskStore, policy: Policy, script: Script = (), *, others: int = 0) -> Twin:
        """A new task to which the script has happened, as far as it has the moments that pass there."""
        task_id, before = new_task_id(), await store.now_ms()
        call = Submission(tool=TOOL, arguments={}, protocol_version="2026-07-28")
        answer = await store.create(task_id, call, owner=OWNER, policy=replace(policy, queue=QUEUE))
        assert isinstance(answer, Created)
        sight = await look(store, task_id)
        twin = cls(store, task_id, Life(terms=terms_of(store.settings, policy), born=(before, sight.at), others=others))
        assert differences(twin.life, sight) == []
        for move in script:
            if twin.possible(move):
                await twin.happen(move)
        return twin

    def possible(self, move: Move) -> bool:
        """A moment that the task has not got cannot pass."""
        if isinstance(move, Pass):
            return move.index in self.life.places
        if isinstance(move, RunOut):
            return move.key in self.life.limits
        return not isinstance(move, Ripen) or getattr(self.life, move.field) is not None

    async def happen(self, move: Move) -> Answer:
        """The move happened to both, and they agree."""
        self.life.shown = False
        before = await self._age()
        answer = await move.do(self.store, self.task_id)
        sight = await look(self.store, self.task_id)
        expected = move.expect(self.life, (before, sight.at))
        assert answer == expected, move
        assert differences(self.life, sight) == [], move
        if not self.life.gone:
            assert (sight.task["updated"] != "1") == self.life.shown, "lastUpdatedAt moves when a client sees a change"
            revision = int(sight.task["rev"])
            assert revision > self._revision if self.life.shown else revision >= self._revision
            self._revision = revision
        return answer

    async def _age(self) -> int:
        """The task was last updated long ago, so that its next update shows. Returns the store's clock."""
        client: Any = self.store.connection.client
        async with client.pipeline(transaction=False) as pipe:
            if not self.life.gone:
                pipe.hset(self.store.keys.task(self.task_id), "updated", 1)
            pipe.time()
            *_, (seconds, micros) = await pipe.execute()
        return int(seconds) * 1000 + int(micros) // 1000
