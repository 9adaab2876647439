"""What a node remembers of a router's members when its settings change."""

from runtime.node.router import states_to_keep

STATES = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port srv_agent_port
3 members 1 a 198.51.100.42 2 0 8000 0
3 members 2 b 198.51.100.44 0 0 8000 0

"""


def test_a_member_that_moved_or_left_is_not_looked_for_at_its_old_place() -> None:
    settings = "    server a 198.51.100.43:8000 check port 7718\n    server b 198.51.100.44:8000 check port 7718\n"
    assert states_to_keep(STATES, settings).splitlines()[2:] == ["3 members 2 b 198.51.100.44 0 0 8000 0"]
    assert states_to_keep(STATES, "").splitlines() == STATES.splitlines()[:2]
    assert states_to_keep(STATES, settings.replace(".43:", ".42:")).splitlines() == STATES.splitlines()[:4]
