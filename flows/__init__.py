"""Flows: experiments, evaluations and grids as Prefect runs, their schedule, their processes, the `hacpo` command."""

import atexit
import gc

# A training's imports make a million objects that live to the end. To look for garbage among them after every 700 new
# ones takes a sixth of the import's time, and to do so once more at the exit two seconds (docs/decisions.md).
gc.set_threshold(50_000)
atexit.register(gc.freeze)
