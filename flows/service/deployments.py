"""Registers the work pool and the deployment of prefect.yaml."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists

POOL = "hacpo"
DECLARATIONS = Path(__file__).with_name("prefect.yaml")


def connect(url: str, auth: str) -> SyncPrefectClient:
    """A client of the server at an address without /api; `auth` is "user:password", empty for none."""
    return SyncPrefectClient(f"{url}/api", auth_string=auth or None)


def deploy(client: SyncPrefectClient) -> None:
    """Register pool and deployment, or bring them to their declaration. Several processes may call this at once."""
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    for declaration in yaml.safe_load(DECLARATIONS.read_text(encoding="utf-8"))["deployments"]:
        name = str(declaration["name"])  # of the flow, too
        client.create_deployment(
            flow_id=client.create_flow_from_name(name),
            name=name,
            description=declaration["description"],
            entrypoint=declaration["entrypoint"].replace("/", ".").replace(".py:", "."),  # as a dotted module path
            work_pool_name=declaration["work_pool"]["name"],
            job_variables={},  # explicitly, to replace those of an earlier version
            enforce_parameter_schema=False,
        )
