"""What a sandbox is protected by on this machine, layer by layer, and what that adds up to."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .policy import PROTECTIONS, Policy

__all__ = ["Report", "judge", "report", "workspace_layers"]

ON = "on"


@dataclass(frozen=True, slots=True)
class Report:
    """Each layer and each protection is `on` or `unavailable: why`."""

    grade: str
    """`host` with namespaces, `container` without."""
    layers: Mapping[str, str]
    protections: Mapping[str, str]

    def protects(self, name: str) -> bool:
        return self.protections[name] == ON


_ANY_OF: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "network": (("network namespace",), ("seccomp",)),
    "filesystem": (("private root", "mount namespace"), ("landlock",)),
    "processes": (("process namespace",), ("seccomp", "landlock signals"), ("seccomp", "signal rules")),
    "memory": (("cgroup memory",), ("rlimits",)),
    "disk": (("workspace",),),
    "syscalls": (("seccomp",),),
    "privileges": (("no_new_privs", "capabilities"), ("user namespace", "capability bounds")),
    "fork": (
        ("user namespace", "process namespace", "mount namespace", "landlock", "process table"),
        ("copy-on-write root",),
    ),
    "limits": (("cgroup memory", "cgroup pids"),),
}
"""Which layers make up a protection: all of any one group."""


def workspace_layers(unavailable_groups: Mapping[str, str]) -> dict[str, str]:
    """The layers of a session on a writable root, which does not start without any of those that are on."""
    namespaces = ("user", "mount", "process", "network", "ipc", "host name")
    layers = {f"{name} namespace": ON for name in namespaces}
    layers |= dict.fromkeys(("private root", "copy-on-write root", "workspace", "seccomp", "rlimits"), ON)
    layers |= dict.fromkeys(("capability bounds", "environment", "descriptors", "process table"), ON)
    layers["no_new_privs"] = "unavailable: su and sudo work on a writable root"
    layers["landlock"] = "unavailable: a writable root is the session's own"
    for controller in ("memory", "pids"):
        why = unavailable_groups.get(controller)
        layers[f"cgroup {controller}"] = f"unavailable: {why}" if why else ON
    return layers


def judge(layers: Mapping[str, str], *, namespaces: bool) -> Report:
    """What `layers`, as a sandbox reported them, add up to."""
    protections = {name: _judge_one(layers, name) for name in sorted(PROTECTIONS)}
    grade = "host" if namespaces else "container"
    return Report(grade, MappingProxyType(dict(layers)), MappingProxyType(protections))


def _judge_one(layers: Mapping[str, str], name: str) -> str:
    reasons = []
    for group in _ANY_OF[name]:
        missing = [layer for layer in group if layers.get(layer) != ON]
        if not missing:
            return ON
        why = layers.get(missing[0], "unavailable: not reported").removeprefix("unavailable: ")
        reasons.append(f"{missing[0]}: {why}")
    return f"unavailable: {'; '.join(reasons)}"


def report(policy: Policy | None = None) -> Report:
    """What a sandbox started now would be protected by. Found by starting one: nothing is assumed."""
    import dataclasses

    from .sandbox import Sandbox

    wanted = dataclasses.replace(policy or Policy(), require=frozenset())
    with Sandbox(wanted) as sandbox:
        return sandbox.report()
