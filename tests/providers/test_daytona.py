"""Sandboxes of Daytona, in a cloud of our own that speaks as its package does (`fake_daytona`)."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envtorch.errors import ConfigurationError, EngineUnavailable, ImageUnavailable, ProviderFailed
from envtorch.providers.recipes import command_in, missing_sources, top_level_fields, without_mounts
from envtorch.testing import PROVIDER_CHECKS, ProviderCheck
from tests.providers import fake_daytona, subjects
from tests.providers.test_conformance import keep
from tests.support import PATIENCE_S


@pytest.fixture(autouse=True)
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fake is `daytona` for one test, and its key is in the environment."""
    monkeypatch.setenv("DAYTONA_API_KEY", fake_daytona.KEY)
    monkeypatch.setitem(sys.modules, "daytona", fake_daytona)
    monkeypatch.delitem(sys.modules, "envtorch.providers.daytona", raising=False)
    yield
    sys.modules.pop("envtorch.providers.daytona", None)


def provider(**how: Any) -> Any:
    from envtorch.providers.daytona import DaytonaProvider

    return DaytonaProvider(**how)


@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_keeps_the_contract(check: ProviderCheck) -> None:
    keep(check, subjects.daytona())


def created(daytona: Any) -> Any:
    return daytona._client.created[-1]


def manifest_in(sandbox_of: Any, place: str, text: str) -> None:
    """Have every new sandbox come with a file, as an image does."""
    make = sandbox_of.create

    def create(*args: Any, **kwargs: Any) -> Any:
        sandbox = make(*args, **kwargs)
        path = sandbox.directory / place.strip("/")
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return sandbox

    sandbox_of.create = create


def test_the_sandbox_is_told_what_was_asked_for() -> None:
    logs: list[str] = []
    with provider(
        public=True, auto_stop_interval=0, resources="two cores", on_snapshot_create_logs=logs.append
    ) as one:
        one.start_container("echo-env:1", env_vars={"A": "b"}, cmd="sleep 60")
        params = created(one)
        assert (params.image, params.resources, params.env_vars) == ("echo-env:1", "two cores", {"A": "b"})
        assert (params.public, params.auto_stop_interval, params.ephemeral) == (True, 0, True)
        assert logs == ["building"]


def test_a_snapshot_is_a_snapshot() -> None:
    with provider(cmd="sleep 60") as one:
        one.start_container("snapshot:warm")
        assert created(one).snapshot == "warm"
        assert not hasattr(created(one), "image")


@pytest.mark.parametrize("place", ["/app/env/openenv.yaml", "/app/envs/my env/openenv.yaml"])
def test_the_command_is_found_in_the_image(place: str) -> None:
    with provider() as one:
        manifest_in(one._client, place, "name: x\napp: 'no_such_module:app'  # ours\n")
        url = one.start_container("echo-env:1")
        with pytest.raises(ProviderFailed, match=r"No module named|uvicorn|Error loading") as caught:
            one.wait_for_ready(url, timeout_s=PATIENCE_S)
        assert caught.value.details["exit_code"] != 0


@pytest.mark.parametrize(
    ("manifest", "sentence"), [("name: x\n", "does not contain an 'app' field"), ("", "Could not find")]
)
def test_an_image_that_does_not_say_what_to_run_leaves_no_sandbox(manifest: str, sentence: str) -> None:
    with provider() as one:
        if manifest:
            manifest_in(one._client, "/app/env/openenv.yaml", manifest)
        with pytest.raises(ConfigurationError, match=sentence):
            one.start_container("echo-env:1")
        mine = created(one).labels
        assert not list(one._client.list(fake_daytona.ListSandboxesQuery(labels=mine)))


def test_a_dockerfile_is_built_from_its_context(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    dockerfile = tmp_path / "server" / "Dockerfile"
    dockerfile.parent.mkdir()
    dockerfile.write_text(
        "FROM x\nRUN --mount=type=cache,target=/c pip install y\nCOPY code /code\nCMD sleep 60\n"
    )
    with provider() as one:
        one.start_container(f"dockerfile:{dockerfile}", context_dir=str(tmp_path))
        image = created(one).image
        assert "RUN pip install y" in image.text
        assert image.directory == tmp_path
        assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "server"]
    with provider() as one, pytest.raises(ConfigurationError, match=r"COPY source 'code'.*not found"):
        one.start_container(f"dockerfile:{dockerfile}")


def test_a_wrong_key_and_none_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with provider(api_key="wrong", cmd="x") as one, pytest.raises(EngineUnavailable, match="DAYTONA_API_KEY"):
        one.start_container("echo-env:1")
    monkeypatch.delenv("DAYTONA_API_KEY")
    with pytest.raises(ProviderFailed, match="API key"):
        provider()


def test_an_image_that_is_not_there_is_told() -> None:
    with provider(cmd="x") as one, pytest.raises(ImageUnavailable, match="missing:1"):
        one.start_container("missing:1")


def test_an_address_can_be_had_anew() -> None:
    with provider(cmd="sleep 60") as one:
        with pytest.raises(ProviderFailed, match="No active sandbox"):
            one.refresh_preview_url()
        assert one.start_container("echo-env:1") == one.refresh_preview_url() == one.base_url


@pytest.mark.parametrize(
    ("dockerfile", "command"),
    [
        ('CMD ["uvicorn", "a b", "--port", "8000"]', "uvicorn 'a b' --port 8000"),
        ("CMD first\ncmd second \\\n  --more\n", "second --more"),
        ("# CMD no\nRUN x", None),
        ("CMD [broken", "[broken"),
    ],
)
def test_the_command_of_a_dockerfile(dockerfile: str, command: str | None) -> None:
    found = command_in(dockerfile)
    assert (found.split() if found else found) == (command.split() if command else command)


def test_mounts_are_taken_out_and_nothing_else() -> None:
    text = (
        "FROM x\n"
        "RUN --mount=type=cache,target=/a \\\n"
        "    --network=none --mount=type=bind,source=b \\\n"
        "    echo --mount=kept\n"
        "COPY --from=y /a /b\n"
    )
    assert without_mounts(text) == (
        "FROM x\nRUN \\\n    --network=none \\\n    echo --mount=kept\nCOPY --from=y /a /b\n"
    )


def test_what_is_copied_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    text = "COPY --chown=1 *.py /x\nCOPY --from=stage gone /y\nADD https://a/b /z\n"
    text += "COPY . /app\nCOPY ./one.py gone /\n"
    assert missing_sources(text, tmp_path) == ["gone"]


def test_fields_below_others_are_not_top_level() -> None:
    manifest = 'server:\n  app: nested\napp: "top"  # real\nversion: 0.10\nempty:\n'
    assert top_level_fields(manifest, place="it") == {"app": "top", "version": "0.10"}


@pytest.mark.skipif(
    importlib.util.find_spec("daytona") is None, reason="Daytona's own package is not installed"
)
def test_the_fake_takes_what_the_real_package_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "daytona")
    import daytona

    for name in ("create", "delete", "list"):
        real = inspect.signature(getattr(daytona.Daytona, name)).parameters
        assert set(inspect.signature(getattr(fake_daytona.Daytona, name)).parameters) <= set(real)
    fields = daytona.CreateSandboxFromImageParams.model_fields
    assert {"image", "resources", "labels", "env_vars", "public", "auto_stop_interval", "ephemeral"} <= set(
        fields
    )
    assert "snapshot" in daytona.CreateSandboxFromSnapshotParams.model_fields
    assert issubclass(daytona.DaytonaAuthenticationError, daytona.DaytonaError)
    assert "labels" in inspect.signature(daytona.ListSandboxesQuery).parameters
    assert hasattr(daytona.Image, "from_dockerfile")
    assert hasattr(daytona.Sandbox, "create_signed_preview_url")
