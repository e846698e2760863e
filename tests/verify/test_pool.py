"""The pool keeps its promises whatever the answers and whoever kills its workers."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hacpo_core.errors import VerificationError
from hacpo_core.records import Gold
from hacpo_core.verify.pool import VerifierPool
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

HANGS = r"\boxed{9^{9^{9^9}}}"
"""sympy evaluates this tower; it does not end."""

LONG_ENOUGH_S = 60.0


def open_here() -> set[str]:
    """Pipes and deleted files, which are what a pool opens; threads of tests before this one may open other things."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("pipe:") or name.endswith("(deleted)")}


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    this = psutil.Process()
    children, opened = set(this.children(recursive=True)), open_here()
    yield
    assert set(this.children(recursive=True)) <= children
    assert open_here() <= opened


def boxed(*answers: str) -> list[str]:
    return [rf"\boxed{{{answer}}}" for answer in answers]


def workers(of: int | None = None) -> list[psutil.Process]:
    """Living workers of a process, else of this one."""
    children = psutil.Process(of).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and is_worker(child)]


def is_worker(process: psutil.Process) -> bool:
    return "hacpo_core.verify.worker" in process.cmdline()


def wait_until_busy(worker: psutil.Process) -> None:
    before = worker.cpu_times().user
    wait_until(lambda: worker.cpu_times().user > before + 0.3)


def test_verdicts_come_in_the_order_of_the_texts() -> None:
    texts = [*boxed("1", "2", r"\frac{6}{2}", "x"), "no answer", *boxed("2")]
    with VerifierPool(num_workers=2, timeout_s=20, memory_mb=512, style="boxed") as pool:
        verdicts = pool.verify(texts, ["1", "3", "3", "2", "7", "3"])
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "correct", "wrong", "wrong", "wrong"]
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert [verdict.extracted for verdict in verdicts] == ["1", "2", r"\frac{6}{2}", "x", None, "2"]
    assert all(verdict.reason == "" for verdict in verdicts)


def test_the_same_letters_need_no_worker() -> None:
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        verdicts = pool.verify([*boxed("27", " 5 "), "none"], ["$27$", "5", "5"])
        assert workers() == []
    assert [verdict.status for verdict in verdicts] == ["correct", "correct", "wrong"]


def test_whole_numbers_need_no_worker_unless_others_would_do() -> None:
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        verdicts = pool.verify(boxed("26", "027", "-27", "2" * 1_900), ["27", "27", "27", "27"])
        assert workers() == []
        near = pool.verify(boxed("26", "25"), [Gold("27", tolerance=1.0)] * 2)
    assert [verdict.status for verdict in verdicts] == ["wrong", "correct", "wrong", "wrong"]
    assert [verdict.status for verdict in near] == ["correct", "wrong"]


def test_a_pair_is_compared_once_and_then_comes_from_the_cache() -> None:
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        first = pool.verify(boxed("1/2", "1/2", "3"), ["0.5", "0.5", "4.5"])
        second = pool.verify(boxed("1/2", "3"), ["0.5", "4.5"])
    assert first[0].seconds > 0.0 and first[1].seconds == 0.0
    assert [verdict.status for verdict in second] == ["correct", "wrong"]
    assert [verdict.seconds for verdict in second] == [0.0, 0.0]


def test_the_cache_drops_what_is_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hacpo_core.verify.pool.CACHE_ENTRIES", 2)
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        pool.verify(boxed("1/2", "1/3", "1/4"), ["0.5", "0.5", "0.5"])
        first, last = pool.verify(boxed("1/2", "1/4"), ["0.5", "0.5"])
    assert first.seconds > 0.0 and last.seconds == 0.0


def test_a_hanging_answer_is_unscored_at_its_limit_and_never_cached() -> None:
    with VerifierPool(num_workers=1, timeout_s=3.0, memory_mb=1024, style="boxed") as pool:
        for attempt in (1, 2):
            hung, after = pool.verify([HANGS, *boxed(f"{attempt}/3")], ["27", "7"])
            assert (hung.status, hung.reward, hung.reason) == ("unscored", None, "timeout")
            assert hung.seconds >= 3.0
            assert after.status == "wrong"


def test_the_start_of_a_worker_does_not_count_as_time_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with VerifierPool(num_workers=1, timeout_s=3, memory_mb=512, style="boxed") as pool:
        (verdict,) = pool.verify(boxed("1/2"), ["0.5"])
    assert verdict.status == "correct"


def test_hostile_text_ends_within_the_limit_and_is_not_correct() -> None:
    boxes = {
        *("{" * 10_000 + "1" + "}" * 10_000, "{" * 900 + "1" + "}" * 900, "\\frac{1}{" * 151 + "2" + "}" * 151),
        *("(" * 900 + "1" + ")" * 900, "1+" * 500_000 + "1", "7" * 1_900, "\x00\x001\x00", "\ud800 \udfff 1"),
        *("1\n\r\u2028\x852", "%s %(x)s {0} `ls` $(ls) __import__('os')"),
    }
    pairs = [*((answer, "2") for answer in boxes), ("1/2", "9" * 1_000_000), ("1/2", "}{\\\x00\ud800"), ("1/2", "")]
    with VerifierPool(num_workers=1, timeout_s=5, memory_mb=512, style="auto") as pool:
        verdicts = pool.verify(
            [*boxed(*(answer for answer, _ in pairs)), *boxed("1/2")], [*(g for _, g in pairs), "0.5"]
        )
    assert [verdict.status for verdict in verdicts[:-1] if verdict.status == "correct"] == []
    assert verdicts[-1].status == "correct"


def test_an_answer_over_the_memory_limit_is_unscored() -> None:
    with VerifierPool(num_workers=1, timeout_s=60, memory_mb=192, style="boxed") as pool:
        big, after = pool.verify(boxed(r"2^{10^{10}}", "1/2"), ["27", "0.5"])
    assert (big.status, big.reward, big.reason) == ("unscored", None, "memory")
    assert after.status == "correct"


def test_a_worker_killed_in_the_middle_of_an_answer_changes_no_verdict() -> None:
    with VerifierPool(num_workers=1, timeout_s=3.0, memory_mb=1024, style="boxed") as pool:
        pool.verify(boxed("1/2"), ["0.5"])
        (worker,) = workers()

        def kill_it() -> None:
            wait_until_busy(worker)
            worker.kill()

        killer = threading.Thread(target=kill_it)
        killer.start()
        hangs, after = pool.verify([HANGS, *boxed("1/3")], ["27", "7"])
        killer.join()
        assert worker not in workers()
    assert (hangs.status, hangs.reward, hangs.reason) == ("unscored", None, "timeout"), "it is compared again"
    assert after.status == "wrong"


def test_workers_killed_while_idle_are_replaced_and_cost_no_answer() -> None:
    with VerifierPool(num_workers=2, timeout_s=20, memory_mb=512, style="boxed") as pool:
        pool.verify(boxed("1/2", "1/3", "1/4"), ["0.5", "7", "7"])
        killed = workers()
        assert len(killed) == 2
        for worker in killed:
            worker.kill()
        verdicts = pool.verify(boxed("1/5", "1/6", "1/7"), ["0.2", "7", "7"])
        assert not set(killed) & set(workers())
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "wrong"]


def test_two_threads_share_a_pool() -> None:
    results: dict[int, list[str]] = {}
    with VerifierPool(num_workers=2, timeout_s=20, memory_mb=512, style="boxed") as pool:

        def work(offset: int) -> None:
            numbers = range(offset, offset + 20)
            golds = [f"{number if number % 2 else -number}.0" for number in numbers]
            results[offset] = [verdict.status for verdict in pool.verify(boxed(*map(str, numbers)), golds)]

        threads = [threading.Thread(target=work, args=(offset,)) for offset in (1, 101)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The threads that called have ended: the workers that they caused to start have not.
        assert len(workers()) == 2
    assert results == {1: ["correct", "wrong"] * 10, 101: ["correct", "wrong"] * 10}


def test_a_worker_that_hangs_dies_with_its_parent() -> None:
    program = (
        "from hacpo_core.verify.pool import VerifierPool\n"
        "pool = VerifierPool(num_workers=1, timeout_s=600, memory_mb=1024, style='boxed')\n"
        "pool.verify([r'\\boxed{1/2}'], ['0.5'])\n"
        "print('ready', flush=True)\n"
        f"pool.verify([{HANGS!r}], ['27'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    (worker,) = workers(parent.pid)
    wait_until_busy(worker)  # it computes, and reads nothing
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_a_signal_to_a_whole_family_of_processes_leaves_the_end_of_a_worker_to_its_parent() -> None:
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        pool.verify(boxed("1/2"), ["0.5"])
        before = workers()
        before[0].terminate()
        assert [verdict.status for verdict in pool.verify(boxed("1/3"), ["7"])] == ["wrong"]
        assert workers() == before


def test_a_missing_library_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pint.py").write_text("raise ImportError('no module of that name')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = VerifierPool(num_workers=2, timeout_s=20, memory_mb=512, style="boxed")
    with pool, pytest.raises(VerificationError, match=r"no module of that name.*pip install sympy pint"):
        pool.verify(boxed("1/2"), ["0.5"])


def test_ctrl_c_ends_the_comparison_and_leaves_no_reply_for_the_next_call() -> None:
    program = (
        "import os, signal, threading\n"
        "from hacpo_core.verify.pool import VerifierPool\n"
        "from tests.verify.test_pool import wait_until_busy, workers\n"
        "def press(worker):\n"
        "    wait_until_busy(worker)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with VerifierPool(num_workers=1, timeout_s=600, memory_mb=1024, style='boxed') as pool:\n"
        "    pool.verify([r'\\boxed{1/2}'], ['0.5'])\n"
        "    threading.Thread(target=press, args=workers()).start()\n"
        "    try:\n"
        f"        pool.verify([{HANGS!r}, r'\\boxed{{1/4}}'], ['27', '0.25'])\n"
        "    except KeyboardInterrupt:\n"
        "        print(pool.verify([r'\\boxed{1/5}'], ['7'])[0].status)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * LONG_ENOUGH_S, check=True)
    assert ended.stdout == b"wrong\n"


def test_bad_arguments_and_a_closed_pool_are_named() -> None:
    pool = VerifierPool(num_workers=1, timeout_s=1, memory_mb=512, style="boxed")
    with pool, pytest.raises(ValueError, match="zip"):
        pool.verify(["a"], [])
    with pytest.raises(VerificationError, match="closed"):
        pool.verify(boxed("1"), ["1"])


def test_unit_and_tolerance_travel_to_the_worker() -> None:
    golds = [Gold("166", unit="cm^2"), Gold("4.2", tolerance=0.1), Gold("-2,-2"), Gold("4.2")]
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="plain") as pool:
        verdicts = pool.verify(["166 cm^2", "4.3", "-2", "4.3"], golds)
    assert [verdict.status for verdict in verdicts] == ["correct", "correct", "wrong", "wrong"]


def test_style_of_a_call_beats_the_pools() -> None:
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=512, style="boxed") as pool:
        assert [v.status for v in pool.verify(["so 5"], ["5"])] == ["wrong"]
        assert [v.status for v in pool.verify(["so 5"], ["5"], style="last_number")] == ["correct"]


@pytest.mark.parametrize("equality", ["math_verify", "normalised"])
def test_box_inside_the_reasoning_counts_only_without_its_marks(equality: str) -> None:
    texts = [r"<think>\boxed{4}</think>\boxed{5}", r"<think>\boxed{4}", r"\boxed{4}</think>5", r"\boxed{4}"]
    found = {}
    for end, is_required in (("", False), ("</think>", False), ("</think>", True)):
        with VerifierPool(
            num_workers=1,
            timeout_s=20,
            memory_mb=512,
            style="boxed",
            equality=equality,  # type: ignore[arg-type]
            reasoning_end=end,
            requires_reasoning=is_required,
        ) as pool:
            found[end, is_required] = [verdict.status for verdict in pool.verify(texts, ["4"] * 4)]
            assert pool.unreadable(["4"]) == []
    assert found["", False] == ["wrong", "correct", "correct", "correct"]
    assert found["</think>", False] == ["wrong", "wrong", "wrong", "correct"]
    assert found["</think>", True] == ["wrong"] * 4
