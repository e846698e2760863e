"""Flows: experiments, evaluations and grids as Prefect runs, their schedule, their processes, the `hacpo` command."""

import gc

# Imports make a million objects that live on. With Python's 700 a sixth of the eight seconds that a training's imports
# take on two cores is garbage collection that finds nothing (docs/performance.md).
gc.set_threshold(50_000)
