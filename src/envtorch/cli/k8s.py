"""`envtorch k8s render`: the manifests that a cluster would be given, for `kubectl` or for review."""

import json
import re
from typing import Annotated

import typer

from envtorch.errors import ConfigurationError

__all__ = ["k8s"]

IMAGE = re.compile(r"[a-z0-9](?:[\w.:/-]*[\w])?(?:@sha256:[0-9a-f]{64})?", re.ASCII)
"""The characters of an image reference, as container engines take them."""

k8s = typer.Typer(name="k8s", help="Servers in a Kubernetes cluster.", no_args_is_help=True)


@k8s.callback()
def _group() -> None:
    """A group, even of one command: more will come."""


@k8s.command()
def render(
    image: Annotated[str, typer.Argument(help="The environment's image.")],
    name: Annotated[str | None, typer.Option(help="The server's name; by default after the image.")] = None,
    replicas: Annotated[int, typer.Option(help="More than one makes a Deployment.")] = 1,
    namespace: Annotated[str | None, typer.Option(help="The namespace of every manifest.")] = None,
    memory: Annotated[str | None, typer.Option(help="The most memory, as in 512Mi.")] = None,
    cpus: Annotated[float | None, typer.Option(help="The most processors, as in 0.5.")] = None,
    read_only: Annotated[bool, typer.Option(help="A root file system that cannot be written.")] = False,
) -> None:
    """Print the manifests as one JSON list: `envtorch k8s render IMAGE | kubectl apply -f -`."""
    from envtorch.providers.manifests import KubernetesOptions, server_name
    from envtorch.providers.manifests import render as manifests

    options = KubernetesOptions(
        kind="deployment" if replicas > 1 else "pod",
        replicas=replicas,
        namespace=namespace,
        memory=memory,
        cpus=cpus,
        read_only=read_only,
    )
    items = manifests(_image_in(image), options, name=name or server_name(image), owner="kubectl")
    typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))


def _image_in(text: str) -> str:
    if not IMAGE.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is no name of an image", next_step="write it as in registry.example/my-env:1.0"
        )
    return text
