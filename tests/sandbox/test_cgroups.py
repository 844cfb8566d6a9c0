"""Control groups of both versions, on a tree of plain files; the live ones are tested by the limits."""

from pathlib import Path

import pytest

from envtorch.sandbox.cgroups import Group, find_hierarchy


def _world(tmp_path: Path, *, membership: str, mounts: str) -> dict[str, Path]:
    files = {"membership": tmp_path / "cgroup", "mounts": tmp_path / "mountinfo"}
    files["membership"].write_text(membership)
    files["mounts"].write_text(mounts)
    return files


def _mount(place: Path, kind: str, options: str, root: str = "/") -> str:
    return f"30 25 0:26 {root} {place} rw,relatime shared:9 - {kind} {kind} {options}\n"


def test_version_2_enables_controllers_and_sets_limits(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "mine").mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpu memory pids\n")
    world = _world(tmp_path, membership="0::/mine\n", mounts=_mount(top, "cgroup2", "rw"))
    hierarchy = find_hierarchy(**world)
    assert hierarchy.version == 2
    assert (top / "mine" / "cgroup.subtree_control").read_text() == "+memory +pids"
    group = hierarchy.create(memory_bytes=1000, processes=7)
    assert group is not None
    folder = group.folders["memory"]
    assert folder == group.folders["pids"]
    assert folder.is_relative_to(top / "mine")
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "pids.max").read_text() == "7"
    group.add(42)
    assert (folder / "cgroup.procs").read_text() == "42"


def test_version_2_counts_what_the_kernel_reports(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "pids.events").write_text("max 5\n")
    group = Group(2, {"memory": tmp_path, "pids": tmp_path})
    assert (group.oom_kills(), group.refused_processes()) == (2, 5)


def test_version_1_has_one_folder_for_each_controller(tmp_path: Path) -> None:
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    memory.mkdir()
    (pids / "box").mkdir(parents=True)
    mounts = _mount(memory, "cgroup", "rw,memory") + _mount(pids, "cgroup", "rw,pids")
    hierarchy = find_hierarchy(**_world(tmp_path, membership="4:memory:/\n5:pids:/box\n", mounts=mounts))
    assert hierarchy.version == 1
    group = hierarchy.create(memory_bytes=1000, processes=7)
    assert group is not None
    assert (group.folders["memory"] / "memory.limit_in_bytes").read_text() == "1000"
    assert (group.folders["memory"] / "memory.kmem.tcp.limit_in_bytes").read_text() == "250"
    assert group.folders["pids"].is_relative_to(pids / "box")


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_a_container_finds_its_own_group_at_the_top(tmp_path: Path, kind: str) -> None:
    """Without a namespace of its own it is told the path of the machine, and sees only what is below."""
    top = tmp_path / "top"
    top.mkdir()
    (top / "cgroup.controllers").write_text("memory pids\n")
    controllers = "" if kind == "cgroup2" else "memory,pids"
    mounts = _mount(top, kind, f"rw,{controllers}".removesuffix(","), root="/docker/abc")
    world = _world(tmp_path, membership=f"0:{controllers}:/docker/abc\n", mounts=mounts)
    hierarchy = find_hierarchy(**world)
    assert hierarchy.unavailable == {}
    assert {folder.parent for folder in hierarchy.folders.values()} == {top}


def test_a_controller_that_is_missing_says_so(tmp_path: Path) -> None:
    hierarchy = find_hierarchy(**_world(tmp_path, membership="", mounts=""))
    assert set(hierarchy.unavailable) == {"memory", "pids"}
    assert hierarchy.create(memory_bytes=1, processes=1) is None


@pytest.mark.parametrize("missing", ["membership", "mounts"])
def test_a_machine_without_control_groups_is_no_crash(tmp_path: Path, missing: str) -> None:
    world = _world(tmp_path, membership="0::/\n", mounts="")
    world[missing] = tmp_path / "absent"
    assert find_hierarchy(**world).folders == {}
