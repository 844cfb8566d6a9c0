"""What a fleet is: the options from which `envtorch k8s render` makes its manifests, checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envtorch.errors import ConfigurationError

__all__ = ["FLEET_KINDS", "GRADES", "FleetOptions", "fleet_name"]

FLEET_KINDS = ("statefulset", "deployment")
GRADES = ("container", "host")

NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
LONGEST_NAME = 52
"""What Kubernetes adds to it, for pods and their revisions, has to fit into a label of 63 characters."""
QUANTITY = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti)")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")

PRE_STOP_S = 5
"""How long a pod that will end goes on as before, until proxies and name servers know."""
MARGIN_S = 10
"""What a server may need to end, beyond the times for its sessions and calls."""


def fleet_name(image: str) -> str:
    """A name after the image, always the same."""
    stem = image.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    stem = re.sub(r"[^a-z0-9-]+", "-", stem).strip("-")[: LONGEST_NAME - 9].strip("-")
    return f"envtorch-{stem}".strip("-")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Servers of one image as a platform team runs them, and what belongs to them. Times are seconds."""

    image: str
    name: str
    namespace: str | None = None
    kind: str = "statefulset"
    """`"statefulset"`: each replica has a name and an address that stay. `"deployment"`: a rolling update
    starts the new replicas before the old ones end."""

    replicas: int = 2
    max_replicas: int | None = None
    """With it, a HorizontalPodAutoscaler keeps between `replicas` and this."""

    target_use: float = 0.8
    """The share of sessions in use, on average, above which the autoscaler adds replicas."""

    command: Sequence[str] = ()
    """What to run in place of the image's own command."""

    port: int = 8000
    cpus: float = 1.0
    memory: str = "1Gi"
    user: int = 10001
    grade: str = "container"
    """The sandbox's grade inside the pod. `"host"` needs nodes with user namespaces for pods."""

    read_only: bool = False
    finish_s: int = 300
    """How long open sessions have to end when their pod is told to."""

    drain_s: int = 30
    """How long running calls have after that."""

    token_secret: str | None = None
    """A Secret whose key `token` holds what every caller must show."""

    clients: Mapping[str, str] = field(default_factory=dict)
    """The labels of pods that may connect; without any, all pods of the namespace."""

    metrics_from: str = "monitoring"
    """The namespace whose pods may read `/metrics`."""

    egress: bool = False
    """Let servers open connections. Agents in a sandbox have no network either way."""

    @property
    def grace_s(self) -> int:
        """How long a pod has from the decision to end it until it is killed."""
        return PRE_STOP_S + self.finish_s + self.drain_s + MARGIN_S

    def __post_init__(self) -> None:
        self._check_names()
        if self.kind not in FLEET_KINDS:
            raise ConfigurationError(f"a fleet is a {' or a '.join(FLEET_KINDS)}, not a {self.kind!r}")
        if self.grade not in GRADES:
            raise ConfigurationError(f"a sandbox's grade is {' or '.join(GRADES)}, not {self.grade!r}")
        if self.replicas < 1:
            raise ConfigurationError(f"{self.replicas} replicas: there is at least one")
        if self.max_replicas is not None and self.max_replicas <= self.replicas:
            raise ConfigurationError(
                f"at most {self.max_replicas} replicas, where there are {self.replicas} at least: the most is"
                " larger; leave it out for a fixed number"
            )
        if not 0 < self.target_use <= 1:
            raise ConfigurationError(
                f"a share of sessions in use is above 0 and at most 1: {self.target_use}"
            )
        if not 0.001 <= self.cpus <= 10_000:
            raise ConfigurationError(f"{self.cpus} processors: there is at least 0.001")
        if not QUANTITY.fullmatch(self.memory):
            raise ConfigurationError(f"{self.memory!r} is no amount of memory: write it as in 512Mi or 2Gi")
        if not 1 <= self.port <= 65535:
            raise ConfigurationError(f"{self.port} is no port: give 1 to 65535")
        if self.user < 1:
            raise ConfigurationError(f"user {self.user}: a server is not run as root")
        if min(self.finish_s, self.drain_s) < 0:
            raise ConfigurationError("times are whole seconds, 0 or more")

    def _check_names(self) -> None:
        if not NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise ConfigurationError(
                f"{self.name!r} cannot be the fleet's name: a letter, then letters, digits and '-', all of"
                f" them small, {LONGEST_NAME} at most"
            )
        for name in (self.namespace, self.metrics_from, self.token_secret):
            if name is not None and (not NAME.fullmatch(name) or len(name) > 63):
                raise ConfigurationError(f"{name!r} cannot be a name in Kubernetes")
        for key, value in self.clients.items():
            if not all(LABEL.fullmatch(part) for part in key.split("/", 1)) or not LABEL.fullmatch(value):
                raise ConfigurationError(f"{key}={value} is no label: write it as in app=trainer")
