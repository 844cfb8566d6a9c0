"""Reading tasks: `task.toml`, Dockerfiles, and where additions are not seen by tests. No sandbox."""

from pathlib import Path

import pytest

from envtorch.envs.terminal_env.dockerfiles import read_dockerfile
from envtorch.envs.terminal_env.episode_tasks import TaskFolder
from envtorch.envs.terminal_env.graded_paths import closed_folders
from envtorch.envs.terminal_env.harbor import BUNDLED, find_tasks, load_task
from envtorch.errors import ConfigurationError


def write_task(folder: Path, toml: str) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests/test.sh").write_text("true")
    (folder / "instruction.md").write_text("Do it.")
    (folder / "task.toml").write_text(toml)
    return folder


def test_every_bundled_task_is_read() -> None:
    for path in find_tasks(BUNDLED):
        task = load_task(path)
        assert task.has_solution
        assert task.instruction


def test_limits_artifacts_and_older_spellings_are_read(tmp_path: Path) -> None:
    toml = (
        'version = "1.0"\nartifacts = ["/out", {source = "/log"}]\n'
        '[environment]\nmemory_mb = 128\nstorage_mb = "2G"\nworkdir = "/w"\n[environment.env]\nA = "b"\n'
        "[verifier]\ntimeout_sec = 7\n"
    )
    task = load_task(write_task(tmp_path / "t", toml))
    assert task.declared_paths == ["/out", "/log"]
    assert (task.file.environment.memory_mb, task.file.environment.storage_mb) == (128, 2048)
    assert (task.file.environment.workdir, task.file.environment.env) == ("/w", {"A": "b"})
    assert (task.grading, task.file.verifier.timeout_sec) == ("artifacts", 7.0)


@pytest.mark.parametrize(
    ("toml", "key", "meant"),
    [
        ("[agent]\ntimout_sec = 9", "[agent] timout_sec", "timeout_sec"),
        ("[verifier]\ntimeout = 9", "[verifier] timeout", "timeout_sec"),
        ("[environment]\nmemory-mb = 9", "[environment] memory-mb", "memory_mb"),
        ("[environment]\nworkDir = '/w'", "[environment] workDir", "workdir"),
        ("[environment]\ncpu = 1", "[environment] cpu", "cpus"),
        ("[environment.healthcheck]\nretrise = 1", "[environment.healthcheck] retrise", "retries"),
        ("[verifer]\ntimeout_sec = 9", "verifer", "verifier"),
        ("artefacts = ['/app']", "artefacts", "artifacts"),
    ],
)
def test_a_key_like_one_of_the_format_is_told_and_the_task_is_read(
    tmp_path: Path, toml: str, key: str, meant: str
) -> None:
    (told,) = load_task(write_task(tmp_path / "t", toml)).misspelt_keys
    assert told.startswith(f"task.toml: {key} is not a key of the format")
    assert f"write {meant}," in told


@pytest.mark.parametrize(
    "toml",
    [
        'version = "1.0"\n[metadata]\nauthor_nam = "x"\n[task]\nauthor = "x"',
        '[environment]\nmemory = "2G"\nstorage = "10G"\nallow_internet = true',
        "[environment.env]\nTIMOUT_SEC = '1'",
        "[agent]\nmax_timeout_sec = 9\n[runner]\nkind = 'x'\n[verifier]\nrestart_environment = false",
    ],
)
def test_keys_that_others_have_added_stand(tmp_path: Path, toml: str) -> None:
    assert load_task(write_task(tmp_path / "t", toml)).misspelt_keys == ()


def test_no_bundled_task_has_a_misspelt_key() -> None:
    assert [load_task(path).misspelt_keys for path in find_tasks(BUNDLED)] == [()] * len(find_tasks(BUNDLED))


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("not toml", "is not TOML"),
        ("[environment]\nmemory_mb = 'many'", "environment.memory_mb"),
        ("[[steps]]\nname = 'one'", "several steps"),
        ("[environment]\nos = 'windows'", "only linux"),
        ("[environment.env]\nKEY = '${SECRET}'", "host's environment"),
        ("[metadata.envtorch]\ngrading = 'kind'", "grading"),
        ("[metadata.envtorch]\ngradings = 'image'", "gradings"),
    ],
)
def test_a_wrong_task_is_refused_with_the_place(tmp_path: Path, toml: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_task(write_task(tmp_path / "t", toml))


def test_a_directory_that_is_no_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="this is no task"):
        load_task(tmp_path)
    write_task(tmp_path / "t", "")
    (tmp_path / "t/tests/test.sh").unlink()
    with pytest.raises(ConfigurationError, match="cannot be graded"):
        load_task(tmp_path / "t")


def test_the_hash_changes_with_the_contents(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t", "")
    before = load_task(folder).digest
    (folder / "tests/test.sh").write_text("false")
    assert load_task(folder).digest != before


def test_a_dockerfile_is_read_as_instructions() -> None:
    text = (
        "# a comment\nFROM debian:12\nARG V=1\nENV A=1 B='two words'\nRUN one \\\n  && two\n"
        'COPY ["a b", "/x/"]\nCOPY --chown=a:b c$V ${A}/\nWORKDIR /w\nEXPOSE 80\nCMD ["x"]\n'
    )
    found = [(one.name, one.words) for one in read_dockerfile(text, "Dockerfile")]
    assert found == [
        ("FROM", ("debian:12",)),
        ("ARG", ("V=1",)),
        ("ENV", ("A=1", "B=two words")),
        ("RUN", ("one    && two",)),
        ("COPY", ("a b", "/x/")),
        ("COPY", ("c1", "1/")),
        ("WORKDIR", ("/w",)),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM a\nFROM b", "line 2: a second stage"),
        ("FROM a\nONBUILD RUN x", "line 2: ONBUILD is not supported"),
        ("COPY --from=b x y", "--from=b is not supported"),
        ("COPY x", "a source and a destination"),
        ("ADD https://example.org/x y", "there is no network"),
        ("RUN <<E\nx\nE", "here-document"),
    ],
)
def test_what_a_dockerfile_may_not_say_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_dockerfile(text, "Dockerfile")


def test_folders_in_which_programs_look_for_files_are_closed() -> None:
    environment = {
        "PATH": "/opt/conda/bin:/usr/bin:relative:/tools",
        "PYTHONPATH": "/opt/modules/",
        "HOME": "/home/tester",
        "OUTPUT": "/output",
        "ROOT_HOME": "/",
    }
    closed = set(closed_folders(environment))
    assert {"/opt/conda", "/tools", "/opt/modules", "/home/tester", "/usr", "/etc", "/root"} <= closed
    assert not {"/", "/output", "relative", "/opt", "/home"} & closed


def test_a_plan_that_is_given_is_that_of_tasks_that_choose_none(tmp_path: Path) -> None:
    plain = write_task(tmp_path / "plain", "")
    declaring = write_task(tmp_path / "declaring", 'artifacts = ["/out"]\n')
    choosing = write_task(tmp_path / "choosing", '[metadata.envtorch]\ngrading = "live"\n')
    folders = (plain, declaring, choosing)
    assert [load_task(folder).grading for folder in folders] == ["image", "artifacts", "live"]
    assert [load_task(folder, grading="agent").grading for folder in folders] == [
        "agent",
        "artifacts",
        "live",
    ]
    with pytest.raises(ConfigurationError, match="there are: image, artifacts, live, agent"):
        TaskFolder(tmp_path, grading="agnet")  # type: ignore[arg-type]
