"""Wrong command lines and broken environments: a sentence, the next step, the exit code, no frame of ours."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import envtorch
from envtorch.cli.exits import Exit
from envtorch.recording.format import Header, write_line
from tests.cli.warm_commands import WarmCommands, warm_commands
from tests.support import PATIENCE_S

OURS = str(Path(envtorch.__file__).parent)

GOOD = """
from envtorch import Action, EnvClient, Environment, Observation, State, create_app

class Guess(Action):
    number: int

class Hint(Observation):
    text: str = ""

class Game(Environment[Guess, Hint, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Hint:
        return Hint(text="guess")

    def step(self, action: Guess) -> Hint:
        return Hint(text="no")

    @property
    def state(self) -> State:
        return State()

class GameClient(EnvClient[Guess, Hint, State]): ...

class Unfinished(Environment[Guess, Hint, State]):
    def reset(self) -> Hint:
        return Hint()
"""


BARE = """
from envtorch import Environment, Observation, State

class Bare(Environment):
    def reset(self):
        return Observation()

    def step(self, action):
        return Observation()

    @property
    def state(self):
        return State()
"""

UNFINISHED = """
from envtorch import Action, Environment, Observation, State

class Half(Environment[Action, Observation, State]):
    def reset(self):
        return Observation()

class Base(Environment[Action, Observation, State]): ...
"""


@dataclass(frozen=True)
class Wrong:
    """A command line that is refused."""

    line: str
    code: Exit
    sentence: str
    next_step: str


SAYS = "--model scripted:policy.py:say"

WRONG = [
    Wrong("frobnicate", Exit.MISUSED, "No such command 'frobnicate'", "for help"),
    Wrong("serve", Exit.MISUSED, "Missing argument 'TARGET'", "serve -h' for help"),
    Wrong("serve good:Game --wrong", Exit.MISUSED, "No such option: --wrong", "serve -h' for help"),
    Wrong("serve good:Game --record-required", Exit.MISUSED, "needs --record", "and a directory"),
    Wrong(
        "serve eco_env",
        Exit.MISUSED,
        "did you mean echo_env?",
        "coding_env, echo_env, repl_env, terminal_env",
    ),
    Wrong("serve good", Exit.MISUSED, "did you mean good.py?", "a .py file"),
    Wrong("serve nowhere:app", Exit.MISUSED, "there is no module 'nowhere'", "./my_env.py"),
    Wrong("serve good:Gam", Exit.MISUSED, "module 'good' has no 'Gam': it has Game", "good:NAME"),
    Wrong("serve ./nowhere.py", Exit.MISUSED, "there is no file nowhere.py", "a Python file that exists"),
    Wrong("serve good:GameClient", Exit.MISUSED, "good:GameClient is a client class", "good:Game"),
    Wrong("serve good:Hint", Exit.MISUSED, "good:Hint is an observation class", "good:Game"),
    Wrong(
        "serve good:Unfinished", Exit.MISUSED, "abstract class: it does not define state, step", "define them"
    ),
    Wrong("serve good:Game --port 99999", Exit.MISUSED, "99999 is not a port", "from 0 to 65535"),
    Wrong("serve good:Game --port web", Exit.MISUSED, "web is not a port", "0 picks a free one"),
    Wrong("serve good:Game --port -1", Exit.MISUSED, "-1 is not a port", "from 0 to 65535"),
    Wrong("serve shelf", Exit.MISUSED, "in the directory", "shelf/game.py"),
    Wrong("serve drawer", Exit.MISUSED, "it has no Python files", "envtorch new NAME"),
    Wrong("serve good:Game --host nosuch.invalid", Exit.MISUSED, "is no address", "127.0.0.1"),
    Wrong("serve good:Game --fd 987", Exit.MISUSED, "--fd 987 is no open socket", "--port"),
    Wrong("serve good:Game --isolation magic", Exit.MISUSED, "isolation is 'process'", ""),
    Wrong("serve good:Game --port 0 --token-file none", Exit.MISUSED, "token file cannot be read", ""),
    Wrong("serve good:Game --record good.py", Exit.MISUSED, "recordings cannot be written to good.py", ""),
    Wrong("wheel /proc", Exit.MISUSED, "cannot be written", "a directory that you may write to"),
    Wrong("k8s render x --kustomize .", Exit.MISUSED, ". has files and is no kustomize base", "a new dir"),
    Wrong(
        "k8s render x --max-replicas 2", Exit.MISUSED, "at most 2 replicas, where there are 2 at least", ""
    ),
    Wrong("k8s render x --client trainer", Exit.MISUSED, "'trainer' is no label", ""),
    Wrong("k8s render x --command 'a \"b'", Exit.MISUSED, "No closing quotation", ""),
    Wrong("k8s render 'bad image'", Exit.MISUSED, "'bad image' is no name of an image", "my-env:1.0"),
    Wrong("check http://127.0.0.1:9", Exit.UNREACHABLE, "there is no server at", "`envtorch serve TARGET`"),
    Wrong(
        "bench good:Game --sessions many",
        Exit.MISUSED,
        "--sessions is a number, or several as in 1,8,64",
        "bench --help",
    ),
    Wrong("bench good:Game --action {", Exit.MISUSED, "--action is no JSON", ""),
    Wrong("replay nowhere.jsonl", Exit.MISUSED, "there is no recording at nowhere.jsonl", "replay --help"),
    Wrong("recording list good.py", Exit.MISUSED, "good.py is no recording", "serve --record"),
    Wrong("build nothing", Exit.MISUSED, "no environment with a Dockerfile", "echo_env"),
    Wrong("push nothing --to me/x --dry-run", Exit.MISUSED, "neither a directory nor a bundled", "echo_env"),
    Wrong("new 1x", Exit.MISUSED, "'1x' cannot be a name: use letters, digits", "envtorch new my_game"),
    Wrong("new 'my game!'", Exit.MISUSED, "'my game!' cannot be a name", "envtorch new my_game"),
    Wrong("new json", Exit.MISUSED, "'json' is taken by Python or EnvTorch itself", "envtorch new json_env"),
    Wrong("new good.py", Exit.MISUSED, "'good.py' cannot be a name", "envtorch new good_py"),
    Wrong("new name --in good.py", Exit.MISUSED, "'good.py' is a file", "new -h' for help"),
    Wrong("new name --in /proc", Exit.MISUSED, "cannot be written", "envtorch new NAME --in DIR"),
    Wrong("check bare.py", Exit.MISUSED, "Bare does not say which action", "write `class Bare(Environment["),
    Wrong(
        "check unfinished.py",
        Exit.MISUSED,
        "no environment that can be built: Half lacks state, step; Base lacks reset, state, step",
        "define state, step in Half",
    ),
    Wrong("serve good:Game --port 0 --token-file empty", Exit.MISUSED, "has no token in it", "write a token"),
    Wrong("serve good:Game --port 0 --token-file noise", Exit.MISUSED, "token file cannot be read", ""),
    Wrong(
        "check http://127.0.0.1:web", Exit.MISUSED, "is not the address of a server", "http://127.0.0.1:80"
    ),
    Wrong(
        "check http://user:secret@", Exit.MISUSED, "'http://***@' is not the address", "http://127.0.0.1:80"
    ),
    Wrong("check good.py --actions noise", Exit.MISUSED, "the actions in noise cannot be read", ""),
    Wrong(
        "bench http://127.0.0.1:web", Exit.MISUSED, "is not the address of a server", "http://127.0.0.1:80"
    ),
    Wrong("bench good:Game --seconds 0", Exit.MISUSED, "Invalid value for '--seconds'", "bench -h' for help"),
    Wrong("play good:Game", Exit.MISUSED, "play draws on a terminal", "run it in a terminal"),
    Wrong("eval good:Game --model http://:x/v1", Exit.MISUSED, "is not the address of a server", "127.0.0.1"),
    Wrong(
        "eval good:Game --model scripted:policy.py:say --tasks 1 --output noise",
        Exit.MISUSED,
        "noise cannot be written: File exists",
        "a directory that you may write to",
    ),
    Wrong(
        "eval good:Game --model scripted:policy.py:say --tasks hf:a:b:c:d",
        Exit.MISUSED,
        "'hf:a:b:c:d' names no dataset",
        "",
    ),
    Wrong(f"eval good:Game {SAYS} --step-timeout 0", Exit.MISUSED, "--step-timeout is a number of sec", ""),
    Wrong(f"eval good:Game {SAYS} --step-timeout nan", Exit.MISUSED, "--step-timeout is a number of", ""),
    Wrong(f"eval good:Game {SAYS} --temperature nan", Exit.MISUSED, "--temperature is a number of 0", ""),
    Wrong(f"eval good:Game {SAYS} --temperature -1", Exit.MISUSED, "--temperature is a number of 0", ""),
    Wrong(f"eval good:Game {SAYS} --max-tokens 0", Exit.MISUSED, "Invalid value for '--max-tokens'", ""),
    Wrong(f"eval good:Game {SAYS} --pass-at nan", Exit.MISUSED, "--pass-at is a number, not nan", ""),
    Wrong(f"eval good:Game {SAYS} --price-in -4", Exit.MISUSED, "--price-in is a number of 0 or more", ""),
    Wrong(f"eval good:Game {SAYS} --price-out inf", Exit.MISUSED, "--price-out is a number of 0 or", ""),
    Wrong(f"eval good:Game {SAYS} --requests-per-s 0", Exit.MISUSED, "--requests-per-s is a number ab", ""),
    Wrong(
        f"eval good:Game {SAYS} --tokens-per-minute -1",
        Exit.MISUSED,
        "--tokens-per-minute is a number ab",
        "",
    ),
    Wrong(f"eval 127.0.0.1:9 {SAYS}", Exit.MISUSED, "without its scheme", "http://127.0.0.1:9"),
    Wrong("check localhost:8000", Exit.MISUSED, "without its scheme", "http://localhost:8000"),
    Wrong("new --task a --in /proc", Exit.MISUSED, "cannot be written", "envtorch new --task NAME --in DIR"),
    Wrong(
        f"eval terminal_env {SAYS} --tasks unknown.jsonl",
        Exit.MISUSED,
        "a task cannot be played: there is no task 'nosuch'",
        "the tasks that --tasks names",
    ),
    Wrong("replay noise --tolerance -1", Exit.MISUSED, "Invalid value for '--tolerance'", "for help"),
    Wrong("recording show damaged.jsonl", Exit.MISUSED, "damaged.jsonl is damaged: at byte", "keep them"),
    Wrong("recording export whole.jsonl --to drawer", Exit.MISUSED, "drawer cannot be written", ""),
    Wrong("recording export whole.jsonl --to /proc/x", Exit.MISUSED, "/proc/x cannot be written", ""),
    Wrong("push noisy --to me/x --dry-run", Exit.MISUSED, "the Dockerfile of", ""),
    Wrong(
        "proxy-config nginx a=b:1 --listen here",
        Exit.MISUSED,
        "--listen 'here': 'here' is no port: write a number from 1 to 65535",
        "",
    ),
    Wrong("mcp good:Hint", Exit.MISUSED, "is an observation class", "good:Game"),
]


@dataclass(frozen=True)
class Broken:
    """The source of a module `broken`, and what is said of it."""

    source: str
    sentence: str
    code: Exit = Exit.FOUND_WANTING


BROKEN = {
    "syntax error": Broken("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
    "missing module": Broken(
        "\nimport finrl_of_nobody",
        "needs the module 'finrl_of_nobody', which is not installed (broken.py, line 2)",
    ),
    "missing name": Broken("from json import nothing", "ImportError: cannot import name 'nothing'"),
    "raises at import": Broken("raise ValueError('no data')", "ValueError: no data (broken.py, line 1)"),
    "exits at import": Broken(
        "import sys\nsys.exit('usage: me')", "SystemExit: usage: me (broken.py, line 2)"
    ),
    "name error": Broken(
        "app = create_app(1)", "NameError: name 'create_app' is not defined (broken.py, line 1)"
    ),
    "imports itself": Broken("from broken import app", "ImportError: cannot import name 'app'"),
    "constructor raises": Broken(
        GOOD + "\nclass app(Game):\n    def __init__(self): raise RuntimeError('no licence')", "no licence"
    ),
    "constructor wants arguments": Broken(
        GOOD + "\nclass app(Game):\n    def __init__(self, size): self.size = size",
        "its constructor needs 'size'",
        Exit.MISUSED,
    ),
    "no classes": Broken(
        "from envtorch import create_app, Environment\n"
        "class Bare(Environment):\n"
        "    def reset(self): ...\n    def step(self, action): ...\n    state = None\n"
        "app = create_app(Bare)",
        "Bare does not say which action and observation classes it uses",
        Exit.MISUSED,
    ),
    "not an environment": Broken(
        "from envtorch import create_app\napp = create_app(3)", "int is no environment", Exit.MISUSED
    ),
    "application is a number": Broken("app = 3", "broken:app is a value of type int", Exit.MISUSED),
}


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmCommands]:
    with warm_commands() as commands:
        yield commands


def told(stderr: str) -> str:
    return " ".join(stderr.replace("│", " ").split())


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.line)
def test_a_wrong_command_line_is_refused_in_a_sentence(
    wrong: Wrong, warm: WarmCommands, tmp_path: Path
) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bare.py").write_text(BARE)
    (tmp_path / "unfinished.py").write_text(UNFINISHED)
    (tmp_path / "unknown.jsonl").write_text('{"options": {"task": "nosuch"}}\n')
    (tmp_path / "policy.py").write_text("def say(messages):\n    return 'x'\n")
    (tmp_path / "drawer").mkdir()
    (tmp_path / "shelf").mkdir()
    (tmp_path / "empty").touch()
    for noise in ("noise", "noisy/Dockerfile"):
        (tmp_path / noise).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / noise).write_bytes(b"\xff\xfe\x00")
    header = write_line(Header(id="r", environment="good", started_at=0.0))
    (tmp_path / "whole.jsonl").write_bytes(header)
    (tmp_path / "damaged.jsonl").write_bytes(header + b"\xff\n")
    (tmp_path / "shelf/game.py").write_text(GOOD)
    done = warm.run(wrong.line, tmp_path)
    assert done.returncode == wrong.code, done.stderr
    assert wrong.sentence in told(done.stderr)
    assert wrong.next_step in told(done.stderr)
    assert "Next: " in done.stderr or "Try '" in done.stderr
    assert "Traceback" not in done.stderr
    assert OURS not in done.stderr
    assert "serves" not in done.stderr


@pytest.mark.parametrize("command", ["serve broken:app --port 0", "check broken:app"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_environment_is_shown_by_its_authors_frames(
    broken: Broken, command: str, warm: WarmCommands, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(broken.source)
    done = warm.run(command, tmp_path)
    said = told(done.stdout + done.stderr)
    assert done.returncode == broken.code, said
    assert broken.sentence in said
    assert OURS not in said
    assert "serves" not in said
    assert "Next:" in said or "→" in said


def test_a_module_that_cannot_be_loaded_shows_the_authors_line(warm: WarmCommands, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def load():\n    raise OSError('the data is not there')\n")
    (tmp_path / "broken.py").write_text("import helper\n\nhelper.load()\n")
    done = warm.run("serve broken:app", tmp_path)
    assert done.returncode == Exit.FOUND_WANTING
    frames = [line for line in done.stderr.splitlines() if line.strip().startswith("File ")]
    assert [Path(line.split('"')[1]).name for line in frames] == ["broken.py", "helper.py"]
    assert "(helper.py, line 2)" in done.stderr


def test_workers_refuse_what_one_process_refuses(warm: WarmCommands, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN["constructor raises"].source)
    done = warm.run("serve broken:app --port 0 --workers 2 --sessions 2", tmp_path)
    assert done.returncode == Exit.FOUND_WANTING, done.stderr
    assert "no licence" in done.stderr
    assert "serves" not in done.stderr


def test_the_version_is_printed() -> None:
    command = [sys.executable, "-m", "envtorch.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, f"envtorch {envtorch.__version__}\n")
