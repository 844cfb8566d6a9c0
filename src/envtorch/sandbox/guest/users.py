"""The users of a session's root: looked up in its own files, by the process that becomes one of them."""

import os
from dataclasses import dataclass

from . import kernel

_MOST_BYTES = 1 << 20
_NO_ENTRY = 2


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the root, and its groups."""

    name: str
    user: int
    group: int
    groups: tuple[int, ...]
    home: str


def find(wanted: str) -> Account:
    """The account that `wanted` names, as in a Dockerfile: `name`, `name:group`, `1000` or `1000:1000`.

    A number needs no entry in /etc/passwd. Raises `OSError` for a name that has none.
    """
    user, _, group = wanted.partition(":")
    entry = _entry("/etc/passwd", user, 2)
    if entry is None and not user.isdecimal():
        raise OSError(_NO_ENTRY, f"the root has no user {user!r} in /etc/passwd")
    name = user if entry is None else entry[0]
    number = int(user) if entry is None else int(entry[2])
    home = "/" if entry is None or len(entry) < 6 else entry[5] or "/"
    primary = _group(group or ("0" if entry is None or len(entry) < 4 else entry[3]))
    others = () if group else _groups_with(name)
    return Account(name, number, primary, (primary, *others), home)


def become(account: Account) -> None:
    """Give up being root for good. Raises `OSError` where the user's id is not mapped.

    The process stays undumpable: for one whose user changes, the kernel takes `fs.suid_dumpable` instead.
    """
    try:
        os.setgroups(account.groups)
        os.setresgid(account.group, account.group, account.group)
        os.setresuid(account.user, account.user, account.user)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the session cannot run as {account.name}: {error.strerror}. An ordinary user of this machine "
            "has one id to map, so all sessions run as root inside",
        ) from error
    kernel.set_dumpable(False)


def _lines(path: str) -> list[list[str]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.split(":") for line in text.splitlines() if line and not line.startswith("#")]


def _entry(path: str, wanted: str, number_field: int) -> list[str] | None:
    """The entry with that name, else the one with that number."""
    entries = [entry for entry in _lines(path) if len(entry) > number_field and _is_number(entry[2])]
    by_name = next((entry for entry in entries if entry[0] == wanted), None)
    return by_name or next((entry for entry in entries if entry[number_field] == wanted), None)


def _group(wanted: str) -> int:
    entry = _entry("/etc/group", wanted, 2)
    if entry is None and not wanted.isdecimal():
        raise OSError(_NO_ENTRY, f"the root has no group {wanted!r} in /etc/group")
    return int(wanted) if entry is None else int(entry[2])


def _groups_with(name: str) -> tuple[int, ...]:
    entries = [entry for entry in _lines("/etc/group") if len(entry) > 3 and _is_number(entry[2])]
    return tuple(int(entry[2]) for entry in entries if name in entry[3].split(","))[:64]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
