"""What this machine can isolate, what is installed, and what to do about the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envtorch.errors import EnvTorchError
from envtorch.extras import install_command
from envtorch.sandbox import Policy, Report, report

__all__ = ["EXTRAS", "DoctorFinding", "Examination", "examine", "show"]

EXTRAS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "daytona": "daytona",
    "docker": "docker",
    "gymnasium": "gymnasium",
    "hub": "huggingface-hub",
    "inspect": "inspect-ai",
    "kubernetes": "kubernetes",
    "mcp": "fastmcp",
    "openai": "openai",
    "ors": "openreward",
    "otel": "opentelemetry-api",
    "play": "textual",
    "ray": "ray",
    "record": "pyarrow",
    "reload": "watchfiles",
    "skyrl": "skyrl",
    "smolagents": "smolagents",
    "terminal": "pyte",
    "tinker": "tinker-cookbook",
    "trl": "trl",
    "uv": "uv",
    "verifiers": "verifiers",
    "verl": "verl",
    "web": "gradio",
}
"""Each extra of ours, and the package that makes it up."""

PROTECTS: Mapping[str, str] = {
    "disk": "the workspace has a size limit",
    "filesystem": "no file of yours can be read or written",
    "fork": "live sandboxes can be forked",
    "limits": "memory and processes are limited for a sandbox as a whole",
    "memory": "memory is limited",
    "network": "there is no network",
    "privileges": "there is no right to gain",
    "processes": "no process of yours can be seen or signalled",
    "syscalls": "only known system calls",
}

NAMESPACES = (
    "allow user namespaces: sysctl -w user.max_user_namespaces=15000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container, by its seccomp and AppArmor profiles"
)
LANDLOCK = "run a kernel of 5.13 or newer with Landlock switched on (lsm=landlock,...)"
SECCOMP = "install libseccomp 2 (apt install libseccomp2)"
ADVICE: Mapping[str, str] = {
    "disk": NAMESPACES,
    "filesystem": f"{LANDLOCK}, or {NAMESPACES}",
    "fork": f"{NAMESPACES}; and {LANDLOCK}",
    "limits": "run as root, or in a delegated control group: systemd-run --user --scope -p Delegate=yes ...",
    "memory": "run as root, or in a delegated control group",
    "network": f"{SECCOMP}, or {NAMESPACES}",
    "privileges": "run a kernel of 3.5 or newer that lets processes drop their capabilities",
    "processes": f"{NAMESPACES}; or a kernel with Landlock ABI 6 (6.12)",
    "syscalls": SECCOMP,
}
NO_SANDBOX = (
    "mend what is named here (the kernel sandbox needs Linux); meanwhile executor='smolagents' runs code "
    "without isolation"
)


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the table. `next_step` is empty when there is nothing to do."""

    part: str
    name: str
    ok: bool
    detail: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found. `healthy` says whether a sandbox with the default policy starts here."""

    healthy: bool
    grade: str
    layers: Mapping[str, str]
    findings: tuple[DoctorFinding, ...]


def examine(look: Callable[[Policy], Report] = report) -> Examination:
    """Look at the machine; a sandbox is really started, unless there is another way to `look`."""
    wanted = Policy()
    extras = [_extra(name, package) for name, package in EXTRAS.items()]
    others = (*extras, _engine())
    try:
        seen = look(wanted)
    except (EnvTorchError, OSError) as error:
        failed = DoctorFinding("sandbox", "start", False, str(error), NO_SANDBOX)
        return Examination(False, "none", {}, (failed, *others))
    protections = [_protection(name, said) for name, said in seen.protections.items()]
    healthy = all(seen.protects(name) for name in wanted.require)
    return Examination(healthy, seen.grade, dict(seen.layers), (*protections, *others))


def _protection(name: str, said: str) -> DoctorFinding:
    if said == "on":
        return DoctorFinding("sandbox", name, True, PROTECTS[name])
    return DoctorFinding("sandbox", name, False, said.removeprefix("unavailable: "), ADVICE[name])


def _extra(name: str, package: str) -> DoctorFinding:
    try:
        return DoctorFinding("extra", name, True, f"{package} {version(package)}")
    except PackageNotFoundError:
        return DoctorFinding("extra", name, False, "not installed", install_command(name))


def _engine() -> DoctorFinding:
    try:
        from envtorch.providers.engine import connect

        client = connect()
        try:
            return DoctorFinding(
                "engine", "containers", True, f"version {client.version()['Version']} answers"
            )
        finally:
            client.close()
    except EnvTorchError as error:
        problem, _, advice = str(error).partition(": ")
        return DoctorFinding("engine", "containers", False, problem, advice)


def show(found: Examination, console: Console) -> None:
    """Print what was found, as a person reads it."""
    table = Table(title="What this machine can do", title_justify="left")
    for heading in ("part", "name", "has it", "what was found", "next step"):
        table.add_column(heading, overflow="fold")
    before = ""
    for finding in found.findings:
        if before and finding.part != before:
            table.add_section()
        part = finding.part if finding.part != before else ""
        mark = "[green]yes[/green]" if finding.ok else "[yellow]no[/yellow]"
        words = (escape(text) for text in (finding.detail, finding.next_step))
        table.add_row(f"[cyan]{part}[/cyan]", finding.name, mark, *words)
        before = finding.part
    console.print(table)
    console.print(_verdict(found))


def _verdict(found: Examination) -> str:
    if not found.healthy:
        return "[red]No sandbox can start here with the default policy.[/red]"
    off = [layer for layer, said in found.layers.items() if said != "on"]
    layers = f"{len(found.layers) - len(off)} of {len(found.layers)} layers are on"
    missing = f"; off: {', '.join(off)}" if off else ""
    return f"Sandboxes are of [bold]{found.grade}[/bold] grade: {layers}{missing}."
