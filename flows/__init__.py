"""Flows: experiments, evaluations and grids as Prefect runs, their schedule, their processes, the `hacpo` command."""
