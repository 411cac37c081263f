"""Programs that the agent asks something: their last line, or what became of them."""

import os
import sys

import pytest

from plait.agent.children import Answer, Children
from plait.agent.device_tests import read_finding

LIMIT_S = 30.0


async def _asked(code: str, limit_s: float = LIMIT_S) -> Answer:
    children = Children()
    answer = await children.ask([sys.executable, "-S", "-c", code], os.environ, limit_s)
    assert not children.pids
    return answer


async def test_the_last_line_is_the_answer() -> None:
    assert await _asked("print('noise'); print('{}')") == Answer(line="{}")


@pytest.mark.parametrize(
    ("code", "limit_s", "why"),
    [
        ("import sys; sys.stderr.write('oh\\n'); sys.exit(3)", LIMIT_S, "ended with status 3; it last said: oh"),
        ("import os; os.abort()", LIMIT_S, "crashed (SIGABRT)"),
        ("pass", LIMIT_S, "ended with status 0"),
        ("import time; time.sleep(600)", 0.05, "no answer within 0.05 s, stopped"),
        (
            "import os, time; os.fork() or time.sleep(600)",
            LIMIT_S,
            "ended with status 0",
        ),
    ],
)
async def test_what_became_of_one_that_gave_no_answer(code: str, limit_s: float, why: str) -> None:
    answer = await _asked(code, limit_s)
    assert answer == Answer(line=None, why=why)


async def test_one_that_cannot_be_started() -> None:
    answer = await Children().ask(["/nowhere/program"], {}, LIMIT_S)
    assert answer.line is None
    assert answer.why.startswith("could not be started")


@pytest.mark.parametrize(
    ("answer", "passed", "detail"),
    [
        (Answer(line='{"passed": true, "detail": "well"}'), True, "well"),
        (Answer(line='{"passed": false, "detail": "broken"}'), False, "broken"),
        (Answer(line="Traceback"), False, "the test said 'Traceback'"),
        (Answer(line="[]"), False, "the test said '[]'"),
        (Answer(line=None, why="no answer within 1 s, stopped"), False, "no answer within 1 s, stopped"),
        (Answer(line=None, why="crashed (SIGSEGV)"), False, "the test crashed (SIGSEGV)"),
    ],
)
def test_what_a_tests_answer_means(answer: Answer, *, passed: bool, detail: str) -> None:
    assert read_finding(answer) == (passed, detail)
