"""Writes golden/clients.json: what real clients send in an ordinary run, the first of each API and version.

It differs in times and ids from one run to the next:

    python -m tests.vectors.capture.clients
"""

import json

from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.rebalances import QUICK_GROUPS, Group, settle
from tests.vectors.capture.tap import tapped_broker
from tests.vectors.recorded import FOLDER

CLIENT_ID = "conformance"  # What all the programs say; the scenarios' own client says another.


def play(client: Client, broker: Broker) -> None:
    """Produce, consume, seek, administer topics and groups; join a group in each way that the client knows."""
    program = client.program()
    scenarios.check_records(program, broker, "records", ("none",), count=10)
    scenarios.check_seek(program, broker, "times")
    scenarios.check_admin(program, broker, "administered", client.unknown_topic_steps)
    scenarios.check_group_admin(program, broker, "read", client.unknown_group_steps)
    for protocol in client.protocols:
        with Group(program, broker, protocol, protocol) as group:
            member = group.join()
            settle(member)
            group.leave(member)


def main() -> None:
    lines = []
    for client in CLIENTS:
        with tapped_broker(CLIENT_ID, QUICK_GROUPS) as (broker, kept):
            play(client, broker)
        for (key, version), frame in sorted(kept.items()):
            line = {"client": client.name, "key": key, "version": version, "hex": frame.hex()}
            lines.append(json.dumps(line, separators=(",", ":")))
    (FOLDER / "clients.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
