"""Experiments, evaluations and grids as Prefect flow runs; their queue and processes; the `hacpo` command."""
