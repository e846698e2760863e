"""Write the problems, worked solutions and held-out problems of examples/own_pair."""

import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent
NUM_TRAIN = 60


def write(name: str, rows: list[dict[str, str]]) -> None:
    (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    rng = random.Random(0)
    numbers = list(range(10, 100))
    rng.shuffle(numbers)
    problems, solutions = [], []
    for number in numbers:
        text = f"Is {number} even?"
        answer, wrong = ("yes", "no") if number % 2 == 0 else ("no", "yes")
        problems.append({"id": f"even-{number}", "problem": text, "answer": answer})
        # Four right and one wrong: the agents are right at times, and rewards have something to teach.
        for written in [answer] * 4 + [wrong]:
            solutions.append({"problem": text, "solution": f"\\boxed{{{written}}}"})
    write("problems.jsonl", problems[:NUM_TRAIN])
    write("solutions.jsonl", solutions[: 5 * NUM_TRAIN])
    write("held_out.jsonl", problems[NUM_TRAIN:])


if __name__ == "__main__":
    main()
