"""Where a session can have a writable root, and where not: the table of `docs/workspaces.md`, as a list.

`test_attacks_on_roots` tries each place, and holds the page to this list.
"""

from dataclasses import dataclass

from tests.sandbox.elsewhere import NOBODY

__all__ = ["PLACES", "Attacked", "InContainer", "OnMachine", "Place", "Refused", "table_row"]


@dataclass(frozen=True)
class OnMachine:
    """A process of `user`, on the machine's own root or on that of an image."""

    user: int
    on_image: bool

    def __str__(self) -> str:
        return f"user {self.user} on {'an image' if self.on_image else 'the root of the machine'}"


@dataclass(frozen=True)
class InContainer:
    """A container that is started with these options of `docker run`."""

    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"container {' '.join(self.options)}".strip()


@dataclass(frozen=True)
class Attacked:
    """A session starts, and no attack breaks it. What could not be tried lacks its program in the root, so
    another image, or another machine, may have other numbers."""

    held: int
    untried: int


@dataclass(frozen=True)
class Refused:
    """No session starts."""

    told: str
    because: str
    """A pattern of what the refusal says."""


@dataclass(frozen=True)
class Place:
    where: str
    tried: tuple[OnMachine | InContainer, ...]
    outcome: Attacked | Refused


UNCONFINED = ("--security-opt", "seccomp=unconfined")
UNMASKED = ("--security-opt", "systempaths=unconfined")
ORDINARY = ("--user", "10001")

PLACES = [
    Place('the machine, as root, `root="host"`', (OnMachine(0, on_image=False),), Attacked(44, 0)),
    Place("the machine, as root, an image of the engine", (OnMachine(0, on_image=True),), Attacked(38, 6)),
    Place(
        "the machine, as an ordinary user, the same image",
        (OnMachine(NOBODY, on_image=True),),
        Attacked(38, 6),
    ),
    Place(
        "a container as an ordinary user, with `seccomp=unconfined` and `systempaths=unconfined`",
        (InContainer((*ORDINARY, *UNCONFINED, *UNMASKED)),),
        Attacked(38, 6),
    ),
    Place(
        "a privileged container, as root, with `ENVTORCH_CACHE` on a volume",
        (InContainer(("--privileged", "--volume", "/cache", "--env", "ENVTORCH_CACHE=/cache")),),
        Attacked(38, 6),
    ),
    Place(
        "a container with default settings, as root or not, also with every capability dropped",
        (
            InContainer(),
            InContainer(ORDINARY),
            InContainer(("--cap-drop", "ALL")),
            InContainer((*ORDINARY, "--cap-drop", "ALL")),
        ),
        Refused("user namespaces are refused", "a user namespace cannot be made here|unshare"),
    ),
    Place(
        "a container as root with `seccomp=unconfined`, without the capability to mount",
        (InContainer(UNCONFINED),),
        Refused("`open_tree` is refused", "open_tree"),
    ),
    Place(
        "a privileged container, roots on the container's own overlay",
        (InContainer(("--privileged",)),),
        Refused("an overlay cannot be id-mapped (`mount_setattr`)", "mount_setattr"),
    ),
]


def table_row(place: Place) -> str:
    """The line of the table on the page."""
    match place.outcome:
        case Attacked(held, untried):
            return f"| {place.where} | {held} | 0 | {untried} |"
        case Refused(told):
            return f"| {place.where} | no writable root: {told} | | |"
