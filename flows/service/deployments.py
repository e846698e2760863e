"""Registers the work pool and the deployments of prefect.yaml; existing ones keep their settings."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

POOL = "hacpo"
DECLARATIONS = Path(__file__).with_name("prefect.yaml")


def connect(url: str, auth: str) -> SyncPrefectClient:
    """A client of the server at an address without /api; `auth` is "user:password", empty for none."""
    return SyncPrefectClient(f"{url}/api", auth_string=auth or None)


def deploy(client: SyncPrefectClient) -> None:
    """Register missing pool and deployments, and deployments whose declaration changed.

    Several processes may call this at once.
    """
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    for declaration in yaml.safe_load(DECLARATIONS.read_text(encoding="utf-8"))["deployments"]:
        _deploy(client, declaration)


def _deploy(client: SyncPrefectClient, declaration: dict[str, Any]) -> None:
    version = hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:12]
    name = str(declaration["name"])  # of the flow, too
    with suppress(ObjectNotFound):
        if client.read_deployment_by_name(f"{name}/{name}").version == version:
            return
    client.create_deployment(
        flow_id=client.create_flow_from_name(name),
        name=name,
        version=version,
        description=declaration.get("description"),
        entrypoint=declaration["entrypoint"].replace("/", ".").replace(".py:", "."),  # as a dotted module path
        parameters=declaration.get("parameters"),
        work_pool_name=declaration["work_pool"]["name"],
        job_variables={},  # explicitly, to replace those of an earlier version
        enforce_parameter_schema=False,
        schedules=[
            DeploymentScheduleCreate(
                schedule=CronSchedule(cron=schedule["cron"], timezone=schedule.get("timezone")),
                active=schedule.get("active", True),
                parameters=schedule.get("parameters", {}),
            )
            for schedule in declaration.get("schedules", [])
        ],
    )
