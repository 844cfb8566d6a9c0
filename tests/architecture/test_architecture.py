"""The shape of the code, held by tests: what is imported, what is exported, how long things are."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import envtorch
from envtorch.errors import MissingExtra

ROOT = Path(envtorch.__file__).parent
HEAVY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "gradio",
    "fastmcp",
    "mcp",
    "docker",
    "kubernetes",
    "torch",
    "numpy",
    "httpx",
}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    return {name.split(".")[0] for name in printed.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import envtorch",
        "import envtorch.client",
        "import envtorch.envs.echo_env",
        "import envtorch.envs.coding_env",
        "from envtorch import EnvClient",
    ],
)
def test_a_client_pays_for_no_server(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(HEAVY)


def test_the_package_itself_imports_nothing_of_weight() -> None:
    assert "pydantic" not in loaded_by("import envtorch")


BARE_SERVER = """
import os, signal, socket, sys, threading
from envtorch import Action, Environment, Observation, State, create_app, serve

class Still(Environment[Action, Observation, State]):
    state = State()

    def reset(self):
        return Observation()

    def step(self, action):
        return Observation()

listener = socket.create_server(("127.0.0.1", 0))
HANDSHAKE = (
    "GET /ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
    "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
RESET = b'{"type": "reset", "data": {}}'

def say(caller, *lines):
    caller.sendall("\\r\\n".join([*lines, "", ""]).encode())
    return caller.recv(12)

def ask():
    address = listener.getsockname()
    with socket.create_connection(address) as caller:
        assert say(caller, "GET /health HTTP/1.1", "Host: localhost") == b"HTTP/1.1 200"
    print(*sys.modules)
    with socket.create_connection(address) as caller:
        assert say(caller, *HANDSHAKE) == b"HTTP/1.1 101"
        caller.sendall(bytes([0x81, 0x80 | len(RESET)]) + bytes(4) + RESET)
        while b"observation" not in caller.recv(4096):
            pass
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

app = create_app(Still)
threading.Thread(target=ask).start()
serve(app, listener=listener)
"""

NOT_FOR_A_BARE_SERVER = {
    "envtorch.client",
    "envtorch.compat",
    "envtorch.recording",
    "envtorch.sandbox",
    "envtorch.server.runners.process.process_launcher",
    "envtorch.server.workers",
    "envtorch.web",
    "httpx",
    "numpy",
    "prometheus_client",
    "rich",
    "typer",
}


@pytest.fixture(scope="module")
def loaded_by_a_server() -> tuple[set[str], set[str]]:
    """The modules of a server that has answered one request, and once it has had one session as well."""
    printed = subprocess.check_output([sys.executable, "-c", BARE_SERVER], text=True)
    answered, played = printed.splitlines()
    return set(answered.split()), set(played.split())


def test_a_bare_server_has_loaded_nothing_it_does_not_use(
    loaded_by_a_server: tuple[set[str], set[str]],
) -> None:
    answered, _ = loaded_by_a_server
    assert "uvicorn.server" in answered
    assert not NOT_FOR_A_BARE_SERVER & answered


def test_the_first_session_does_not_wait_for_imports(loaded_by_a_server: tuple[set[str], set[str]]) -> None:
    answered, played = loaded_by_a_server
    assert played == answered


def test_every_public_name_is_there_and_in_order() -> None:
    assert envtorch.__all__ == sorted(envtorch.__all__)
    for name in envtorch.__all__:
        assert getattr(envtorch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = envtorch.nonsense


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(envtorch.__path__, "envtorch.")]
    return [name for name in found if not name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_what_a_module_exports_is_there(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except MissingExtra as missing:
        pytest.skip(str(missing))
    except ModuleNotFoundError as missing:
        assert not (missing.name or "").startswith("envtorch"), missing
        pytest.skip(f"{name} is for those who have {missing.name} installed")
    for exported in getattr(module, "__all__", []):
        with suppress(MissingExtra):
            assert hasattr(module, exported), exported


TASKS = ROOT / "envs/terminal_env/tasks"
"""Programs that agents are to work on, with the mistakes that they are to find: no sources of ours."""
SOURCES = sorted(path for path in ROOT.rglob("*.py") if not path.is_relative_to(TASKS))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_can_be_held_in_the_head(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= 500, "a file that wants a table of contents is two files"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = (node.end_lineno or 0) - node.body[0].lineno + 1
            assert body <= 60, f"{node.name} is {body} lines long"


def test_the_environment_is_read_in_one_place() -> None:
    # The sandbox's guests clear the environment of the process that they make their own.
    ours = [path for path in SOURCES if "guest" not in path.parts]
    readers = [path.name for path in ours if "os.environ" in path.read_text().replace("`os.environ`", "")]
    assert readers == ["settings.py"]


def test_a_library_does_not_print() -> None:
    """What an environment's tasks are made of are programs for an agent, and no part of the library."""
    for path in SOURCES:
        if "cli" not in path.parts and "tasks" not in path.relative_to(ROOT).parts[2:-1]:
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), path


def test_a_missing_extra_is_advised_in_one_place() -> None:
    """Nothing is released yet, so `pip install 'envtorch[x]'` fails: `envtorch.extras` knows what works."""
    own = [path for path in ROOT.rglob("*.py") if "pip install 'envtorch[" in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in own] == ["extras.py"], "raise missing_extra(...)"
