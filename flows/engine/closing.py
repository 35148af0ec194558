"""Make Prefect refuse runs of a work pool with unknown parameters, which `prefect deploy` allows."""

from __future__ import annotations

import asyncio

from slackwater.flows.command import say
from slackwater.flows.engine.serving import DEPLOYMENTS, full_name


async def close_deployments() -> list[str]:
    """Close the schemas of our deployments on the server; return the names of those that it has."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import ObjectNotFound

    closed: list[str] = []
    async with get_client() as client:
        for name in map(full_name, DEPLOYMENTS):
            try:
                known = await client.read_deployment_by_name(name)
            except ObjectNotFound:
                continue
            schema = {**(known.parameter_openapi_schema or {}), "additionalProperties": False}
            await client.update_deployment(known.id, DeploymentUpdate(parameter_openapi_schema=schema))
            closed.append(name)
    return closed


if __name__ == "__main__":
    say(f"unknown parameters are refused by {', '.join(asyncio.run(close_deployments())) or 'no deployment'}")
