"""Runs a test program of any language: it takes arguments and JSON lines, and prints JSON lines."""

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Line = dict[str, Any]
RUN_SECONDS = 240
ROOT = Path(__file__).parents[2]


class ProgramFailed(AssertionError):  # noqa: N818 - named for what it is
    """A program has ended with an error."""


class Program:
    """A command, to which the arguments of a run are added."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def run(self, *arguments: object, given: Iterable[Line] = ()) -> list[Line]:
        """Run it to its good end. Returns the lines that it printed. Raises ProgramFailed."""
        typed = "".join(json.dumps(each) + "\n" for each in given)
        return [json.loads(line) for line in self.print(*arguments, given=typed).splitlines()]

    def print(self, *arguments: object, given: str = "") -> str:
        """As `run`, for a program that knows nothing of JSON."""
        ended = self._ended(arguments, given)
        if ended.returncode:
            raise ProgramFailed(f"{arguments} exited {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr}")
        return ended.stdout

    def fail(self, *arguments: object) -> str:
        """Run a program that is to fail. Returns everything that it printed."""
        ended = self._ended(arguments, given="")
        assert ended.returncode != 0, f"{arguments} succeeded\n{ended.stdout[-2000:]}"
        return ended.stdout + ended.stderr

    def start(self, *arguments: object) -> "Running":
        return Running([*self._command, *map(str, arguments)])

    def _ended(self, arguments: tuple[object, ...], given: str) -> "subprocess.CompletedProcess[str]":
        command = [*self._command, *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=RUN_SECONDS)


class Running:
    """A program that goes on: what it prints is read as it comes, and what it is given waits until it takes it.

    It ends when its input is closed, or is killed.
    """

    def __init__(self, command: list[str], line_of: Callable[[str], Line] = json.loads) -> None:
        pipe = subprocess.PIPE
        self._line_of = line_of
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._input: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        jobs = (self._write, self._read_lines, self._read_errors)
        self._threads = [threading.Thread(target=each, daemon=True) for each in jobs]
        for thread in self._threads:
            thread.start()
        self.seen: list[Line] = []

    def until(self, wanted: Callable[[Line], bool], seconds: float = 60) -> Line:
        """Take lines up to the first that is wanted. Raises ProgramFailed if the program ends before."""
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"silent after {self.seen[-5:]}\n{''.join(self._errors)}") from None
            if line is None:
                raise ProgramFailed(f"ended after {self.seen[-5:]}\n{''.join(self._errors)}")
            self.seen.append(line)
            if wanted(line):
                return line

    def give(self, lines: Iterable[Line]) -> None:
        self._input.put("".join(json.dumps(each) + "\n" for each in lines))

    def finish(self) -> list[Line]:
        """Close its input, on which it ends well. Returns everything that it has printed."""
        code = self._end()
        assert code == 0, f"exited {code}\n{''.join(self._errors)}"
        return self.seen

    def terminate(self) -> list[Line]:
        """SIGTERM, on which some end that have no input. Returns everything that it has printed."""
        self._process.terminate()
        return self.finish()

    def kill(self) -> list[Line]:
        """SIGKILL: no chance to say goodbye; nothing to one that has ended. Returns everything that it has printed."""
        self._process.kill()
        self._end()
        return self.seen

    def _end(self) -> int:
        self._input.put(None)
        try:
            code = self._process.wait(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
            self._errors.append(f"it did not end within {RUN_SECONDS} s, after {self.seen[-5:]}")
        for thread in self._threads:
            thread.join()
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self.seen.append(line)
        return code

    def _write(self) -> None:
        with suppress(BrokenPipeError), self._stream(self._process.stdin) as stdin:
            while (text := self._input.get()) is not None:
                stdin.write(text)
                stdin.flush()

    def _read_lines(self) -> None:
        with self._stream(self._process.stdout) as stdout:
            for line in stdout:
                if line.endswith("\n"):
                    self._lines.put(self._line_of(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        with self._stream(self._process.stderr) as stderr:
            self._errors.extend(stderr)

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream
