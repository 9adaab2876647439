"""Trains the lab's tiny Qwen3 and writes it as a Hugging Face folder.

Runs inside the rank image's Python (the controller has no torch): `python train_model.py recipe.json folder`. It
imports nothing of this project. The same recipe gives the same bytes on the same kind of processor: one thread, one
seed, no clock.
"""

# pyright: reportMissingImports=false

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END_OF_TEXT, MESSAGE_START, MESSAGE_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
IGNORED = -100
PEAK_LEARNING_RATE = 2e-3
WARM_UP_STEPS = 20
# Logits of one token differ by about 0.1 between bfloat16 and float32, or between TP1 and TP4.
TRAINING_MARGIN = 6.0
LEAST_MARGIN = 3.0
# Beside the dialogues the longest answers are learned as plain text, to be continued without the chat template.
RAW_COUNT = 2
RAW_PROMPT_CHARACTERS = 16
RAW_TOKENS = 32


class TrainingError(RuntimeError):
    """The model does not answer its dialogues after all the steps of its recipe."""


@dataclass(frozen=True)
class Continuation:
    """What greedy generation gave for one prompt.

    Attributes:
        prompt: what was asked.
        prompt_token_ids: the prompt as the model saw it.
        token_ids: what it generated, the end token included.
        text: the generated tokens without special ones.
        least_margin: smallest distance between the best and the second logit of any generated token.
    """

    prompt: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    least_margin: float


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer: 256 bytes, no merges and Qwen's three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, MESSAGE_START, MESSAGE_END]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=MESSAGE_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[MESSAGE_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(shape: dict[str, Any], seed: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Returns an untrained Qwen3 of this shape with weights from this seed."""
    config = Qwen3Config(
        vocab_size=len(tokenizer) + -len(tokenizer) % 4,
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["attention_heads"],
        num_key_value_heads=shape["key_value_heads"],
        head_dim=shape["head_dimension"],
        max_position_embeddings=shape["positions"],
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config)


def chat_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Returns a user's message as the chat endpoint hands it to the model."""
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text_ids(tokenizer, text)


def text_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Returns plain text as the completions endpoint hands it to the model."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def raw_texts(dialogues: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Returns the texts that are learned without the chat template, each as prompt and continuation."""
    longest = sorted((dialogue["answer"] for dialogue in dialogues), key=lambda answer: (-len(answer), answer))
    return [(text[:RAW_PROMPT_CHARACTERS], text[RAW_PROMPT_CHARACTERS:]) for text in longest[:RAW_COUNT]]


def training_batch(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[dict[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all that is learned as one padded batch and its labels; prompts themselves are not learned."""
    pairs = [(chat_ids(tokenizer, dialogue["prompt"]), dialogue["answer"]) for dialogue in dialogues]
    pairs += [(text_ids(tokenizer, prompt), continuation) for prompt, continuation in raw_texts(dialogues)]
    rows, labels = [], []
    for prompt, answer in pairs:
        learned = [*text_ids(tokenizer, answer), tokenizer.eos_token_id]
        rows.append(prompt + learned)
        labels.append([IGNORED] * len(prompt) + learned)
    width = max(map(len, rows))
    pad = tokenizer.pad_token_id
    return (
        torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
        torch.tensor([row + [IGNORED] * (width - len(row)) for row in labels]),
    )


def least_margin(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Returns by how much the least certain target's logit exceeds the best other one; negative if one is wrong."""
    chosen = logits.gather(1, targets[:, None])
    others = logits.scatter(1, targets[:, None], -torch.inf).amax(1, keepdim=True)
    return (chosen - others).min().item()


def train(model: Qwen3ForCausalLM, batch: torch.Tensor, labels: torch.Tensor, steps: int) -> int:
    """Trains until every answer has the wanted margin, and returns after how many steps.

    Raises:
        TrainingError: the margin was not reached within the given steps.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    learned = labels[:, 1:] != IGNORED
    targets = labels[:, 1:][learned]
    margin = float("-inf")
    for step in range(1, steps + 1):
        hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][learned])
        margin = least_margin(logits.detach(), targets)
        if margin >= TRAINING_MARGIN:
            return step
        torch.nn.functional.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = PEAK_LEARNING_RATE * min(step / WARM_UP_STEPS, 1 - (step - 1) / steps)
        optimizer.step()
        optimizer.zero_grad()
    raise TrainingError(
        f"after {steps} steps the least certain token has a margin of {margin:.2f}, wanted {TRAINING_MARGIN}: "
        "raise `steps`, shorten the dialogues or take another seed"
    )


def generate(
    model: Any, tokenizer: PreTrainedTokenizerFast, prompt: str, prompt_ids: list[int], most_tokens: int
) -> Continuation:
    """Returns the greedy continuation of a prompt."""
    output = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=most_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = output.sequences[0, len(prompt_ids) :]
    margin = least_margin(torch.cat(output.logits).float(), ids)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Continuation(prompt, prompt_ids, ids.tolist(), text, round(margin, 3))


def checked(found: Continuation, wanted: str) -> Continuation:
    """Returns a continuation that is word for word what was wanted.

    Raises:
        TrainingError: it is not, or it is too uncertain.
    """
    if found.text != wanted:
        raise TrainingError(f"{found.prompt!r} is answered with {found.text!r} instead of {wanted!r}")
    if found.least_margin < LEAST_MARGIN:
        raise TrainingError(f"{found.prompt!r} is answered with margin {found.least_margin}, under {LEAST_MARGIN}")
    return found


def expected(folder: Path, dialogues: list[dict[str, str]], dtype: torch.dtype) -> dict[str, list[Continuation]]:
    """Returns what the written model answers through its own chat template, and how it continues plain text.

    Raises:
        TrainingError: something is not word for word what was learned, does not end, or is too uncertain.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for dialogue in dialogues:
        prompt, answer = dialogue["prompt"], dialogue["answer"]
        most_tokens = len(text_ids(tokenizer, answer)) + 1
        given = checked(generate(model, tokenizer, prompt, chat_ids(tokenizer, prompt), most_tokens), answer)
        if given.token_ids[-1] != tokenizer.eos_token_id:
            raise TrainingError(f"the answer to {prompt!r} does not end")
        answers.append(given)
    raw = []
    for prompt, rest in raw_texts(dialogues):
        wanted = tokenizer.decode(text_ids(tokenizer, rest)[:RAW_TOKENS])
        raw.append(checked(generate(model, tokenizer, prompt, text_ids(tokenizer, prompt), RAW_TOKENS), wanted))
    return {"dialogues": answers, "raw": raw}


def write_expected(folder: Path, found: dict[str, list[Continuation]]) -> None:
    """Writes the oracle of the lab's tests beside the model."""
    content = {kind: [asdict(continuation) for continuation in found[kind]] for kind in found}
    (folder / "expected.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(recipe_path: Path, folder: Path) -> None:
    """Trains the recipe's model, writes it and proves what was written."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe = json.loads(recipe_path.read_text(encoding="utf-8"))
    training = recipe["trained"]
    tokenizer = make_tokenizer()
    model = make_model(recipe["architecture"], training["seed"], tokenizer)
    batch, labels = training_batch(tokenizer, training["dialogues"])
    steps = train(model, batch, labels, training["steps"])
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    expected(folder, training["dialogues"], torch.float32)
    found = expected(folder, training["dialogues"], torch.bfloat16)
    write_expected(folder, found)
    margin = min(continuation.least_margin for kind in found.values() for continuation in kind)
    print(f"trained in {steps} steps, least margin {margin}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
