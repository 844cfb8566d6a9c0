"""`envtorch k8s render`: what would be made in a cluster, for `kubectl` or for review."""

import json
from typing import Annotated

import typer

from envtorch.errors import EnvTorchError

__all__ = ["k8s"]

k8s = typer.Typer(name="k8s", help="Servers in a Kubernetes cluster.", no_args_is_help=True)


@k8s.callback()
def _group() -> None:
    """A group, even of one command: more will come."""


@k8s.command()
def render(
    image: Annotated[str, typer.Argument(help="The environment's image.")],
    name: Annotated[str | None, typer.Option(help="The server's name; by default one of its own.")] = None,
    replicas: Annotated[int, typer.Option(help="More than one makes a Deployment.")] = 1,
    namespace: Annotated[str | None, typer.Option()] = None,
    memory: Annotated[str | None, typer.Option(help="A quantity like 512Mi.")] = None,
    cpus: Annotated[float | None, typer.Option()] = None,
    read_only: Annotated[bool, typer.Option(help="A root file system that cannot be written.")] = False,
) -> None:
    """Print the manifests as one JSON list: `envtorch k8s render IMAGE | kubectl apply -f -`."""
    from envtorch.providers.manifests import KubernetesOptions, server_name
    from envtorch.providers.manifests import render as manifests

    try:
        options = KubernetesOptions(
            kind="deployment" if replicas > 1 else "pod",
            replicas=replicas,
            namespace=namespace,
            memory=memory,
            cpus=cpus,
            read_only=read_only,
        )
        items = manifests(image, options, name=name or server_name(image), owner="kubectl")
    except EnvTorchError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
