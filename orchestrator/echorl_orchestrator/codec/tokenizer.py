"""A model folder's tokenizer through the ``tokenizers`` package alone (transformers is not needed here)."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from echorl_orchestrator.failures import BadInputError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of the model folder; empty when the file is not there."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise BadInputError(f"model.path: {path} is no valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadInputError(f"model.path: {path} holds {type(value).__name__}, accepted is an object")
    return value


class TextTokenizer:
    """Encodes text with and without the special meaning of marker strings; also the surface that renderers use."""

    def __init__(self, folder: Path, *, name: str) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BadInputError(f"model.path: {folder} has no tokenizer.json; a folder with that file is accepted")
        self._backend = Tokenizer.from_file(str(path))
        special = read_json(folder / "tokenizer_config.json")
        self.name_or_path = name
        self.unk_token_id = self._special_id(special.get("unk_token"))
        self.eos_token_id = self._special_id(special.get("eos_token"))
        markers = [token.content for token in self._backend.get_added_tokens_decoder().values()]
        self._markers = (
            re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True)))) if markers else None
        )

    @property
    def largest_id(self) -> int:
        """The highest token id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values())

    def _special_id(self, value: Any) -> int | None:
        content = value.get("content") if isinstance(value, dict) else value
        return self._backend.token_to_id(content) if isinstance(content, str) else None

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Ids of ``text``; marker strings become their special tokens, nothing is added."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_plain(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and character spans of ``text`` in which no marker string gets its special meaning.

        A body that spells ``<|im_end|>`` must not end a turn.
        """
        cuts = [0, *(match.start() + 1 for match in self._markers.finditer(text))] if self._markers else [0]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
            encoded = self._backend.encode(text[start:end], add_special_tokens=False)
            ids.extend(encoded.ids)
            spans.extend((start + low, start + high) for low, high in encoded.offsets)
        return ids, spans

    def decode(self, ids: Sequence[int], *_: Any, skip_special_tokens: bool = False, **__: Any) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become replacement characters."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Id of one token, or ids of several; the unknown token's id (or None) stands for a missing one."""
        if isinstance(tokens, str):
            token_id = self._backend.token_to_id(tokens)
            return self.unk_token_id if token_id is None else token_id
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def __call__(self, text: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Ids and character offsets of ``text``, under the names that renderers expect."""
        encoded = self._backend.encode(text, add_special_tokens=False)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}
