"""Merging layers, and taking out of them what may be seen above an image."""

import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from envtorch.sandbox.guest import layer_merging, tree
from envtorch.sandbox.guest.layer_merging import Selection, extract, merge
from envtorch.sandbox.guest.layers import hide, is_whiteout, make_opaque


def make(folder: Path, *files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{folder.name}:{name}")
    return folder


def found_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make(tmp_path / "target")


def selection(*kept: str, open_folders: tuple[str, ...] = (), closed: tuple[str, ...] = ()) -> Selection:
    return Selection.of(kept, open_folders, closed)


def test_a_merged_layer_means_what_its_layers_mean(tmp_path: Path, target: Path) -> None:
    lower = make(tmp_path / "lower", "a/one", "a/two", "b/one", "c", "d/one")
    upper = make(tmp_path / "upper", "a/one", "b/new", "d")
    hide(str(upper / "a/two"))
    hide(str(upper / "c"))
    make_opaque(str(upper / "b"))
    (upper / "tool").write_text("#!")
    (upper / "tool").chmod(0o4755)
    merge([str(upper), str(lower)], str(target))
    assert found_in(target) == {"a/one", "a/two", "b/new", "c", "d", "tool"}
    assert (target / "a/one").read_text() == "upper:a/one"
    assert is_whiteout(os.lstat(target / "a/two"))
    assert is_whiteout(os.lstat(target / "c"))
    assert os.getxattr(target / "b", "user.overlay.opaque") == b"y"
    assert stat.S_IMODE((target / "tool").stat().st_mode) == 0o4755


def test_files_of_the_image_are_not_taken_and_are_named(tmp_path: Path, target: Path) -> None:
    image = make(tmp_path / "image", "etc/passwd", "etc/issue", "opt/tool/bin/run", "srv/data", "app/in")
    layer = make(tmp_path / "layer", "etc/passwd", "etc/new/a", "opt/tool/lib/x", "opt/mine", "srv/data")
    make(layer, "srv/more", "app/in", "app/out", "loose")
    hide(str(layer / "etc/issue"))
    chosen = selection("/app", open_folders=("/",), closed=("/etc",))
    left_out = extract([str(layer)], str(target), chosen, str(image))
    assert found_in(target) == {"app/in", "app/out", "opt/mine", "srv/more"}
    assert left_out.reverted == {"/etc/passwd", "/etc/issue", "/srv/data"}
    assert left_out.hidden == {"/etc/new", "/opt/tool/lib", "/loose"}


def test_a_file_where_the_image_has_a_folder_and_the_other_way_round_are_not_taken(
    tmp_path: Path, target: Path
) -> None:
    image = make(tmp_path / "image", "data/a", "file")
    lower = make(tmp_path / "lower", "data/added")
    upper = make(tmp_path / "upper", "file/inside")
    (upper / "data").symlink_to("/etc")
    left_out = extract([str(upper), str(lower)], str(target), selection(open_folders=("/",)), str(image))
    assert found_in(target) == set(), "what the lower layer had added was removed again"
    assert left_out.reverted == {"/data", "/file"}


def test_no_program_that_is_taken_runs_as_its_owner(tmp_path: Path, target: Path) -> None:
    layer = make(tmp_path / "layer", "app/tool")
    (layer / "app/tool").chmod(0o6755)
    extract([str(layer)], str(target), selection("/app"), str(make(tmp_path / "image")))
    assert stat.S_IMODE((target / "app/tool").stat().st_mode) == 0o755


def test_folders_above_what_is_taken_are_as_the_image_has_them(tmp_path: Path, target: Path) -> None:
    image, layer = make(tmp_path / "image", "srv/a/b/c"), make(tmp_path / "layer", "srv/a/b/c")
    (image / "srv").chmod(0o711)
    (layer / "srv").chmod(0o777)
    extract([str(layer)], str(target), selection("/srv/a/b"), str(image))
    assert stat.S_IMODE((target / "srv").stat().st_mode) == 0o711
    assert found_in(target) == {"srv/a/b/c"}


def test_links_of_an_agent_lead_nowhere(tmp_path: Path, target: Path) -> None:
    """A path that is declared below another one, which the agent has made a link to a folder of ours."""
    outside = make(tmp_path / "outside", "out/kept")
    image, layer = make(tmp_path / "image", "app/out/a"), make(tmp_path / "layer")
    (layer / "app").symlink_to(outside)
    extract([str(layer)], str(target), selection("/app", "/app/out", "/app/new"), str(image))
    assert (target / "app").readlink() == outside
    assert found_in(outside) == {"out/kept"}


def test_depth_holes_and_names_of_one_file_are_copied_as_they_are(tmp_path: Path, target: Path) -> None:
    layer = make(tmp_path / "layer", "one")
    os.link(layer / "one", layer / "two")
    with (layer / "hole").open("wb") as file:
        file.truncate(1 << 33)
    here = os.open(layer, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    merge([str(layer)], str(target))
    top = os.open(target, os.O_RDONLY)
    depth = sum(entry.name == "d" for entry in tree.walk(top))
    os.close(top)
    tree.remove(str(layer / "d"))  # too deep for whoever cleans up here
    tree.remove(str(target / "d"))
    assert depth == 1500
    assert (target / "one").stat().st_ino == (target / "two").stat().st_ino
    assert (target / "hole").stat().st_size == 1 << 33
    assert (target / "hole").stat().st_blocks < 1000


@pytest.mark.parametrize("names", [1, 2])
def test_merging_keeps_no_path_of_a_file_whose_names_have_all_been_seen(
    tmp_path: Path, target: Path, names: int
) -> None:
    layer = make(tmp_path / "layer")
    folder = layer.joinpath(*["d" * 200] * 15)
    folder.mkdir(parents=True)
    for number in range(800):
        (folder / f"{number}-0").touch()
        for other in range(1, names):
            os.link(folder / f"{number}-0", folder / f"{number}-{other}")
    tracemalloc.start()
    try:
        merge([str(layer)], str(target))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found_in(target)) == 800 * names
    assert most < 800 * len(str(folder)) / 2


def test_files_with_more_names_than_can_be_kept_become_files_of_their_own(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_merging, "_MOST_LINKED", 3 * len(f"{target}/a0"))
    layer = make(tmp_path / "layer", *(f"a{number}" for number in range(4)))
    for number in range(4):
        for other in "bc":
            os.link(layer / f"a{number}", layer / f"{other}{number}")
    merge([str(layer)], str(target))
    assert [(target / f"a{number}").stat().st_nlink for number in range(4)] == [3, 3, 3, 1]
    assert [(target / f"b{number}").read_text() for number in range(4)] == [
        (layer / f"a{number}").read_text() for number in range(4)
    ]


def test_a_path_is_kept_behind_the_links_that_the_image_has_on_the_way(tmp_path: Path, target: Path) -> None:
    image, layer = make(tmp_path / "image", "usr/bin/sh"), make(tmp_path / "layer", "usr/bin/tool")
    (image / "bin").symlink_to("usr/bin")
    (image / "usr/more").symlink_to("/bin")
    (image / "loop").symlink_to("loop")
    make(layer, "usr/bin/other")
    left_out = extract([str(layer)], str(target), selection("/usr/more/tool", "/loop/x"), str(image))
    assert found_in(target) == {"usr/bin/tool"}
    assert left_out.hidden == {"/usr/bin/other"}
