"""The deployments that `pretrieve register` has registered; a server may have others, too."""

from __future__ import annotations

from typing import Any

from flows.prefect_server.api import PAGE
from tasks.runtime.prefect_task import TAG


def our_deployments(client: Any) -> list[Any]:
    """Return all deployments with our tag. The server answers in pages."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    deployments: list[Any] = []
    while page := client.read_deployments(deployment_filter=ours, limit=PAGE, offset=len(deployments)):
        deployments += page
    return deployments
