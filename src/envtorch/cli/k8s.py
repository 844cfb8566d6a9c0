"""`envtorch k8s render`: the manifests that a cluster would be given, for `kubectl` or for review."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from envtorch.errors import ConfigurationError

__all__ = ["k8s"]

IMAGE = re.compile(r"[a-z0-9](?:[\w.:/-]*[\w])?(?:@sha256:[0-9a-f]{64})?", re.ASCII)
"""The characters of an image reference, as container engines take them."""

FLEET, ACCESS, ENDING = "The fleet", "Who may connect", "Updates and evictions"

k8s = typer.Typer(name="k8s", help="Servers in a Kubernetes cluster.", no_args_is_help=True)


@k8s.callback()
def _group() -> None:
    """A group, even of one command: more will come."""


@k8s.command()
def render(
    image: Annotated[str, typer.Argument(help="The environment's image.")],
    name: Annotated[
        str | None, typer.Option(help="The fleet's name; by default after the image.", rich_help_panel=FLEET)
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="The namespace of every manifest.", rich_help_panel=FLEET)
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="statefulset|deployment", help="What runs the pods.", rich_help_panel=FLEET)
    ] = "statefulset",
    replicas: Annotated[int, typer.Option(help="How many servers.", rich_help_panel=FLEET)] = 2,
    max_replicas: Annotated[
        int | None,
        typer.Option(help="Let an autoscaler add servers, up to this number.", rich_help_panel=FLEET),
    ] = None,
    target_use: Annotated[
        float,
        typer.Option(
            help="The share of sessions in use that the autoscaler keeps to.", rich_help_panel=FLEET
        ),
    ] = 0.8,
    command: Annotated[
        str | None, typer.Option(help="What to run in place of the image's command.", rich_help_panel=FLEET)
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port that the server listens on.", rich_help_panel=FLEET)
    ] = 8000,
    cpus: Annotated[
        float, typer.Option(help="Processors of a server, as in 0.5.", rich_help_panel=FLEET)
    ] = 1.0,
    memory: Annotated[
        str, typer.Option(help="Memory of a server, as in 512Mi.", rich_help_panel=FLEET)
    ] = "1Gi",
    user: Annotated[int, typer.Option(help="The user id of the server.", rich_help_panel=FLEET)] = 10001,
    grade: Annotated[
        str,
        typer.Option(
            metavar="container|host",
            help="The sandbox's grade; 'host' needs user namespaces for pods.",
            rich_help_panel=FLEET,
        ),
    ] = "container",
    read_only: Annotated[
        bool, typer.Option(help="A root file system that cannot be written.", rich_help_panel=FLEET)
    ] = False,
    token_secret: Annotated[
        str | None,
        typer.Option(help="A Secret whose key 'token' callers must show.", rich_help_panel=ACCESS),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Let only pods with this label connect; may be repeated.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    metrics_from: Annotated[
        str, typer.Option(help="The namespace that may read /metrics.", rich_help_panel=ACCESS)
    ] = "monitoring",
    egress: Annotated[
        bool, typer.Option(help="Let servers open connections.", rich_help_panel=ACCESS)
    ] = False,
    finish: Annotated[
        int, typer.Option(help="Seconds that open sessions have to end.", rich_help_panel=ENDING)
    ] = 300,
    drain: Annotated[
        int, typer.Option(help="Seconds that running calls have after that.", rich_help_panel=ENDING)
    ] = 30,
    kustomize: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a kustomize base instead of printing.")
    ] = None,
) -> None:
    """Print what a fleet of servers is in Kubernetes: `envtorch k8s render IMAGE | kubectl apply -f -`."""
    from envtorch.providers.fleet_files import fleet_base, fleet_stream
    from envtorch.providers.fleet_options import FleetOptions, fleet_name

    options = FleetOptions(
        image=_image_in(image),
        name=name or fleet_name(image),
        namespace=namespace,
        kind=kind,
        replicas=replicas,
        max_replicas=max_replicas,
        target_use=target_use,
        command=_words_in(command),
        port=port,
        cpus=cpus,
        memory=memory,
        user=user,
        grade=grade,
        read_only=read_only,
        finish_s=finish,
        drain_s=drain,
        token_secret=token_secret,
        clients=_labels_in(client or ()),
        metrics_from=metrics_from,
        egress=egress,
    )
    if kustomize is None:
        typer.echo(fleet_stream(options), nl=False)
        return
    _write(kustomize, fleet_base(options))
    typer.echo(
        f"Apply it with `kubectl apply -k {kustomize}`; {kustomize / 'README.md'} says more.", err=True
    )


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write a base. One that was made before is replaced; anything else in the directory is not touched."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()) and not (directory / "kustomization.yaml").is_file():
            raise ConfigurationError(
                f"{directory} has files and is no kustomize base", next_step="name a new directory"
            )
        for name, text in files.items():
            (directory / name).write_text(text)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written: {error.strerror}",
            next_step="name a directory that you may write to",
        ) from error


def _words_in(command: str | None) -> Sequence[str]:
    try:
        return shlex.split(command or "")
    except ValueError as error:
        raise ConfigurationError(f"--command {command!r} cannot be read: {error}") from error


def _labels_in(texts: Sequence[str]) -> Mapping[str, str]:
    for text in texts:
        if "=" not in text:
            raise ConfigurationError(f"{text!r} is no label: write it as in app=trainer")
    return dict(text.split("=", 1) for text in texts)


def _image_in(text: str) -> str:
    if not IMAGE.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is no name of an image", next_step="write it as in registry.example/my-env:1.0"
        )
    return text
