"""`make soak`: disturb trainings and grids at random for SOAK_MINUTES, and compare them with undisturbed ones.

SOAK_PARALLEL rounds of different kinds run at once, since many faults are waits. A round makes a runs folder, starts a
command, and disturbs its processes and files. A command that ends without success is called again, as a person would.
When it has ended with success, the folder must hold what an undisturbed one holds, to the bit, and nothing else may be
left. SOAK_SEED chooses the faults; when they hit depends on the machine as well. SOAK_ONLY keeps the kinds of rounds
whose name holds these words. Once the time is over, no fault is begun; a point that was armed before may still be hit.

    python -m tests.soak.campaign RESULT.json
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.planning.compose import compose
from flows.runs.mlflow_store import prepare_store
from flows.service.prefect_server import server_environment
from flows.service.processes import home_of
from hacpo_core.placement.initial_model import InitialModel
from tests.conftest import copy_database, write_small_pair
from tests.soak.faults import FAULTS
from tests.soak.judge import problems_of, problems_of_end, read_reference
from tests.soak.setups import SETUPS, Setup
from tests.soak.site import Call, Site, restore

FAULTS_IN_A_ROUND = (12, 30)
SHORTEST_PAUSE_S = 0.2
LONGEST_PAUSES_S = (5.0, 20.0)
"""between faults, chosen for each round: some faults hit what is just starting, others what has come far"""
PARALLEL = 3
ROUND_LIMIT_S = 1500.0
"""a round that has not ended by then counts as a problem"""
METHODS = ("naive", "hacpo")
POINTS = {"rename": 60, "fsync": 60, "flock": 20, "write": 60, "commit": 40, "checkpoint": 5, "request": 60}
"""calls before or after which a process may kill itself, and the highest number of the call; see `hook`"""


@dataclass
class Round:
    """What was done in a round, and what was wrong at its end."""

    kind: str
    seed: int
    faults: list[dict[str, Any]] = field(default_factory=list)
    num_calls: int = 0
    seconds: float = 0.0
    recovery_s: float = 0.0
    """from the last fault until the last command ended with success"""
    messages: list[str] = field(default_factory=list)
    """what commands said that ended by themselves without success"""
    problems: list[str] = field(default_factory=list)


class Campaign:
    """Small models, what undisturbed experiments give, and the rounds."""

    def __init__(self, folder: Path, *, deadline: float) -> None:
        """
        Args:
            folder: of everything that it writes.
            deadline: on the monotonic clock; no fault is begun later.
        """
        self._folder, self._deadline, self._making = folder, deadline, threading.Lock()
        write_small_pair(folder)
        pair = folder / "small.yaml"
        for name, agent in compose(str(pair), "hacpo").pair.agents.items():
            InitialModel(name, agent, folder / "models").make()
        grid = (
            f"title: small\nentries: [{{pairs: [{pair}], methods: [{', '.join(METHODS)}]}}]\nreport: {{table: plain}}\n"
        )
        (folder / "grid.yaml").write_text(grid, encoding="utf-8")
        self._pair, self._grid = str(pair), str(folder / "grid.yaml")
        self._databases = folder / "databases"
        self._make_databases()
        self._expected: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}

    def arguments(self, setup: Setup, site: Site, method: str = "hacpo") -> list[str]:
        """Command line of a kind of round."""
        if setup.command == "grid":
            return ["grid", self._grid, "--runs-dir", str(site.runs_dir), "--run", "all", *setup.words]
        own = [f"runtime.runs_dir={site.runs_dir}", f"runtime.runner={setup.runner}"]
        return ["train", self._pair, method, *own, *setup.words]

    def _make_databases(self) -> None:
        """Empty databases of Prefect and MLflow, whose migration takes most of a round's time."""
        home = home_of(self._databases)
        home.mkdir(parents=True)
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(command, env=server_environment(home, port=0, auth=""), check=True, capture_output=True)
        prepare_store(f"sqlite:///{self._databases / 'mlflow.db'}")

    def _site(self, runs_dir: Path, setup: Setup) -> Site:
        site = Site(runs_dir, self._folder / "models", python=setup.python, has_clock=setup.has_clock)
        home_of(runs_dir).mkdir()
        for name in ("mlflow.db", "prefect/prefect.db"):
            copy_database(self._databases / name, runs_dir / name)
        return site

    def _reference(self, setup: Setup) -> dict[str, dict[str, Any]]:
        """What the experiments of a kind of round give when nothing disturbs them, by id."""
        plain = replace(setup, command="train", runner="direct")
        if setup.words not in self._expected:
            site = self._site(self._folder / f"reference-{len(self._expected)}", plain)
            try:
                for method in METHODS if setup.words == SETUPS[0].words else METHODS[-1:]:
                    command = site.start(self.arguments(plain, site, method))
                    if command.process.wait(ROUND_LIMIT_S) != 0:
                        raise RuntimeError(f"fails undisturbed: {command.last_lines(3)}")
                self._expected[setup.words] = read_reference(site)
            finally:
                site.remove()
        found = self._expected[setup.words]
        return {name: value for name, value in found.items() if setup.command == "grid" or "-hacpo-" in name}

    def run(self, setup: Setup, seed: int) -> Round:
        """One round; an error of the campaign itself is a problem of the round, and ends no other."""
        outcome = Round(setup.name, seed)
        try:
            self._run(setup, outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rounds go on
            outcome.problems.append(f"the campaign failed: {error!r}")
        return outcome

    def _run(self, setup: Setup, outcome: Round) -> None:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        with self._making:
            expected = self._reference(setup)
            site = self._site(folder / "runs", setup)
        begun = time.monotonic()
        try:
            if self._disturb(setup, site, outcome, random.Random(outcome.seed)):
                outcome.problems += problems_of(site, expected)
            site.stop()
            outcome.problems += site.leftovers()
            if outcome.problems:
                shutil.copytree(home_of(site.runs_dir), folder / "services")
        finally:
            site.remove()
        outcome.seconds = time.monotonic() - begun
        if outcome.problems:
            print(*outcome.problems, f"output: {folder}", sep="\n", flush=True)
        else:
            shutil.rmtree(folder)

    def _disturb(self, setup: Setup, site: Site, outcome: Round, rng: random.Random) -> bool:
        """Run the round's commands, each until it has ended with success, and disturb them meanwhile.

        Returns:
            whether all ended in time.
        """
        begun = last = time.monotonic()
        num_faults = rng.randint(*FAULTS_IN_A_ROUND)
        names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
        pause_s = SHORTEST_PAUSE_S, rng.choice(LONGEST_PAUSES_S)
        commands: list[Call | None] = [None] * setup.num_commands
        left, fired = setup.num_commands, set[Path]()
        pause_until = time.monotonic() + rng.uniform(*pause_s)
        while left:
            has_faults = len(outcome.faults) < num_faults and time.monotonic() < self._deadline
            for place, command in enumerate(commands):
                if command is not None and command.process.poll() in (None, 0):
                    continue
                if command is not None:
                    self._end_of(setup, site, command, outcome)
                call, most = rng.choice(list(POINTS.items()))
                point = f"{call}:{rng.choice(('before', 'after'))}:{rng.randint(1, most)}" if has_faults else ""
                commands[place] = site.start(self.arguments(setup, site), point=point)
                outcome.num_calls += 1
            if time.monotonic() - begun > ROUND_LIMIT_S:
                outcome.problems.append(f"not ended after {ROUND_LIMIT_S:.0f} s")
                return False
            for file in [file for file in site.points if file not in fired and file.exists()]:
                if point := file.read_text(encoding="utf-8"):
                    fired.add(file)
                    last = time.monotonic()
                    outcome.faults.append({"fault": "SIGKILL at a point", "victim": point, "at_s": last - begun})
            if has_faults and time.monotonic() > pause_until:
                name = rng.choices(names, weights)[0]
                for victim in FAULTS[name][0](site, rng):
                    last = time.monotonic()
                    outcome.faults.append({"fault": name, "victim": victim, "at_s": last - begun})
                pause_until = time.monotonic() + rng.uniform(*pause_s)
            time.sleep(0.05)
            done = [command for command in commands if command is not None and command.process.poll() == 0]
            left -= len(done)
            commands = [command for command in commands if command not in done]
        outcome.recovery_s = time.monotonic() - last
        return True

    def _end_of(self, setup: Setup, site: Site, command: Call, outcome: Round) -> None:
        """Note what a command said that ended without success, unless it was killed, and follow its advice."""
        code, lines = command.process.returncode, command.last_lines()
        if code == -signal.SIGKILL or (code == -signal.SIGTERM and command.process.pid in site.ending):
            return
        sentences = [line[line.find("hacpo: ") :] for line in lines if "hacpo: " in line]  # may follow a progress bar
        outcome.messages += (sentences or lines)[-1:]
        outcome.problems += problems_of_end(code, lines, may_abort=setup.may_abort)
        restore(site.torn, "\n".join(lines))


def next_setup(setups: Sequence[Setup], done: Sequence[str], running: Sequence[Setup]) -> Setup | None:
    """The kind with the fewest rounds so far, another than those that run."""
    free = [setup for setup in setups if setup not in running]
    return min(free, key=lambda setup: done.count(setup.name), default=None)


def main() -> None:
    """Run rounds of all kinds in turn until the time is over; exit code 1 if one found a problem."""
    result = Path(sys.argv[1])
    only = os.environ.get("SOAK_ONLY", "")
    minutes, seed = float(os.environ.get("SOAK_MINUTES", "60")), int(os.environ.get("SOAK_SEED", "0"))
    parallel = int(os.environ.get("SOAK_PARALLEL", str(PARALLEL)))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    folder = Path(tempfile.mkdtemp(prefix="hacpo-soak-"))
    print(f"seed {seed}, {minutes:g} minutes, {parallel} rounds at once, in {folder}", flush=True)
    value: dict[str, Any] = {"commit": commit, "seed": seed, "minutes": minutes, "cores": os.cpu_count(), "rounds": []}
    begun = time.monotonic()
    deadline = begun + 60.0 * minutes
    setups = [setup for setup in SETUPS if not setup.obstacle() and only in setup.name]
    for setup in SETUPS:
        if setup.obstacle():
            print(f"no rounds of {setup.name}: {setup.obstacle()}", flush=True)
    rng, running, kinds = random.Random(seed), dict[Future[Round], Setup](), list[str]()
    num_problems = 0
    campaign = Campaign(folder, deadline=deadline)
    with ThreadPoolExecutor(parallel) as threads:
        while running or time.monotonic() < deadline:
            while len(running) < parallel and time.monotonic() < deadline:
                chosen = next_setup(setups, kinds, list(running.values()))
                if chosen is None:
                    break
                kinds.append(chosen.name)
                running[threads.submit(campaign.run, chosen, rng.randrange(2**32))] = chosen
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                outcome = ended.result()
                num_problems += len(outcome.problems)
                numbers = f"{len(outcome.faults)} faults, {outcome.num_calls} calls, {outcome.seconds:.0f} s"
                print(f"{outcome.kind}: {numbers}, {'NOT EQUAL' if outcome.problems else 'equal'}", flush=True)
                value["rounds"].append(asdict(outcome))
                value["seconds"] = time.monotonic() - begun
                result.write_text(json.dumps(value, indent=1), encoding="utf-8")
    if not num_problems:
        shutil.rmtree(folder)
    sys.exit(num_problems > 0)


if __name__ == "__main__":
    main()
