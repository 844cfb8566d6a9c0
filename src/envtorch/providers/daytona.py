"""Servers in cloud sandboxes of Daytona."""

import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from envtorch.errors import (
    ConfigurationError,
    EngineUnavailable,
    ImageUnavailable,
    ProviderFailed,
)
from envtorch.extras import missing_extra
from envtorch.providers.ownership import OWNER_LABEL, PROVIDER_LABEL, OwnerTag
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from envtorch.providers.provider_options import checked_environment, read_options
from envtorch.providers.ready import probe
from envtorch.providers.recipes import command_in, missing_sources, top_level_fields, without_mounts
from envtorch.providers.sweeper import Swept, attempt, is_orphan, logger
from envtorch.settings import variables

try:
    import daytona
except ModuleNotFoundError as missing:
    raise missing_extra("daytona", "Daytona's sandboxes need its package") from missing

__all__ = ["DaytonaOptions", "DaytonaProvider", "sweep_daytona"]

PORT = 8000
"""The one port that is reached from outside."""

ADDRESS_LIFE_S = 24 * 3600
LOG = "/tmp/openenv-server.log"  # noqa: S108 - inside the sandbox, which is one server's alone
PID = "/tmp/openenv-server.pid"  # noqa: S108
CODE = "/tmp/openenv-server.code"  # noqa: S108
DEFAULT_IDLE_MINUTES = 15


@dataclass(frozen=True, slots=True)
class DaytonaOptions:
    """The options of `DaytonaProvider.start_container`."""

    cmd: str | None = None
    """What to run in the sandbox; by default what the image's `openenv.yaml` or Dockerfile says."""

    context_dir: str | None = None
    """The directory that a `dockerfile:` image is built from; by default the Dockerfile's own."""


class DaytonaProvider(ContainerProvider):
    """Runs an image in a sandbox of Daytona's cloud; the address is a signed one, good for a day.

    An image is the name of one in a registry, `snapshot:NAME`, or `dockerfile:PATH`. The key is
    `api_key`, else `DAYTONA_API_KEY`. A sandbox carries its owner's label and is deleted when it is
    stopped, which Daytona does by itself after `auto_stop_interval` idle minutes (0: never).
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        target: str | None = None,
        public: bool = False,
        resources: Any = None,
        auto_stop_interval: int = DEFAULT_IDLE_MINUTES,
        on_snapshot_create_logs: Callable[[str], None] | None = None,
        create_timeout: float = 300.0,
        cmd: str | None = None,
    ) -> None:
        super().__init__()
        self._client = connect(api_key=api_key, target=target)
        self._cmd = cmd
        self._resources = resources
        self._create_timeout = create_timeout
        self._on_build_log = on_snapshot_create_logs
        self._settings: dict[str, Any] = {"public": True} if public else {}
        if auto_stop_interval != DEFAULT_IDLE_MINUTES:
            self._settings["auto_stop_interval"] = auto_stop_interval

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        chosen = read_options(DaytonaOptions, options)
        if port not in (None, PORT):
            raise ConfigurationError(f"port={port!r}: a sandbox of Daytona only supports port {PORT}")
        settings = dict(self._settings)
        if environment := checked_environment(env_vars):
            settings["env_vars"] = environment
        self._refuse_second()
        sweep_sandboxes(self._client)
        with source_of(image, chosen.context_dir) as source, making_sandbox(image):
            sandbox = self._create(source, settings)
        try:
            command = chosen.cmd or self._cmd or discover_command(sandbox, source.command, image)
            start_server(sandbox, command)
            server = DaytonaServer(self._client, sandbox, signed_address(sandbox))
        except BaseException:
            self._client.delete(sandbox)
            raise
        return self._adopt(server)

    def wait_for_ready(self, base_url: str, timeout_s: float = 120.0) -> None:
        self._wait_until_healthy(base_url, timeout_s, ask=partial(probe, through_proxy=True))

    def refresh_preview_url(self) -> str:
        """A new signed address of the running server, for when the old one's day is over."""
        server = self._server
        if not isinstance(server, DaytonaServer):
            raise ProviderFailed("No active sandbox: start one first")
        return server.refresh()

    def _create(self, source: "Source", settings: dict[str, Any]) -> Any:
        labels = {OWNER_LABEL: str(OwnerTag.current()), PROVIDER_LABEL: "daytona"}
        settings |= {"labels": labels, "ephemeral": True}
        waiting: dict[str, Any] = {"timeout": self._create_timeout}
        params: Any
        if source.snapshot is not None:
            params = daytona.CreateSandboxFromSnapshotParams(snapshot=source.snapshot, **settings)
        else:
            resources = {"resources": self._resources} if self._resources is not None else {}
            params = daytona.CreateSandboxFromImageParams(image=source.image, **resources, **settings)
            if self._on_build_log is not None:
                waiting["on_snapshot_create_logs"] = self._on_build_log
        return self._client.create(params, **waiting)


class DaytonaServer:
    """A server in a sandbox."""

    def __init__(self, client: Any, sandbox: Any, base_url: str) -> None:
        self._client = client
        self.sandbox = sandbox
        self._base_url = base_url
        self._stopping = threading.Lock()
        self._stopped = False

    @property
    def base_url(self) -> str:
        return self._base_url

    def refresh(self) -> str:
        self._base_url = signed_address(self.sandbox)
        return self._base_url

    def status(self) -> Status:
        if self._stopped:
            return Status(Phase.ABSENT)
        with speaking_to_daytona("asking for the server"):
            asked = f"kill -0 $(cat {PID}) 2>/dev/null || {{ echo DEAD; cat {CODE} 2>/dev/null; }}"
            answer = run(self.sandbox, asked).split()
        if "DEAD" not in answer:
            return Status(Phase.RUNNING)
        code = answer[-1]
        return Status(Phase.EXITED, exit_code=int(code) if code.isdecimal() else None)

    def logs(self, tail: int) -> str:
        if self._stopped:
            return ""
        with speaking_to_daytona("reading the log"):
            return run(self.sandbox, f"cat {LOG} 2>/dev/null | tail -n {tail}")

    def stop(self) -> None:
        with self._stopping:
            if not self._stopped:
                with speaking_to_daytona("deleting a sandbox"):
                    self._client.delete(self.sandbox)
                self._stopped = True


@dataclass(frozen=True, slots=True)
class Source:
    """What a sandbox is made of."""

    image: Any = None
    snapshot: str | None = None
    command: str | None = None
    """What the image's Dockerfile runs, where there is one to look at."""


@contextmanager
def source_of(image: str, context_dir: str | None) -> Iterator[Source]:
    """What `image` names. A Dockerfile is rewritten beside its context for the length of the block."""
    kind, _, rest = image.partition(":")
    if kind == "snapshot":
        yield Source(snapshot=rest)
    elif kind == "dockerfile":
        text, context = read_dockerfile(Path(rest), Path(context_dir) if context_dir else None)
        with tempfile.NamedTemporaryFile("w", dir=context, suffix=".dockerfile") as rewritten:
            rewritten.write(without_mounts(text))
            rewritten.flush()
            yield Source(image=daytona.Image.from_dockerfile(rewritten.name), command=command_in(text))
    else:
        yield Source(image=image)


def read_dockerfile(path: Path, context: Path | None) -> tuple[str, Path]:
    """The text of a Dockerfile and the directory it is built from, both seen to be there."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no Dockerfile at {path}")
    context = path.parent if context is None else context
    if not context.is_dir():
        raise ConfigurationError(f"context_dir={str(context)!r} is no directory")
    text = path.read_text()
    for source in missing_sources(text, context):
        raise ConfigurationError(f"COPY source {source!r} of {path} not found in {context}")
    return text, context


def discover_command(sandbox: Any, from_dockerfile: str | None, image: str) -> str:
    """How the image's server is started: by the `app` of its `openenv.yaml`, else as its Dockerfile does."""
    place = "/app/env/openenv.yaml"
    manifest = run(sandbox, f"cat {place} 2>/dev/null")
    if not manifest.strip():
        found = run(sandbox, "find /app -maxdepth 4 -name openenv.yaml -print -quit 2>/dev/null").strip()
        place = found
        manifest = run(sandbox, f"cat {shlex.quote(place)}") if found else ""
    if not place:
        if from_dockerfile:
            return from_dockerfile
        raise ConfigurationError(f"Could not find openenv.yaml in {image!r}: say what to run with cmd=")
    app = top_level_fields(manifest, place=f"{place} in {image!r}").get("app")
    if app is None:
        raise ConfigurationError(f"{place} in {image!r} does not contain an 'app' field: use cmd=")
    directory = shlex.quote(place.rpartition("/")[0])
    return f"cd {directory} && python -m uvicorn {shlex.quote(app)} --host 0.0.0.0 --port {PORT}"


def start_server(sandbox: Any, command: str) -> None:
    """Run `command` in the background; its output, its pid and in the end its code are in files."""
    kept = f"({command}); echo $? > {CODE}"
    with speaking_to_daytona("starting the server"):
        run(sandbox, f"nohup sh -c {shlex.quote(kept)} > {LOG} 2>&1 & echo $! > {PID}")


def signed_address(sandbox: Any) -> str:
    with speaking_to_daytona("asking for the address"):
        return str(sandbox.create_signed_preview_url(PORT, expires_in_seconds=ADDRESS_LIFE_S).url)


def run(sandbox: Any, command: str) -> str:
    """What a shell command in the sandbox writes."""
    answer = sandbox.process.exec(command)
    return str(getattr(answer, "result", answer))


def connect(*, api_key: str | None = None, target: str | None = None) -> Any:
    """A client of Daytona's, with this key or the environment's."""
    key = api_key or variables().get("DAYTONA_API_KEY")
    given = {"api_key": key, "target": target}
    with speaking_to_daytona("reaching Daytona"):
        return daytona.Daytona(daytona.DaytonaConfig(**{name: v for name, v in given.items() if v}))


@contextmanager
def speaking_to_daytona(doing: str) -> Iterator[None]:
    """Whatever Daytona refuses in this block is a `ProviderFailed` with one sentence."""
    try:
        yield
    except daytona.DaytonaAuthenticationError as error:
        raise EngineUnavailable(f"{doing} failed: {error}: is DAYTONA_API_KEY right?") from error
    except daytona.DaytonaError as error:
        raise ProviderFailed(f"{doing} failed: {error}") from error


@contextmanager
def making_sandbox(image: str) -> Iterator[None]:
    """The same for a new sandbox; an image that cannot be had is an `ImageUnavailable`."""
    try:
        with speaking_to_daytona(f"making a sandbox of {image!r}"):
            yield
    except EngineUnavailable:
        raise
    except ProviderFailed as error:
        if any(word in error.message.lower() for word in ("not found", "pull", "manifest unknown")):
            raise ImageUnavailable(error.message) from error
        raise


def sweep_daytona() -> list[Swept]:
    """Delete the sandboxes of dead owners, if there is a key to ask with."""
    return sweep_sandboxes(connect()) if variables().get("DAYTONA_API_KEY") else []


def sweep_sandboxes(client: Any) -> list[Swept]:
    """Delete the sandboxes of dead owners. Never fails: a sweep is nobody's main task."""
    swept = []
    try:
        found = list(client.list(daytona.ListSandboxesQuery(labels={PROVIDER_LABEL: "daytona"})))
    except Exception as error:  # the cloud is foreign; the start that follows will tell what is wrong
        logger.warning("could not look for sandboxes of dead owners: %s", error)
        return []
    for sandbox in found:
        label = (sandbox.labels or {}).get(OWNER_LABEL, "")
        if is_orphan(label) and attempt(partial(client.delete, sandbox), sandbox.id):
            swept.append(Swept("sandbox", sandbox.id, label))
    return swept
