"""One server as the bench sees it: what it calls its model, which requests it understands, what its counters say."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import httpx

from ops.bench.answers import AnswerError, logprob_fault, text_fault
from ops.bench.load import Question, trusted
from ops.errors import OperationError

_SHORT_SECONDS = 30
_PLAIN_USAGE = {"include_usage": True}
_THINKING_TOKENS = 4096
_CACHED = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total")
_DRAFTS, _DRAFTED, _ACCEPTED = (
    ("vllm:spec_decode_num_drafts_total",),
    ("vllm:spec_decode_num_draft_tokens_total",),
    ("vllm:spec_decode_num_accepted_tokens_total",),
)
_CORRUPTED = ("vllm:corrupted_requests_total", "vllm:corrupted_requests")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)")


@dataclass(frozen=True)
class Counters:
    """What a server has counted since it started; none where it does not count it.

    Attributes:
        cached_tokens: of prompts, that came from the prefix cache.
        drafts, drafted_tokens, accepted_tokens: of speculative decoding.
        corrupted_requests: whose logits were NaN (vLLM with VLLM_COMPUTE_NANS_IN_LOGITS=1).
    """

    cached_tokens: float | None = None
    drafts: float | None = None
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    corrupted_requests: float | None = None

    def since(self, before: "Counters") -> "Counters":
        """Returns what was counted between `before` and this."""
        return Counters(
            *(
                None if now is None or then is None else now - then
                for now, then in zip(vars(self).values(), vars(before).values(), strict=True)
            )
        )

    def plus(self, other: "Counters") -> "Counters":
        """Adds what another server of the same pool has counted."""
        return Counters(
            *(
                None if one is None or two is None else one + two
                for one, two in zip(vars(self).values(), vars(other).values(), strict=True)
            )
        )


@dataclass(frozen=True)
class Server:
    """One OpenAI-compatible address.

    Attributes:
        name: of the group, or the address.
        base_url: ends with `/v1`.
        model: as it calls it.
        headers: of every request.
        most_tokens: its longest context; none where it does not say.
        version: of the engine; none where it does not say.
        extras: fields beyond OpenAI's that it understands, merged into every request.
        refused: fields that it refuses, for the record.
        counters_at: addresses whose `/metrics` count for it; a router's members.
    """

    name: str
    base_url: str
    model: str
    headers: dict[str, str] = field(repr=False)
    most_tokens: int | None = None
    version: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    counters_at: tuple[str, ...] = ()

    def question(self, prompt: str, tokens: int, whole: bool = True) -> Question:
        """Returns a streamed request at temperature 0.

        Args:
            prompt: what the user says.
            tokens: most to generate.
            whole: go on to that many tokens whatever the model says (`ignore_eos`).
        """
        extras = {key: value for key, value in self.extras.items() if whole or key != "ignore_eos"}
        return Question(self.base_url, {**self._body(prompt, tokens), "stream": True, **extras})

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": tokens,
        }

    def ask(self, prompt: str, tokens: int, timeout_seconds: float) -> str:
        """Returns a whole answer, after the NaN scan. A model that thinks gets room for it once more.

        Raises:
            AnswerError: there is no answer, or a number in it is none.
        """
        content = self._ask_once(prompt, tokens, timeout_seconds)
        room = min(_THINKING_TOKENS, (self.most_tokens or 2 * _THINKING_TOKENS) // 2)
        if content is None and tokens < room:
            content = self._ask_once(prompt, room, timeout_seconds)
        if content is None:
            raise AnswerError("its whole answer is reasoning: the content is null")
        return content

    def _ask_once(self, prompt: str, tokens: int, timeout_seconds: float) -> str | None:
        body = self._body(prompt, tokens) | {"logprobs": True}
        body |= {key: value for key, value in self.extras.items() if key not in ("ignore_eos", "stream_options")}
        if "logprobs" in self.refused:
            del body["logprobs"]
        try:
            response = _client().post(
                f"{self.base_url}/chat/completions",
                json=body,
                headers=self.headers,
                timeout=timeout_seconds,
            )
        except httpx.HTTPError as error:
            raise AnswerError(f"{type(error).__name__}: {error}") from None
        if response.status_code != 200:
            raise AnswerError(f"the server answered {response.status_code}: {response.text[:300]}")
        choice = response.json()["choices"][0]
        message = choice["message"]
        content = message.get("content")
        fault = logprob_fault(choice) or text_fault(content or message.get("reasoning") or "")
        if fault:
            raise AnswerError(fault)
        return content

    def counters(self) -> Counters:
        """Returns what its `/metrics`, or those of the members behind it, say now, as far as they can be read."""
        found = [_counters(url, self.headers) for url in self.counters_at]
        total = found[0] if found else Counters()
        for other in found[1:]:
            total = total.plus(other)
        return total


def look_at(
    name: str,
    base_url: str,
    headers: dict[str, str],
    model: str | None,
    wanted: dict[str, Any],
    members: Iterable[str] = (),
) -> Server:
    """Asks a server what it is and which of the wanted fields it understands.

    Args:
        name: for people.
        base_url: ends with `/v1`.
        headers: of every request.
        model: which one; the first that it lists if none is named.
        wanted: fields beyond OpenAI's.
        members: base addresses of the servers behind a router.

    Raises:
        OperationError: it does not answer, has no such model, or refuses even the plainest request.
    """
    listed = _get(f"{base_url}/models", headers)["data"]
    known = {entry["id"]: entry for entry in listed}
    chosen = model or (listed[0]["id"] if listed else "")
    if chosen not in known:
        raise OperationError(f"{base_url} serves {', '.join(known) or 'nothing'}, not {chosen or 'a model'}")
    server = Server(
        name,
        base_url,
        chosen,
        headers,
        most_tokens=known[chosen].get("max_model_len"),
        version=_version(base_url, headers),
        counters_at=tuple(_root(url) for url in (tuple(members) or (base_url,))),
    )
    return _with_extras(server, wanted)


def _with_extras(server: Server, wanted: dict[str, Any]) -> Server:
    """Finds out which fields the server understands: all at once, or else each alone."""
    reason = _refusal(server, {})
    if reason is not None:
        raise OperationError(f"{server.base_url} refuses the plainest chat completion: {reason}")
    tried = {**wanted, "logprobs": True}
    refused = () if _refusal(server, tried) is None else tuple(k for k, v in tried.items() if _refusal(server, {k: v}))
    extras = {key: value for key, value in wanted.items() if key not in refused}
    if "stream_options" in refused and _refusal(server, {"stream_options": _PLAIN_USAGE}) is None:
        extras["stream_options"] = _PLAIN_USAGE
    return replace(server, extras=extras, refused=refused)


def _refusal(server: Server, extras: dict[str, Any]) -> str | None:
    try:
        response = _client().post(
            f"{server.base_url}/chat/completions",
            json=server.question("Hello", 1).body | extras,
            headers=server.headers,
            timeout=_SHORT_SECONDS * 10,
        )
    except httpx.HTTPError as error:
        raise OperationError(f"{server.base_url} does not answer a chat completion: {error!r}") from None
    if response.status_code in (400, 404, 422):
        return response.text[:300]
    if response.status_code != 200:
        raise OperationError(f"{server.base_url} answered {response.status_code}: {response.text[:300]}")
    return None


@cache
def _client() -> httpx.Client:
    # A proxy set on this machine is for the outside.
    return httpx.Client(verify=trusted(), trust_env=False)


def _get(url: str, headers: dict[str, str]) -> Any:
    try:
        response = _client().get(url, headers=headers, timeout=_SHORT_SECONDS)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as error:
        raise OperationError(f"{url} answered {error.response.status_code}: {error.response.text[:200]}") from None
    except (httpx.HTTPError, ValueError) as error:
        raise OperationError(f"{url} does not answer as an OpenAI-compatible server does: {error!r}") from None


def _version(base_url: str, headers: dict[str, str]) -> str | None:
    try:
        return _get(f"{_root(base_url)}/version", headers).get("version")
    except (OperationError, AttributeError):
        return None  # not every server has this address


def _root(base_url: str) -> str:
    return base_url.removesuffix("/v1")


def _counters(root: str, headers: dict[str, str]) -> Counters:
    try:
        response = _client().get(f"{root}/metrics", headers=headers, timeout=_SHORT_SECONDS)
        response.raise_for_status()
    except httpx.HTTPError:
        return Counters()  # that nothing could be counted is part of the result
    return read_counters(response.text)


def read_counters(text: str) -> Counters:
    """Reads the counters from Prometheus' text format, added up over engines and labels."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found:
            sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])

    def of(names: tuple[str, ...]) -> float | None:
        return next((sums[name] for name in names if name in sums), None)

    return Counters(of(_CACHED), of(_DRAFTS), of(_DRAFTED), of(_ACCEPTED), of(_CORRUPTED))
