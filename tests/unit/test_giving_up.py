"""What is taken out of a state when a node is given up."""

import json
from typing import Any

from ops.giving_up import holds_nodes, machines_in, nodes_in, without

PREFIX = "urn:pulumi:one::gb10-serving::x::"


def task(name: str, verb: str, request: dict[str, Any], **more: Any) -> dict[str, Any]:
    inputs = {"create": f".venv/bin/python -m ops.tasks {verb}", "stdin": json.dumps(request)}
    return {"urn": PREFIX + name, "type": "command:local:Command", "inputs": inputs, **more}


def node(name: str) -> dict[str, Any]:
    login = {"user": "root", "host_key": "k", "identity_file": None, "connect_timeout_seconds": 5}
    return {"connection": {"node": name, "address": name, "port": 22, **login}, "storage_folder": "/s"}


def test_a_removed_resource_is_mentioned_nowhere_any_more() -> None:
    gone = PREFIX + "main-b-claim"
    state = {
        "resources": [
            task("main-claims", "take-nodes", {"nodes": [node("a"), node("b")], "stack": "one", "group": "main"}),
            task("main-a-claim", "claim", node("a")),
            task("main-b-claim", "claim", node("b")),
            task("main-ready", "ready", {}, dependencies=[gone, "x"], propertyDependencies={"triggers": [gone]}),
        ],
        "pending_operations": [{"resource": {"urn": gone}, "type": "deleting"}],
    }
    without(state, {gone}, {"b"})
    assert gone not in json.dumps(state)
    left = json.loads(state["resources"][0]["inputs"]["stdin"])["nodes"]
    assert [one["connection"]["node"] for one in left] == ["a"]
    assert state["resources"][-1]["dependencies"] == ["x"]


def test_nodes_and_machines_are_read_from_requests_and_nothing_encrypted_is() -> None:
    found = [
        task("main-a-claim", "claim", node("a")),
        task("b-reached", "node-facts", node("b")),
        {
            "urn": "s",
            "type": "command:local:Command",
            "inputs": {"create": "-m ops.tasks put-secrets", "stdin": {"c": "x"}},
        },
    ]
    assert set(nodes_in(found)) == {"a", "b"}
    assert machines_in(found) == {"a:22"}
    assert holds_nodes(found)
    assert not holds_nodes(found[1:])
