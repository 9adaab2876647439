"""A small OpenAI-compatible server whose delays are known: it writes down when it got each request and sent each token.

Run as a program in a process of its own, it prints its port. Times are of the machine's monotonic clock, which all its
processes share, so a load generator can be held against them however busy the machine is.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WORDS_PER_PROMPT_TOKEN = 1


@dataclass
class Behaviour:
    """What the server does.

    Attributes:
        first_seconds: from a request to its first token.
        tokens_per_second: of each stream after that.
        tokens_per_event: drafts that are accepted come several at a time.
        answers: by a piece of the prompt; the default counts words.
        fault: `nan` sends log probabilities that are none, `run` one sign for ever, `cached` counts cached tokens,
            `broken` ends streams in the middle.
        thinks: all tokens are reasoning until the last quarter.
        refuses: fields that are answered with 400.
        most_tokens: longest context.
        counts: whether there is a /metrics.
    """

    first_seconds: float = 0.0
    tokens_per_second: float = 2000.0
    tokens_per_event: int = 1
    answers: dict[str, str] = field(default_factory=lambda: {"17 x 23": "17 x 23 = 391"})
    fault: str | None = None
    thinks: bool = False
    refuses: tuple[str, ...] = ()
    most_tokens: int = 16384
    counts: bool = True


@dataclass(frozen=True)
class Sent:
    """One request as the server saw it."""

    prompt: str
    received_seconds: float
    token_seconds: list[float]


@dataclass(frozen=True)
class Address:
    """A running server."""

    root: str

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def timeline(self) -> list[Sent]:
        with urllib.request.urlopen(f"{self.root}/timeline") as response:
            return [Sent(**entry) for entry in json.load(response)]


@contextmanager
def known_server(behaviour: Behaviour | None = None) -> Iterator[Address]:
    """Runs a server while the context lasts."""
    text = json.dumps(asdict(behaviour or Behaviour()))
    process = subprocess.Popen([sys.executable, str(Path(__file__)), text], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield Address(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Server:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.sent: list[Sent] = []
        self.cached_tokens = 0
        self.drafts = 0
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await self._head(reader):
                length = int(head["headers"].get("content-length", 0))
                body = json.loads(await reader.readexactly(length)) if length else {}
                if not await self._answer(head["path"], body, time.monotonic(), writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        first = await reader.readline()
        if not first:
            return {}
        headers = {}
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return {"path": first.split()[1].decode(), "headers": headers}

    async def _answer(self, path: str, body: dict[str, Any], received: float, writer: asyncio.StreamWriter) -> bool:
        match path:
            case "/v1/models":
                return await _write(writer, {"data": [{"id": "known", "max_model_len": self.behaviour.most_tokens}]})
            case "/version":
                return await _write(writer, {"version": "known-1"})
            case "/timeline":
                return await _write(writer, [asdict(entry) for entry in self.sent])
            case "/metrics" if self.behaviour.counts:
                return await _write(writer, self._metrics())
            case "/v1/chat/completions":
                refused = [name for name in self.behaviour.refuses if name in body]
                if refused:
                    return await _write(writer, {"error": f"unknown field {refused[0]}"}, status=400)
                if body.get("stream"):
                    return await self._stream(body, received, writer)
                return await _write(writer, self._whole(body))
        return await _write(writer, {"error": path}, status=404)

    def _metrics(self) -> str:
        return (
            "# HELP vllm:prefix_cache_hits_total Cached tokens\n"
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="known"}} {float(self.cached_tokens)}\n'
            f'vllm:spec_decode_num_drafts_total{{engine="0"}} {float(self.drafts)}\n'
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {float(4 * self.drafts)}\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {float(self.accepted)}\n'
        )

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][0]["content"]
        text = next((answer for piece, answer in self.behaviour.answers.items() if piece in prompt), None)
        if text is None and "number of" in prompt:
            found = re.search(r"number of \w+ is (\d+)", prompt)
            text = found[1] if found else ""
        thinks = self.behaviour.thinks and body["max_tokens"] < 1000
        message = {"content": None if thinks else text or "Yes.", "reasoning": "Let me think." if thinks else None}
        logprob = float("nan") if self.behaviour.fault == "nan" else -0.1
        return {"choices": [{"message": message, "logprobs": {"content": [{"token": "a", "logprob": logprob}]}}]}

    async def _stream(self, body: dict[str, Any], received: float, writer: asyncio.StreamWriter) -> bool:
        behaviour, tokens = self.behaviour, body["max_tokens"]
        prompt = body["messages"][0]["content"]
        prompt_tokens = len(prompt.split()) * WORDS_PER_PROMPT_TOKEN
        if behaviour.fault == "cached" and prompt_tokens > 100:
            self.cached_tokens += prompt_tokens // 2
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        _event(
            writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": _usage(prompt_tokens, 0)}
        )
        done, times = 0, []
        while done < tokens:
            due = received + behaviour.first_seconds + done / behaviour.tokens_per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if behaviour.fault == "broken" and done > tokens // 2:
                return False
            done = min(tokens, done + behaviour.tokens_per_event)
            times.append(time.monotonic())
            _event(writer, {"choices": [{"delta": self._delta(done, tokens)}], "usage": _usage(prompt_tokens, done)})
            await writer.drain()
            self.drafts += behaviour.tokens_per_event > 1
            self.accepted += behaviour.tokens_per_event - 1
        self.sent.append(Sent(prompt, received, times))
        _event(writer, {"choices": [{"delta": {"content": ""}, "finish_reason": "length"}]})
        _event(writer, {"choices": [], "usage": _usage(prompt_tokens, done)})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        return True

    def _delta(self, done: int, tokens: int) -> dict[str, str]:
        if self.behaviour.fault == "run":
            return {"content": "!"}
        if self.behaviour.thinks and done < tokens * 3 // 4:
            return {"reasoning": f"thought {done} "}
        return {"content": f"word {done} "}


def _usage(prompt_tokens: int, tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}


def _event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    text = f"data: {json.dumps(data)}\n\n".encode()
    writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")


async def _write(writer: asyncio.StreamWriter, content: Any, status: int = 200) -> bool:
    body = (content if isinstance(content, str) else json.dumps(content)).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


async def _main() -> None:
    behaviour = Behaviour(**json.loads(sys.argv[1]))
    server = await asyncio.start_server(_Server(behaviour).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
