"""What the page is about: one environment, its server, and what is known of both when the page is built."""

import inspect
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation

from envtorch.client import EnvClient
from envtorch.env import Environment, type_arguments
from envtorch.protocol.codec import Codec
from envtorch.server.sessions.registry import Sessions
from envtorch.settings import ServerMode, Settings
from envtorch.types import EnvironmentMetadata
from envtorch.web.schema import Field, Kind, fields_of
from envtorch.web.snippet import GENERIC, TOOLS, ClientNames

__all__ = ["PlayedEnvironment", "readme_body"]

_OUTPUTS = ("stdout", "output", "result")


@dataclass(frozen=True)
class PlayedEnvironment:
    """One environment on one server."""

    sessions: Sessions
    codec: Codec[Any, Any, Any]
    mode: ServerMode = ServerMode.SIMULATION

    @property
    def name(self) -> str:
        return self.codec.spec.name

    @property
    def environment_class(self) -> type[Environment[Any, Any, Any]] | None:
        return self.sessions.factory.environment_class

    @property
    def uses_tools(self) -> bool:
        """Whether actions are tool calls, so that the form is a tool's and not the action's."""
        return self.codec.takes_tool_actions

    @cached_property
    def action_fields(self) -> tuple[Field, ...]:
        """The fields of the action; of one whose class has no schema, a single JSON object."""
        try:
            return fields_of(self.codec.schemas()["action"])
        except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
            return ()

    @cached_property
    def reset_fields(self) -> tuple[Field, ...]:
        """The keywords that `reset` takes, as its signature and annotations tell them."""
        reset = getattr(self.environment_class, "reset", None)
        own_async = getattr(self.environment_class, "reset_async", None)
        if own_async is not None and own_async is not Environment.reset_async:
            reset = own_async
        if reset is None:
            return fields_of(_USUAL)
        parameters = list(inspect.signature(reset).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        properties = {p.name: _described(p) for p in named}
        required = [p.name for p in named if p.default is p.empty]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            properties = {**_USUAL["properties"], **properties, _OTHERS: {"description": "Other keywords"}}
        return fields_of({"properties": properties, "required": required})

    @cached_property
    def code_field(self) -> Field | None:
        """The field that takes code, where the environment runs code and tells what it printed."""
        code = next((field for field in self.action_fields if field.kind is Kind.CODE), None)
        observed = self.codec.schemas()["observation"].get("properties", {}) if code else {}
        return code if code and any(name in observed for name in _OUTPUTS) else None

    @cached_property
    def client(self) -> ClientNames:
        """The typed client in the package of the action's class; else a client that takes dictionaries."""
        if self.uses_tools:
            return TOOLS
        action = self.codec.spec.action
        homes = [action.__module__, action.__module__.rpartition(".")[0]]
        for home in reversed([home for home in homes if home in sys.modules and home != "__main__"]):
            names = vars(sys.modules[home])
            client = next((name for name, value in names.items() if _is_client_of(value, action)), None)
            if client is not None and names.get(action.__name__) is action:
                imports = f"from {home} import {', '.join(sorted((client, action.__name__)))}"
                return ClientNames((imports,), client, action.__name__)
        return GENERIC

    @cached_property
    def metadata(self) -> EnvironmentMetadata:
        """Name, description and README. The environment's own words are asked for when the page is opened."""
        made = self.environment_class
        documented = inspect.getdoc(made) if made is not None else None
        inherited = documented == inspect.getdoc(Environment)
        first = "" if inherited or not documented else documented.split("\n\n")[0].replace("\n", " ")
        return EnvironmentMetadata(
            name=self.name,
            description=first or f"{self.name} environment",
            readme_content=self._readme(),
            version="1.0.0",
        )

    def _readme(self) -> str | None:
        told = Settings.from_environ().readme_path
        places = [Path(told)] if told else []
        places.append(Path("/app/README.md"))
        if self.environment_class is not None:
            try:
                home = Path(inspect.getfile(self.environment_class)).parent
            except (TypeError, OSError):
                pass
            else:
                places += [home / "README.md", home.parent / "README.md"] if _is_package(home) else []
        places += [Path("envs", self.name, "README.md"), Path("src/envs", self.name, "README.md")]
        found = next((place for place in places if place.is_file()), None)
        return found.read_text(encoding="utf-8", errors="replace") if found else None


def _is_client_of(value: object, action: type) -> bool:
    if not isinstance(value, type) or not issubclass(value, EnvClient):
        return False
    return (type_arguments(value, EnvClient) or (None,))[0] is action


def _is_package(directory: Path) -> bool:
    return (directory / "__init__.py").is_file() or (directory / "README.md").is_file()


def readme_body(readme: str) -> str:
    """A README without the front matter that Hugging Face Spaces put before it."""
    return re.sub(r"\A---\n.*?\n---\n", "", readme, flags=re.DOTALL)


_OTHERS = "other_options"

_USUAL: dict[str, Any] = {
    "properties": {
        "seed": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "default": None,
            "description": "For luck that repeats",
        },
        "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
}


def _described(parameter: inspect.Parameter) -> dict[str, Any]:
    """The JSON schema of one keyword; a text where its annotation says nothing that JSON knows."""
    default = {} if parameter.default is parameter.empty else {"default": parameter.default}
    if parameter.name in _USUAL["properties"]:
        return {**_USUAL["properties"][parameter.name], **default}
    annotation = parameter.annotation
    if annotation is parameter.empty or isinstance(annotation, str):
        return {**_described_by_value(parameter.default), **default}
    try:
        return {**TypeAdapter(annotation).json_schema(), **default}
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return default


def _described_by_value(value: Any) -> dict[str, Any]:
    known = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": known[type(value)]} if type(value) in known else {}


def reset_options(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords for `reset`: the form's fields, and what stands in the one for all others."""
    others = values.pop(_OTHERS, None) or {}
    return {**values, **others}
