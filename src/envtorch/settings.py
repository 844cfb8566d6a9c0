"""What the process's environment variables say, read once, here and nowhere else."""

import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from envtorch.errors import ConfigurationError
from envtorch.replica_names import REPLICA_NAME

__all__ = [
    "MAX_MESSAGE_BYTES",
    "REPLSettings",
    "ServerMode",
    "Settings",
    "ask_for_web_page",
    "cache_folder",
    "engine_addresses",
    "environment_for_processes",
    "inherited_environment",
    "model_api_key",
    "plain_fastmcp_log",
    "ray_address",
    "restore_variables",
    "silence_gradio",
    "variables",
]

NEUTRAL = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    }
)  # fmt: skip
"""What a program needs to run at all. Tokens and keys are not among it."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest HTTP body or WebSocket message that a server reads unless it is configured otherwise."""


class ServerMode(enum.StrEnum):
    """Who is on the other side: a trainer who runs episodes, or an agent that only uses tools."""

    SIMULATION = "simulation"
    PRODUCTION = "production"

    @classmethod
    def of(cls, mode: "ServerMode | str") -> "ServerMode":
        if isinstance(mode, cls):
            return mode
        try:
            return cls(str(mode).lower())
        except ValueError:
            known = [member.value for member in cls]
            raise ConfigurationError(f"Invalid mode: {mode!r}. Must be one of: {known}") from None


@dataclass(frozen=True, slots=True)
class Settings:
    """The variables a server heeds; names that OpenEnv deployments already set are honoured."""

    mode: ServerMode = ServerMode.SIMULATION
    """`ENVTORCH_MODE`, or `OPENENV_MODE`."""

    web_interface: bool = False
    """`ENABLE_WEB_INTERFACE`: true, 1 or yes."""

    token: str | None = field(default=None, repr=False)
    """`ENVTORCH_TOKEN`: what every caller must show."""

    token_file: Path | None = None
    """`ENVTORCH_TOKEN_FILE`: tokens that may change while the server runs."""

    allowed_origins: frozenset[str] = frozenset()
    """`ENVTORCH_ORIGINS`: other sites whose pages may send requests, separated by commas; `*` for all."""

    allowed_hosts: frozenset[str] = frozenset()
    """`ENVTORCH_HOSTS`: host names under which the server may be addressed, separated by commas; `*` for all.

    Left out, a server that listens on a loopback address and has no token accepts local names only.
    """

    max_message_bytes: int = MAX_MESSAGE_BYTES
    """`ENVTORCH_MAX_MESSAGE_BYTES`: the largest HTTP body or WebSocket message that the server reads."""

    replica: str | None = None
    """`ENVTORCH_REPLICA`: the name of this server among several behind one address."""

    finish_s: float = 0.0
    """`ENVTORCH_FINISH`: how many seconds open sessions have, at SIGTERM, to end by themselves."""

    drain_s: float = 30.0
    """`ENVTORCH_DRAIN`: how many seconds running calls have after that."""

    tracing: bool = False
    """`ENVTORCH_TRACING`: true, 1 or yes; spans for OpenTelemetry."""

    client_mode: ServerMode = ServerMode.SIMULATION
    """`OPENENV_CLIENT_MODE`: which kind of server OpenEnv's clients are told to expect."""

    readme_path: str | None = None
    """`ENV_README_PATH`: the file to show as the environment's description."""

    public_url: str | None = None
    """`SPACE_HOST`: where a Hugging Face Space is found from outside."""

    trust_remote_code: bool = False
    """`OPENENV_TRUST_REMOTE_CODE`: a Space's package may be installed without asking."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        read = os.environ if environ is None else environ
        return cls(
            mode=ServerMode.of(read.get("ENVTORCH_MODE") or read.get("OPENENV_MODE") or "simulation"),
            token=_token_in(read),
            token_file=Path(path) if (path := read.get("ENVTORCH_TOKEN_FILE")) else None,
            allowed_origins=_names_in(read, "ENVTORCH_ORIGINS"),
            allowed_hosts=_names_in(read, "ENVTORCH_HOSTS"),
            max_message_bytes=_positive(read, "ENVTORCH_MAX_MESSAGE_BYTES", MAX_MESSAGE_BYTES),
            web_interface=_is_on(read, "ENABLE_WEB_INTERFACE"),
            replica=_replica_in(read),
            finish_s=_seconds(read, "ENVTORCH_FINISH", 0.0),
            drain_s=_seconds(read, "ENVTORCH_DRAIN", 30.0),
            tracing=_is_on(read, "ENVTORCH_TRACING"),
            trust_remote_code=_is_on(read, "OPENENV_TRUST_REMOTE_CODE"),
            client_mode=_mode_in(read, "OPENENV_CLIENT_MODE"),
            readme_path=read.get("ENV_README_PATH") or None,
            public_url=f"https://{host}" if (host := read.get("SPACE_HOST")) else None,
        )


def _token_in(read: Mapping[str, str]) -> str | None:
    given = read.get("ENVTORCH_TOKEN")
    token = (given or "").strip()  # what was read from a file ends with a line break
    if given is not None and not token:
        raise ConfigurationError(
            "ENVTORCH_TOKEN is set, and there is no token in it",
            next_step="set it to a token, or unset it: `unset ENVTORCH_TOKEN`",
        )
    return token or None


def _replica_in(read: Mapping[str, str]) -> str | None:
    name = read.get("ENVTORCH_REPLICA") or None
    if name is not None and not REPLICA_NAME.fullmatch(name):
        raise ConfigurationError(
            f"ENVTORCH_REPLICA={name!r}: a replica's name has letters, digits, '-' and '.', 63 at most"
        )
    return name


_DEFAULT_MODEL = "Qwen/Qwen3-Coder-480B-A35B-Instruct"


@dataclass(frozen=True, slots=True)
class REPLSettings:
    """What the REPL environment reads: its language model, and what an episode begins with if nobody says."""

    context: str = ""
    """`REPL_CONTEXT`."""

    task_prompt: str = ""
    """`REPL_TASK_PROMPT`."""

    max_iterations: int | None = None
    """`REPL_MAX_ITERATIONS`: it has the last word over what the code says."""

    llm_base_url: str | None = None
    """`LLM_BASE_URL`, or `OPENAI_BASE_URL`: where OpenAI's API is spoken; Hugging Face without it."""

    llm_model: str = _DEFAULT_MODEL
    """`LLM_MODEL`."""

    hf_token: str | None = field(default=None, repr=False)
    """`HF_TOKEN`."""

    llm_api_key: str | None = field(default=None, repr=False)
    """`LLM_API_KEY`, or `OPENAI_API_KEY`."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        read = os.environ if environ is None else environ
        limit = read.get("REPL_MAX_ITERATIONS") or None
        if limit is not None and not (limit.isdigit() and int(limit)):
            raise ConfigurationError(
                f"REPL_MAX_ITERATIONS must be a whole number of 1 or more, not {limit!r}"
            )
        return cls(
            context=read.get("REPL_CONTEXT", ""),
            task_prompt=read.get("REPL_TASK_PROMPT", ""),
            max_iterations=None if limit is None else int(limit),
            llm_base_url=read.get("LLM_BASE_URL") or read.get("OPENAI_BASE_URL") or None,
            llm_model=read.get("LLM_MODEL") or _DEFAULT_MODEL,
            hf_token=read.get("HF_TOKEN") or None,
            llm_api_key=read.get("LLM_API_KEY") or read.get("OPENAI_API_KEY") or None,
        )


def model_api_key(environ: Mapping[str, str] | None = None) -> str | None:
    """`LLM_API_KEY`, or `OPENAI_API_KEY`: what a model's endpoint is shown."""
    read = os.environ if environ is None else environ
    return read.get("LLM_API_KEY") or read.get("OPENAI_API_KEY") or None


def ray_address(environ: Mapping[str, str] | None = None) -> str | None:
    """`RAY_ADDRESS`: the cluster that Ray connects to."""
    read = os.environ if environ is None else environ
    return read.get("RAY_ADDRESS") or None


def _mode_in(environ: Mapping[str, str], name: str) -> ServerMode:
    try:
        return ServerMode.of(environ.get(name) or "simulation")
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error.message}") from None


def _names_in(environ: Mapping[str, str], name: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in environ.get(name, "").split(","))))


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) > 0):
        raise ConfigurationError(f"{name} must be a whole number of 1 or more, not {text!r}")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{name} must be a number of seconds, 0 or more, not {text!r}")
    return seconds


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("true", "1", "yes")


def ask_for_web_page() -> None:
    """Have every application that is made from here on, in child processes too, come with its web page."""
    os.environ["ENABLE_WEB_INTERFACE"] = "true"


def plain_fastmcp_log() -> None:
    """Have FastMCP log in plain lines, in child processes too, unless somebody has chosen otherwise."""
    os.environ.setdefault("FASTMCP_ENABLE_RICH_LOGGING", "false")


def silence_gradio() -> None:
    """Gradio calls home unless told not to. Whoever sets the variable knows better."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def variables() -> dict[str, str]:
    """All the variables there are, as they are now."""
    return dict(os.environ)


def restore_variables(before: Mapping[str, str]) -> None:
    """Make the variables what they were."""
    os.environ.clear()
    os.environ.update(before)


def inherited_environment(*also: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a child process may see of this one's; names ending in `*` are prefixes."""
    read = os.environ if environ is None else environ
    prefixes = ("LC_", *(name[:-1] for name in also if name.endswith("*")))
    names = NEUTRAL.union(also)
    return {name: value for name, value in read.items() if name in names or name.startswith(prefixes)}


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`ENVTORCH_CACHE`, or `envtorch` in the user's cache: what was prepared once and can be made again."""
    read = os.environ if environ is None else environ
    named = read.get("ENVTORCH_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = read.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(read.get("HOME") or "~").expanduser() / ".cache") / "envtorch"


def engine_addresses(environ: Mapping[str, str] | None = None) -> list[str]:
    """Where a container engine may be: the one that is named, else where Docker and Podman usually are."""
    read = os.environ if environ is None else environ
    named = read.get("DOCKER_HOST") or read.get("CONTAINER_HOST")
    if named:
        return [named]
    local = ["unix:///var/run/docker.sock", "unix:///run/podman/podman.sock"]
    if "XDG_RUNTIME_DIR" in read:
        local += [
            f"unix://{read['XDG_RUNTIME_DIR']}/{name}" for name in ("docker.sock", "podman/podman.sock")
        ]
    return local


def environment_for_processes() -> dict[str, str]:
    """The environment of processes that each have one thread's work to do.

    Numeric libraries start a thread per core when they are imported, and a process with threads cannot be
    forked. Whoever sets their number knows better.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(names, "1"), **os.environ}
