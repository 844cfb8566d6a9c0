"""Unpacking archives of roots: what is in them is there, and nothing else of this machine is touched."""

import io
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox.root_unpacking import Unpacked, unpack


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    made.uid, made.gid = os.getuid(), os.getgid()
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def archive(entries: Sequence[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for one in entries:
            member, data = one if isinstance(one, tuple) else (one, b"")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    stream.seek(0)
    return stream


def opened(
    folder: Path, *entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], owners: bool = False
) -> Unpacked:
    place = folder / "root"
    place.mkdir()
    return unpack(archive(entries), str(place), keep_owners=owners)


def test_files_folders_and_links_are_as_in_the_archive(tmp_path: Path) -> None:
    done = opened(
        tmp_path,
        entry("usr", tarfile.DIRTYPE),
        (entry("usr/a", mode=0o751, mtime=1_000_000), b"text"),
        entry("usr/b", tarfile.LNKTYPE, linkname="usr/a"),
        entry("bin", tarfile.SYMTYPE, linkname="/usr"),
        entry("closed", tarfile.DIRTYPE, mode=0o500),
        (entry("closed/in", mode=0o600), b"x"),
        entry("pipe", tarfile.FIFOTYPE),
    )
    root = tmp_path / "root"
    assert (root / "usr/a").read_bytes() == b"text"
    assert (root / "usr/a").stat().st_mtime == 1_000_000
    assert (root / "usr/a").samefile(root / "usr/b")
    assert os.readlink(root / "bin") == "/usr"
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert (root / "closed/in").read_bytes() == b"x"
    assert (done.files, done.size) == (7, 5)


@pytest.mark.parametrize(
    "hostile",
    [
        [(entry("../escaped"), b"x")],
        [(entry("usr/../../escaped"), b"x")],
        [entry("link", tarfile.SYMTYPE, linkname=".."), (entry("link/escaped"), b"x")],
        [entry("link", tarfile.SYMTYPE, linkname="/tmp"), entry("link/escaped", tarfile.DIRTYPE)],
        [entry("hard", tarfile.LNKTYPE, linkname="../outside")],
        [entry("l", tarfile.SYMTYPE, linkname=".."), entry("hard", tarfile.LNKTYPE, linkname="l/outside")],
        [entry("hard", tarfile.LNKTYPE, linkname="/etc/passwd")],
        [entry("hard", tarfile.LNKTYPE, linkname="")],
        [entry("d", tarfile.DIRTYPE), entry("d", tarfile.SYMTYPE, linkname=".."), (entry("d/escaped"), b"x")],
        [(entry("f"), b"x"), (entry("f/below"), b"x")],
    ],
)
def test_an_entry_that_leads_out_is_refused_and_nothing_is_written_outside(
    tmp_path: Path, hostile: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "outside").write_text("secret")
    with pytest.raises((ConfigurationError, OSError)):
        opened(tmp_path, *hostile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]
    assert (tmp_path / "outside").stat().st_nlink == 1


def test_a_file_is_never_written_through_a_link_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    opened(tmp_path, entry("f", tarfile.SYMTYPE, linkname="../outside"), (entry("f"), b"new"))
    assert (tmp_path / "outside").read_text() == "secret"
    assert (tmp_path / "root/f").read_text() == "new"


def test_an_absolute_path_is_one_of_the_root(tmp_path: Path) -> None:
    opened(tmp_path, (entry("/etc/motd"), b"inside"))
    assert (tmp_path / "root/etc/motd").read_text() == "inside"


def test_devices_and_what_every_session_has_of_its_own_are_left_out(tmp_path: Path) -> None:
    done = opened(
        tmp_path,
        entry("disk", tarfile.BLKTYPE, devmajor=8, devminor=0),
        entry("hidden", tarfile.CHRTYPE),  # to overlayfs, 0/0 would be the absence of a name
        entry("dev", tarfile.DIRTYPE),
        (entry("dev/null"), b"not a device"),
        (entry("proc/x"), b""),
        entry(".dockerenv"),
        entry("etc", tarfile.DIRTYPE),
    )
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["dev", "etc"]
    assert not list((tmp_path / "root/dev").iterdir())
    assert done.left_out == 4


def test_marks_of_overlayfs_and_file_capabilities_do_not_come_along(tmp_path: Path) -> None:
    marked = entry("d", tarfile.DIRTYPE)
    marked.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "x"}
    opened(tmp_path, marked)
    assert os.listxattr(tmp_path / "root/d") == []


def test_without_owners_all_is_the_callers_and_no_program_is_set_user_id(tmp_path: Path) -> None:
    opened(
        tmp_path,
        (entry("su", mode=0o6755, uid=0), b"x"),
        entry("d", tarfile.DIRTYPE, mode=0o3000, uid=7),
    )
    assert (tmp_path / "root/su").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "root/d").stat().st_mode & 0o7777 == 0o1700
    assert (tmp_path / "root/d").stat().st_uid == os.getuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_as_root_owners_and_set_user_id_bits_are_kept_and_impossible_owners_become_nobody(
    tmp_path: Path,
) -> None:
    done = opened(
        tmp_path,
        (entry("su", mode=0o4755, uid=0, gid=7), b"x"),
        (entry("far", uid=70_000, gid=5), b"x"),
        entry("link", tarfile.SYMTYPE, linkname="su", uid=9),
        owners=True,
    )
    su, far, link = (os.lstat(tmp_path / "root" / name) for name in ("su", "far", "link"))
    assert (su.st_mode & 0o7777, su.st_uid, su.st_gid) == (0o4755, 0, 7)
    assert (far.st_uid, far.st_gid, done.renumbered) == (65_534, 65_534, 1)
    assert link.st_uid == 9


def test_the_digest_is_of_contents_and_rights_and_not_of_order_and_times(tmp_path: Path) -> None:
    def digest(place: str, *entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> str:
        (tmp_path / place).mkdir()
        return opened(tmp_path / place, *entries).digest

    first = digest("1", (entry("a", mtime=1), b"1"), (entry("b"), b"2"))
    assert digest("2", (entry("b", mtime=9), b"2"), (entry("a"), b"1")) == first
    assert digest("3", (entry("a"), b"1"), (entry("b"), b"other")) != first
    assert digest("4", (entry("a"), b"1"), (entry("b", mode=0o755), b"2")) != first
    assert digest("5", (entry("a"), b"1"), (entry("c"), b"2")) != first


@pytest.mark.parametrize("data", [b"", b"no archive at all" * 100, archive([entry("a")]).getvalue()[:100]])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="no archive"):
        unpack(io.BytesIO(data), str(tmp_path), keep_owners=False)
