"""What prompts consist of: random token ids, or texts and token ids from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from cbtrace.recorder.experiments.lengths import MOST_TOKENS
from cbtrace.recorder.experiments.spec_error import SpecError

Encode = Callable[[str], list[int]]
"""A tokenizer: text to token ids."""


def random_source(seed: int, *purpose: str | int) -> np.random.RandomState:
    """A source of random numbers for one purpose, so that changing one part of a workload leaves the others alone.

    ``RandomState`` is frozen by numpy's policy: the same seed gives the same numbers in every version.
    """
    text = "\0".join(map(str, (seed, *purpose)))
    return np.random.RandomState(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little"))


def random_tokens(count: int, vocabulary: int, random: np.random.RandomState) -> list[int]:
    """Draw token ids from 1 up to the vocabulary's last; 0 is padding in many models."""
    return [int(token) for token in random.randint(1, vocabulary, size=count).tolist()]


class PromptLine(msgspec.Struct):
    """A line of a prompt file: either of the two, and perhaps a generation limit of its own."""

    text: str | None = None
    tokens: list[int] | None = None
    new_tokens: int | None = None


def read_prompts(
    file: str, folder: Path, count: int | None, vocabulary: int, encode: Encode | None
) -> list[tuple[list[int], int | None]]:
    """Read prompts and their own limits from a JSONL file whose lines are ``{"text": ...}`` or ``{"tokens": [...]}``.

    Raises:
        SpecError: the file is missing, or a line cannot be used.
    """
    prompts: list[tuple[list[int], int | None]] = []
    try:
        with (folder / Path(file).expanduser()).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if count is not None and len(prompts) >= count:
                    break
                if line.strip():
                    prompts.append(_prompt(line, f"{file}, line {number}", vocabulary, encode))
    except OSError as error:
        text = f"{file} cannot be read ({error.strerror}): name a file that exists, relative to the plan."
        raise SpecError(text, at=("file",)) from error
    if not prompts:
        raise SpecError(f'{file} holds no prompts: write lines such as {{"tokens": [1, 2]}}.', at=("file",))
    return prompts


def _prompt(line: bytes, where: str, vocabulary: int, encode: Encode | None) -> tuple[list[int], int | None]:
    try:
        entry = msgspec.json.decode(line, type=PromptLine)
    except msgspec.MsgspecError as error:
        raise SpecError(f'{where}: {error}; write lines such as {{"text": "..."}}.', at=("file",)) from error
    if entry.new_tokens is not None and not 1 <= entry.new_tokens <= MOST_TOKENS:
        raise SpecError(f"{where}: new_tokens must be a number from 1 to {MOST_TOKENS}.", at=("file",))
    if entry.tokens is not None:
        outside = [token for token in entry.tokens if not 0 <= token < vocabulary]
        if outside:
            raise SpecError(f"{where}: token {outside[0]} is not one of the model's {vocabulary}.", at=("file",))
        tokens = entry.tokens
    elif entry.text is not None:
        if encode is None:
            raise SpecError(
                f"{where} is a text, and there is no tokenizer here: use a model that has one, or write token ids.",
                at=("file",),
            )
        tokens = encode(entry.text)
    else:
        tokens = []
    if not tokens:
        raise SpecError(f'{where} has no prompt: give it a "text" or "tokens".', at=("file",))
    return tokens, entry.new_tokens
