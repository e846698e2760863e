"""`make soak`: disturb trainings and grids at random for SOAK_MINUTES, and compare them with undisturbed ones.

A round makes a runs folder, starts a command, and disturbs its processes and files. A command that ends without success
is called again, as a person would. When it has ended with success, the folder must hold what an undisturbed one holds,
to the bit, and nothing else may be left. SOAK_SEED chooses the faults; when they hit depends on the machine as well.
SOAK_ONLY keeps the kinds of rounds whose name holds these words.

    python -m tests.soak.campaign RESULT.json
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.planning.compose import compose
from flows.service.processes import home_of
from flows.service.server import server_environment
from hacpo_core.placement.agents import initial_folder
from hacpo_core.tracking import prepare_store
from tests.conftest import copy_database, write_small_pair
from tests.postgres import Postgres
from tests.soak.faults import FAULTS
from tests.soak.judge import problems_of, read_reference
from tests.soak.setups import SETUPS, Setup
from tests.soak.site import Site

FAULTS_IN_A_ROUND = (4, 10)
PAUSE_S = (0.5, 8.0)
ROUND_LIMIT_S = 900.0
"""a round that has not ended by then counts as a problem"""
METHODS = ("naive", "hacpo")
POINTS = [f"{call}:{when}" for call in ("rename", "fsync", "pwrite", "flock") for when in ("before", "after")]


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
    """last lines of commands that ended by themselves without success"""
    problems: list[str] = field(default_factory=list)


class Campaign:
    """Small models, what undisturbed experiments give, and the rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        write_small_pair(folder)
        pair = folder / "small.yaml"
        for name, agent in compose(str(pair), "hacpo").pair.agents.items():
            initial_folder(name, agent, models_dir=folder / "models")
        grid = (
            f"title: small\nentries: [{{pairs: [{pair}], methods: [{', '.join(METHODS)}]}}]\nreport: {{table: plain}}\n"
        )
        (folder / "grid.yaml").write_text(grid, encoding="utf-8")
        self._pair, self._grid = str(pair), str(folder / "grid.yaml")
        self._databases = folder / "databases"
        self._make_databases()
        self._postgres: Postgres | None = None
        self._expected: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}

    def arguments(self, setup: Setup, site: Site, method: str = "hacpo") -> list[str]:
        """Command line of a kind of round."""
        if setup.command == "grid":
            return ["grid", self._grid, "--runs-dir", str(site.runs_dir), "--run", "all", *setup.words]
        own = [f"runtime.runs_dir={site.runs_dir}", f"runtime.runner={setup.runner}"]
        uri = [f"tracking.uri={site.tracking_uri}"] if setup.has_postgres else []
        return ["train", self._pair, method, *own, *uri, *setup.words]

    def close(self) -> None:
        """End the database server."""
        if self._postgres is not None:
            self._postgres.close()

    def _make_databases(self) -> None:
        """Empty databases of Prefect and MLflow, whose migration takes most of a round's time."""
        home = home_of(self._databases)
        home.mkdir(parents=True)
        upgrade = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(upgrade, env=server_environment(home, port=0, auth=""), check=True, capture_output=True)
        prepare_store(f"sqlite:///{self._databases / 'mlflow.db'}")

    def _site(self, runs_dir: Path, *, has_postgres: bool = False) -> Site:
        if has_postgres and self._postgres is None:
            self._postgres = Postgres()
            self._postgres.sql("create database migrated")
            os.environ["PGPASSWORD"] = self._postgres.password
            prepare_store(f"postgresql+psycopg2://postgres@127.0.0.1:{self._postgres.port}/migrated")
        site = Site(runs_dir, self._folder / "models", postgres=self._postgres if has_postgres else None)
        home_of(runs_dir).mkdir()
        for name in ("mlflow.db", "prefect/prefect.db"):
            copy_database(self._databases / name, runs_dir / name)
        return site

    def _reference(self, setup: Setup) -> dict[str, dict[str, Any]]:
        """What the experiments of a kind of round give when nothing disturbs them, by id."""
        plain = replace(setup, command="train", runner="direct", has_postgres=False)
        if setup.words not in self._expected:
            site = self._site(self._folder / f"reference-{len(self._expected)}")
            try:
                for method in METHODS if setup.words == SETUPS[0].words else METHODS[-1:]:
                    command = site.start(self.arguments(plain, site, method))
                    assert command.wait(ROUND_LIMIT_S) == 0, site.last_lines()
                self._expected[setup.words] = read_reference(site)
            finally:
                site.remove()
        found = self._expected[setup.words]
        return {name: value for name, value in found.items() if setup.command == "grid" or "-hacpo-" in name}

    def run(self, setup: Setup) -> Round:
        """One round."""
        rng = random.Random(seed := self._rng.randrange(2**32))
        outcome = Round(setup.name, seed)
        expected = self._reference(setup)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        site = self._site(folder / "runs", has_postgres=setup.has_postgres)
        begun = time.monotonic()
        try:
            self._disturb(setup, site, outcome, rng)
            if not outcome.problems:
                outcome.problems += problems_of(site, expected)
            site.stop()
            outcome.problems += site.leftovers()
        finally:
            site.remove()
        outcome.seconds = time.monotonic() - begun
        if outcome.problems:
            print(*outcome.problems, f"output: {site.output}", sep="\n", flush=True)
        else:
            shutil.rmtree(folder)
        return outcome

    def _disturb(self, setup: Setup, site: Site, outcome: Round, rng: random.Random) -> None:
        """Run the round's commands, each until it has ended with success, and disturb them meanwhile."""
        begun = last = time.monotonic()
        num_faults = rng.randint(*FAULTS_IN_A_ROUND)
        names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
        fired = Path(f"{site.runs_dir}.fired")
        commands: list[subprocess.Popen[bytes] | None] = [None] * setup.num_commands
        left = setup.num_commands
        pause_until = time.monotonic() + rng.uniform(*PAUSE_S)
        while left:
            for place, command in enumerate(commands):
                if command is not None and command.poll() in (None, 0):
                    continue
                if command is not None and command.returncode != -signal.SIGKILL:
                    outcome.messages += site.last_lines(1)
                    if "Traceback" in "".join(site.last_lines(40)):
                        outcome.messages.append("(with a traceback)")
                point = f"{rng.choice(POINTS)}:{rng.randint(1, 60)}" if len(outcome.faults) < num_faults else ""
                commands[place] = site.start(self.arguments(setup, site), point=point)
                outcome.num_calls += 1
            if time.monotonic() - begun > ROUND_LIMIT_S:
                outcome.problems.append(f"not ended after {ROUND_LIMIT_S:.0f} s")
                return
            if fired.exists() and (point := fired.read_text(encoding="utf-8")):
                fired.unlink()
                last = time.monotonic()
                outcome.faults.append({"fault": "SIGKILL at a point", "victim": point, "at_s": last - begun})
            if len(outcome.faults) < num_faults and time.monotonic() > pause_until:
                name = rng.choices(names, weights)[0]
                victim = FAULTS[name][0](site, rng)
                if victim:
                    last = time.monotonic()
                    outcome.faults.append({"fault": name, "victim": victim, "at_s": last - begun})
                pause_until = time.monotonic() + rng.uniform(*PAUSE_S)
            time.sleep(0.05)
            done = [command for command in commands if command is not None and command.poll() == 0]
            left -= len(done)
            commands = [command for command in commands if command not in done]
        outcome.recovery_s = time.monotonic() - last


def main() -> None:
    """Run rounds of all kinds in turn until the time is over; exit code 1 if one found a problem."""
    result = Path(sys.argv[1])
    only = os.environ.get("SOAK_ONLY", "")
    minutes, seed = float(os.environ.get("SOAK_MINUTES", "60")), int(os.environ.get("SOAK_SEED", "0"))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    folder = Path(tempfile.mkdtemp(prefix="hacpo-soak-"))
    print(f"seed {seed}, {minutes:g} minutes, in {folder}", flush=True)
    rounds = list[Round]()
    deadline = time.monotonic() + 60.0 * minutes
    setups = [setup for setup in SETUPS if not setup.obstacle() and only in setup.name]
    for setup in SETUPS:
        if setup.obstacle():
            print(f"no rounds of {setup.name}: {setup.obstacle()}", flush=True)
    with closing(Campaign(folder, seed)) as campaign:
        while time.monotonic() < deadline:
            outcome = campaign.run(setups[len(rounds) % len(setups)])
            rounds.append(outcome)
            print(
                f"{outcome.kind}: {len(outcome.faults)} faults, {outcome.num_calls} calls, {outcome.seconds:.0f} s, "
                f"{'equal' if not outcome.problems else 'NOT EQUAL'}",
                flush=True,
            )
            value = {"commit": commit, "seed": seed, "minutes": minutes, "cores": os.cpu_count()}
            value["rounds"] = [asdict(one) for one in rounds]
            result.write_text(json.dumps(value, indent=1), encoding="utf-8")
    if not any(outcome.problems for outcome in rounds):
        shutil.rmtree(folder)
    sys.exit(any(outcome.problems for outcome in rounds))


if __name__ == "__main__":
    main()
