"""Runs the whole program under mocks and records what the engine would be asked, with every edge."""

import asyncio
import json
import os
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pulumi
import pulumi.runtime.settings
import pytest
from pulumi.runtime import mocks, rpc

os.environ["PULUMI_ERROR_OUTPUT_STRING"] = "1"
PROJECT = Path(__file__).parents[2]
SECRET_KEY = "4dabf18193072939515e22adb298388d"


@dataclass
class Registration:
    """One RegisterResource request, in plain data."""

    type: str
    name: str
    inputs: dict[str, Any]
    parent: str
    provider: str
    dependencies: set[str]
    property_dependencies: dict[str, set[str]]
    delete_before_replace: bool
    replace_on_changes: list[str]
    before_create_hooks: list[str]
    secret_inputs: set[str]


@dataclass
class Graph:
    """Everything that one run of the program registered, by logical name."""

    resources: dict[str, Registration] = field(default_factory=dict)
    duplicates: list[str] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def of_type(self, suffix: str) -> dict[str, Registration]:
        return {name: found for name, found in self.resources.items() if found.type.endswith(suffix)}

    def all_dependencies(self, name: str) -> set[str]:
        """Returns everything that must exist before the resource, however indirectly."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for dependency in self.resources[waiting.pop()].dependencies - found:
                found.add(dependency)
                waiting.append(dependency)
        return found


class _Answers(mocks.Mocks):
    """Answers as the real providers do: in a preview nothing has run, so no command has an output."""

    def __init__(self, preview: bool) -> None:
        self._preview = preview

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        outputs = dict(args.inputs)
        if args.typ == "command:local:Command" and not self._preview:
            outputs |= {"stdout": _answer(args.inputs["create"]), "stderr": ""}
        return "" if self._preview else f"{args.name}-id", outputs

    def call(self, args: mocks.MockCallArgs) -> NoReturn:
        raise AssertionError(f"the program must not call anything at plan time, it called {args.token}")


def _answer(create: str) -> str:
    verb = create.rsplit(" ", 1)[-1]
    image = '{"identity": "sha256:1", "layers": ["sha256:a"], "architecture": "amd64", "reference": "r"}'
    return {
        **dict.fromkeys(
            ("image-base", "image-step", "image-verify", "image-share", "image-on-node", "router-image"), image
        ),
        "weights": '{"manifest": "m", "size_bytes": 1073741824}',
        "weights-receipt": '{"manifest": "m", "size_bytes": 1073741824}',
        "new-key": '{"key": "signs what supervisors say"}',
    }.get(verb, verb if create.startswith("echo") else "{}")


class RecordingMonitor(mocks.MockMonitor):
    """Keeps each registration request, which mocks alone do not show."""

    def __init__(self, preview: bool) -> None:
        super().__init__(_Answers(preview))
        self.graph = Graph()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the name of the protocol
        if request.type != "pulumi:pulumi:Stack":
            if request.name in self.graph.resources:
                self.graph.duplicates.append(request.name)
            self.graph.resources[request.name] = Registration(
                type=request.type,
                name=request.name,
                inputs=_unwrapped(rpc.deserialize_properties(request.object, keep_unknowns=True)),
                parent=_name(request.parent),
                provider=_name(request.provider.rsplit("::", 1)[0]) if request.provider else "",
                dependencies={_name(urn) for urn in request.dependencies},
                property_dependencies={
                    key: {_name(urn) for urn in value.urns} for key, value in request.propertyDependencies.items()
                },
                delete_before_replace=request.deleteBeforeReplace,
                replace_on_changes=list(request.replaceOnChanges),
                before_create_hooks=list(request.hooks.before_create),
                secret_inputs=_secrets(request.object),
            )
        return super().RegisterResource(request)


def _name(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def _secrets(inputs: Any) -> set[str]:
    """Returns the inputs that Pulumi keeps encrypted."""
    return {
        key
        for key, value in inputs.fields.items()
        if value.HasField("struct_value") and SECRET_KEY in value.struct_value.fields
    }


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return _unwrapped(value["value"]) if SECRET_KEY in value else {k: _unwrapped(v) for k, v in value.items()}
    return [_unwrapped(item) for item in value] if isinstance(value, list) else value


RunProgram = Callable[..., Graph]


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> RunProgram:
    """Returns a function that runs `__main__.py` for a stack and returns its graph; there are no nodes to be asked."""
    monkeypatch.setattr("ops.revival.revive_parked_groups", lambda *_: None)

    def run(stack: str, deployment: dict[str, Any], preview: bool, secrets: dict[str, str] | None = None) -> Graph:
        # What another test ran with asyncio.run left the thread without a loop, which Pulumi's test runner asks for.
        asyncio.set_event_loop(asyncio.new_event_loop())
        pulumi.runtime.settings.reset_options()
        monitor = RecordingMonitor(preview)
        pulumi.runtime.set_mocks(monitor.mocks, "gb10-serving", stack, preview=preview, monitor=monitor)
        given = {f"gb10-serving:{name}": text for name, text in (secrets or {}).items()}
        pulumi.runtime.set_all_config({"gb10-serving:deployment": json.dumps(deployment), **given}, list(given))

        @pulumi.runtime.test
        def program() -> None:
            runpy.run_path(str(PROJECT), run_name="__main__")

        program()
        return monitor.graph

    return run


@pytest.fixture(params=[True, False], ids=["preview", "up"])
def preview(request: pytest.FixtureRequest) -> bool:
    return request.param
