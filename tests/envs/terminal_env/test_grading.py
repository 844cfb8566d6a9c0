"""Grades: solutions score 1, nothing and cheats score less, and a missing reward is an error."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalObservation
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask, TaskFolder
from envtorch.envs.terminal_env.harbor import BUNDLED, find_tasks, load_task
from envtorch.envs.terminal_env.task_checks import check_task
from envtorch.errors import EnvironmentFailed, InvalidAction
from tests.envs.terminal_env.cheats import AT_THE_GRADE, CHEATS, SET_USER_ID, WRONG_WORK
from tests.envs.terminal_env.made_tasks import make_task
from tests.sandbox.roots import HOST, require_host_root
from tests.support import PATIENCE_S

NAMES = [path.name for path in find_tasks(BUNDLED)]
TOOLS = {"compile-a-program": "gcc", "find-a-lost-commit": "git", "install-a-package": "dpkg-deb"}


def begin(name: str) -> EpisodeTask:
    require_host_root()
    for program in ("python3", TOOLS.get(name, "bash")):
        if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
            pytest.skip(f"this machine has no {program} for the task {name}")
    return TaskFolder(None).begin(name, HOST)


def reward_after(episode: EpisodeTask, command: str) -> float:
    """The reward of an agent that runs one command."""
    with episode.open() as workspace:
        workspace.run(command, timeout_s=20)
        return episode.grade(workspace).reward


def test_there_are_ten_tasks() -> None:
    assert len(NAMES) == 10


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_scores_nothing(cheat: str) -> None:
    assert reward_after(begin("clean-up-data"), CHEATS[cheat]) == 0.0


REAL = (
    "interpreter replaced in place",
    "shim first in PATH",
    "path file",
    "path file with a name that is no text",
    "library in an archive",
    "module that the image would import",
)


@pytest.mark.parametrize("cheat", REAL)
def test_the_same_cheats_do_work_where_the_agents_machine_is_the_result(cheat: str) -> None:
    """So the cheats are real ones: plan "agent" runs whatever the agent has made of the programs."""
    episode = begin("clean-up-data")
    task = episode.task.model_copy(update={"grading": "agent"})
    assert reward_after(dataclasses.replace(episode, task=task), CHEATS[cheat]) == 1.0


@pytest.mark.parametrize("cheat", AT_THE_GRADE)
def test_a_program_that_the_tests_run_cannot_grade_itself(cheat: str) -> None:
    episode = begin("fix-a-failing-test")
    with episode.open() as workspace:
        workspace.write_file("/app/prices.py", AT_THE_GRADE[cheat].encode())
        assert episode.grade(workspace).reward == 0.0


def test_a_program_that_runs_as_its_owner_is_no_such_program_for_the_tests() -> None:
    episode = begin("compile-a-program")
    assert reward_after(episode, SET_USER_ID) == 0.0
    task = episode.task.model_copy(update={"grading": "agent"})
    assert reward_after(dataclasses.replace(episode, task=task), SET_USER_ID) == 1.0, (
        "the cheat is a real one"
    )


@pytest.mark.parametrize("cheat", WRONG_WORK)
def test_work_that_is_not_what_a_task_asks_for_scores_nothing(cheat: str) -> None:
    name, command = WRONG_WORK[cheat]
    assert reward_after(begin(name), command) == 0.0


@pytest.mark.parametrize("name", ["fix-a-failing-test", "configure-a-server", "install-a-package"])
def test_the_solution_scores_1_and_nothing_scores_0(name: str) -> None:
    begin(name)
    found = check_task(BUNDLED / name, HOST)
    assert found.ok, found.problems
    assert (found.solution_reward, found.nothing_reward) == (1.0, 0.0)


@pytest.mark.terminal
@pytest.mark.parametrize("name", NAMES)
def test_every_task_is_sound(name: str) -> None:
    begin(name)
    found = check_task(BUNDLED / name, HOST)
    assert found.ok, found.problems


@pytest.mark.terminal
@pytest.mark.parametrize("name", NAMES)
def test_every_cheat_scores_nothing_in_every_task(name: str) -> None:
    episode = begin(name)
    rewards = {cheat: reward_after(episode, command) for cheat, command in CHEATS.items()}
    assert {cheat: reward for cheat, reward in rewards.items() if reward} == {}


def test_what_was_reverted_and_hidden_is_told() -> None:
    episode = begin("clean-up-data")
    with episode.open() as workspace:
        workspace.run(
            "echo x >> /etc/passwd; rm /etc/issue; printf x > /usr/local/bin/python3; echo y > /etc/new;"
            "mkdir /usr/share/mine; touch /usr/share/mine/a /usr/share/mine/b; touch /opt/data"
        )
        episode.solve(workspace)
        graded = episode.grade(workspace)
    assert graded.reward == 1.0
    assert {"/etc/passwd", "/etc/issue"} <= set(graded.reverted)
    assert {"/usr/local/bin/python3", "/etc/new", "/usr/share/mine"} <= set(graded.hidden)
    assert not {"/opt/data", "/usr/share/mine/a"} & set(graded.hidden)


def test_names_of_hosts_are_told_as_reverted_when_the_agent_changed_them_and_only_then() -> None:
    episode = begin("clean-up-data")
    with episode.open() as workspace:
        (copy,) = workspace.fork()
        with copy:
            assert episode.grade(copy).reverted == ()
        workspace.run("echo 10.1.1.1 database >> /etc/hosts; rm /etc/resolv.conf")
        assert set(episode.grade(workspace).reverted) == {"/etc/hosts", "/etc/resolv.conf"}


SEEN = ("/app/a", "/out/a", "/opt/a", "/srv/a/b", "/tmp/a", "/home/user/a", "/opt/tool/a", "/var/www/a")
NOT_SEEN = (
    "/usr/bin/a",
    "/usr/local/lib/a",
    "/etc/a",
    "/root/.a",
    "/var/lib/a",
    "/a",
    "/.a/a",
    "/node_modules/a",
    "/opt/venv/lib/a",
    "/opt/modules/a",
)


def test_additions_are_seen_where_data_is_kept_and_nowhere_else(tmp_path: Path) -> None:
    require_host_root()
    docker = "FROM debian:12\nRUN mkdir -p /opt/venv/bin /opt/venv/lib /opt/tool /opt/modules /home/user\n"
    docker += "ENV NODE_PATH=/opt/modules\nWORKDIR /app\n"
    test = (
        f"ls -d {' '.join(SEEN + NOT_SEEN)}; stat -c %a /tmp /root /opt; echo 1 > /logs/verifier/reward.txt"
    )
    made = make_task(tmp_path / "t", test, **{"environment/Dockerfile": docker})
    episode = EpisodeTask.of(load_task(made), HOST)
    with episode.open() as workspace:
        for path in SEEN + NOT_SEEN:
            workspace.write_file(path, b"x")
        workspace.run("chmod 777 /root /opt")
        output = episode.grade(workspace).output.splitlines()
    assert [path for path in SEEN + NOT_SEEN if path in output] == list(SEEN)
    assert {"1777", "700", "755"} == {line for line in output if line.isdigit()}


def test_a_declared_path_is_graded_as_it_was_left_also_when_folders_above_it_were_removed(
    tmp_path: Path,
) -> None:
    require_host_root()
    docker = "FROM debian:12\nRUN mkdir -p /srv/a/out && touch /srv/a/out/old /srv/a/other\nWORKDIR /app\n"
    files = {"task.toml": 'artifacts = ["/srv/a/out"]\n', "environment/Dockerfile": docker}
    test = "find /srv; echo 1 > /logs/verifier/reward.txt"
    episode = EpisodeTask.of(load_task(make_task(tmp_path / "t", test, **files)), HOST)

    def seen_after(command: str) -> list[str]:
        with episode.open() as workspace:
            workspace.run(command)
            return episode.grade(workspace).output.split()

    above = ["/srv", "/srv/a"]
    assert seen_after("true") == [*above, "/srv/a/other", "/srv/a/out", "/srv/a/out/old"]
    assert seen_after("rm -r /srv/a") == [*above, "/srv/a/other"]
    replaced = seen_after("rm -r /srv/a; mkdir -p /srv/a/out; touch /srv/a/out/new")
    assert sorted(replaced) == [*above, "/srv/a/other", "/srv/a/out", "/srv/a/out/new"]
    assert sorted(seen_after("rm -r /srv/a; ln -s /etc /srv/a")) == [*above, "/srv/a/other"]


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("true", "left no reward"),
        ("echo NaN > /logs/verifier/reward.txt", "no finite number"),
        ("printf '1%0400d' 0 > /logs/verifier/reward.txt", "no finite number"),
        ("""echo '{"a": 1e308, "b": 1e308}' > /logs/verifier/reward.json""", "no finite number"),
        ("echo > /logs/verifier/reward.txt", "holds no reward"),
        ("mkdir /logs/verifier/reward.json", "not a regular file"),
    ],
)
def test_a_missing_reward_is_an_error_and_not_0(tmp_path: Path, test: str, why: str) -> None:
    require_host_root()
    episode = EpisodeTask.of(load_task(make_task(tmp_path / "t", test)), HOST)
    with episode.open() as workspace, pytest.raises(EnvironmentFailed, match=why):
        episode.grade(workspace)


def test_several_rewards_are_told_by_name(tmp_path: Path) -> None:
    require_host_root()
    test = 'cd /logs/verifier; echo \'{"speed": 1, "style": 0.5}\' > reward.json; echo 0 > reward.txt'
    episode = EpisodeTask.of(load_task(make_task(tmp_path / "t", test)), HOST)
    with episode.open() as workspace:
        graded = episode.grade(workspace)
    assert graded.reward == 0.75
    assert graded.rewards == {"speed": 1.0, "style": 0.5}


def test_declared_artifacts_are_all_that_is_graded(tmp_path: Path) -> None:
    require_host_root()
    test = "[ -f /out/a ] && [ ! -e /app/b ] && [ ! -e /opt/c ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    folder = make_task(tmp_path / "t", test, **{"task.toml": 'artifacts = ["/out"]\n'})
    episode = EpisodeTask.of(load_task(folder), HOST)
    assert episode.task.grading == "artifacts"
    assert reward_after(episode, "mkdir /out /opt/d; touch /out/a /app/b /opt/c") == 1.0


def test_a_task_that_leaks_its_tests_or_passes_untouched_is_found(tmp_path: Path) -> None:
    require_host_root()
    secret = "# a long line that gives the whole answer away\n"
    files = {"environment/notes.txt": secret, "tests/answer.txt": secret, "solution/solve.sh": "true"}
    files["environment/Dockerfile"] = "FROM debian:12\nWORKDIR /app\nCOPY notes.txt /tests/\n"
    found = check_task(make_task(tmp_path / "t", "echo 1 > /logs/verifier/reward.txt", **files), HOST)
    told = " ".join(found.problems)
    assert "environment/notes.txt, which is the same as tests/answer.txt" in told
    assert "the image has /tests" in told
    assert "pass without any work" in told


def test_a_task_is_played_by_its_name_and_graded_when_submitted() -> None:
    begin("search-a-log")
    environment = TerminalEnvironment(policy=HOST)
    first = environment.reset(task="search-a-log")
    assert "auth.log" in str(first.result)
    assert first.directory == "/app"
    count = "awk '$4 == \"failed\" {n[$3]++} END {for (a in n) print a, n[a]}' auth.log"
    environment.step(BashAction(f"{count} | sort -k2 -n | tail -1 > answer.txt"))
    twin = environment.fork()
    twin.step(BashAction("echo wrong > answer.txt"))
    worse, better = (one.step(SubmitAction()) for one in (twin, environment))
    assert isinstance(better, TerminalObservation)
    assert (better.reward, better.done, worse.reward) == (1.0, True, 0.0)
    assert better.metadata["grade"]["plan"] == "image"
    for one in (twin, environment):
        one.close()


def test_a_client_names_tasks_and_no_other_directories() -> None:
    environment = TerminalEnvironment(policy=HOST)
    for name in ("/etc", "../tasks/search-a-log", "unknown"):
        with pytest.raises(InvalidAction, match="there is no task"):
            environment.reset(task=name)
    with pytest.raises(InvalidAction, match="there is no split 'train'"):
        environment.num_tasks("train")
    assert environment.num_tasks("tasks") == 10
    task = environment.get_task("tasks", 0)
    assert set(task) == {"id", "hash", "task"}
    assert "solution" not in str(task)


@pytest.mark.terminal
def test_the_example_finds_the_branch_that_solves_its_task_and_draws_the_tree(tmp_path: Path) -> None:
    begin("clean-up-data")
    example = Path(__file__).parents[3] / "examples/terminal_tree.py"
    command = [sys.executable, str(example), str(tmp_path / "tree.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "12 leaves; the best one scores 1" in done.stdout, done.stdout + done.stderr
    nodes = [one for one in ElementTree.parse(tmp_path / "tree.svg").getroot() if one.tag.endswith("circle")]
    assert len(nodes) == 1 + 2 + 4 + 12
    assert len([node for node in nodes if node.get("class") == "best"]) == 4
