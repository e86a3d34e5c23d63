"""Two banks, each with a database of its own. Money goes from one to the other through a topic, and none is lost.

    python examples/bank/bank.py open            two databases: 2,000 EUR in the north, nothing in the south
    python examples/bank/bank.py send COUNT      send money: from an account of the north to the topic
    python examples/bank/bank.py collect         collect money: from the topic to the account of the south
    python examples/bank/bank.py books           how much money there is, and where
    python examples/bank/bank.py survive         send and collect, killed after every step; the books each time

BANK_DIR: where the databases are. BANK_DIES_AFTER: the step after which `send` or `collect` kills itself.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from two_phase import Identity, TwoPhaseProducer

BOOTSTRAP = os.environ.get("CONVEYOR_BOOTSTRAP", "127.0.0.1:9092")
DIRECTORY = Path(os.environ.get("BANK_DIR", "bank-data"))
TOPIC = "transfers"
BANK = "north"
"""The transactional id of the bank that sends."""

KILLS = (
    ("send", ("recovered",)),
    ("send", ("withdrawn",)),
    ("send", ("published",)),
    ("send", ("published", "kept")),
    ("send", ("decided",)),
    ("send", ("decided", "kept")),
    ("send", ("ended",)),
    ("collect", ("read",)),
    ("collect", ("credited",)),
)
"""What `survive` runs: a command, and the step after which it dies; with two steps, it dies twice."""

SCHEMA = """
CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
CREATE TABLE verdicts (transactional_id TEXT PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE positions (topic TEXT PRIMARY KEY, next_offset INTEGER NOT NULL);
"""


def step(name: str) -> None:
    """A step is done. Kill this process if it is to die here."""
    if os.environ.get("BANK_DIES_AFTER") == name:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def database(name: str) -> Iterator[sqlite3.Connection]:
    path = DIRECTORY / f"{name}.db"
    if not path.exists():
        raise SystemExit(f"{path} does not exist: run `bank.py open` first")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        yield connection


def open_banks() -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP, "log_level": 0})
    try:
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    except KafkaException as failure:
        raise SystemExit(f"topic {TOPIC} was not created: {failure.args[0].str()}") from None
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, accounts in (("north", {"Ada": 1_200, "Bob": 800}), ("south", {"Cleo": 0})):
        path = DIRECTORY / f"{name}.db"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(SCHEMA)
            connection.executemany("INSERT INTO accounts VALUES (?, ?)", accounts.items())
            print(f"{name}: " + ", ".join(f"{account} has {balance} EUR" for account, balance in accounts.items()))


def send(count: int) -> None:
    """The database decides. Its commit holds the money and the name of the Kafka transaction: the verdict."""
    with database("north") as north:
        producer = TwoPhaseProducer(BOOTSTRAP, BANK)
        print(f"the transaction that was left here: {recover(north, producer)}")
        step("recovered")
        for number in range(count):
            account, amount = ("Ada", "Bob")[number % 2], 10 + number
            with north:
                north.execute("UPDATE accounts SET balance = balance - ? WHERE name = ?", (amount, account))
                step("withdrawn")
                producer.send(TOPIC, b"%d" % amount)
                step("published")
                verdict = (BANK, *producer.prepare())
                north.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", verdict)
            step("decided")
            producer.end(commit=True)
            step("ended")
            print(f"{account} has sent {amount} EUR")


def recover(north: sqlite3.Connection, producer: TwoPhaseProducer) -> str:
    """End the transaction that an earlier process has left, as the database has decided. Returns what was done."""
    left = producer.take_over()
    step("kept")
    if left is None:
        return "nothing"
    row = north.execute("SELECT producer_id, epoch FROM verdicts WHERE transactional_id = ?", (BANK,)).fetchone()
    is_decided = row is not None and left == Identity(*row)
    producer.end(commit=is_decided)
    return "committed" if is_decided else "aborted"


def collect() -> None:
    """This direction needs one commit only: the database stores the position in the topic beside the money."""
    with database("south") as south:
        for offset, amount in transfers(next_offset(south)):
            step("read")
            with south:
                south.execute("UPDATE accounts SET balance = balance + ? WHERE name = 'Cleo'", (amount,))
                south.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (TOPIC, offset + 1))
            step("credited")
            print(f"Cleo has got {amount} EUR")


def next_offset(south: sqlite3.Connection) -> int:
    row = south.execute("SELECT next_offset FROM positions WHERE topic = ?", (TOPIC,)).fetchone()
    return row[0] if row else 0


def transfers(start: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and the amount of each committed transfer from an offset on."""
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "south",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, start)])
    while True:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit(f"no broker answers at {BOOTSTRAP}")
        error, offset, value = message.error(), message.offset(), message.value()
        if error is not None and error.name() == "_PARTITION_EOF":
            break
        if error is not None:
            raise SystemExit(str(error))
        assert offset is not None
        assert value is not None
        yield offset, int(value)
    consumer.close()


def books() -> str:
    with database("north") as north, database("south") as south:
        sums = [bank.execute("SELECT SUM(balance) FROM accounts").fetchone()[0] for bank in (north, south)]
        moving = sum(amount for _, amount in transfers(next_offset(south)))
    total = sum(sums) + moving
    return f"north {sums[0]} + on the way {moving} + south {sums[1]} = {total} EUR"


def survive() -> None:
    """Kill each command after each of its steps, start the sender again, and show the books."""
    for command, steps in KILLS:
        for name in steps:
            arguments = [sys.executable, __file__, command, "1"]
            killed = subprocess.run(arguments, env=os.environ | {"BANK_DIES_AFTER": name}, capture_output=True)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = [sys.executable, __file__, "send", "0"]
        left = subprocess.run(again, check=True, capture_output=True, text=True).stdout.strip().rpartition(" ")[2]
        print(f"{command:7} killed when {', '.join(steps):15} left: {left:9}  {books()}", flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["open"]:
            open_banks()
        case ["send", count]:
            send(int(count))
        case ["collect", *_]:
            collect()
        case ["books"]:
            print(books())
        case ["survive"]:
            survive()
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
