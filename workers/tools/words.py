"""Counting words: the tiny tool, and the running count that `index_files` feeds slice by slice."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, Field

_LETTERS: Final = re.compile(r"[^\W\d_]{3,30}")
_VOCABULARY_LIMIT: Final = 100_000
_LONGEST_WORD: Final = 4_096


class WordCount(BaseModel):
    """The size of a text."""

    characters: int = Field(description="Unicode characters, white space included")
    words: int = Field(description="Runs of characters between white space")
    lines: int = Field(description="Lines; a last line without a line end counts")


class FrequentWord(BaseModel):
    """A word of three letters or more, in lower case, and how often it occurs."""

    word: str
    count: int


@dataclass
class RunningCount:
    """The count of a text that arrives in pieces; a word cut by the end of a piece counts once."""

    words: int = 0
    lines: int = 0
    frequencies: Counter[str] = field(default_factory=Counter[str])
    _tail: str = ""
    _open_line: bool = False

    def feed(self, text: str) -> None:
        """`text` is counted, except a word at its very end that the next piece may continue."""
        if not text:
            return
        self.lines += text.count("\n")
        self._open_line = not text.endswith("\n")
        self._count(self._tail + text, final=False)

    def end_of_text(self) -> None:
        """The text fed so far is counted to its last character; the next piece starts another text."""
        self._count(self._tail, final=True)
        self.lines += self._open_line
        self._open_line = False

    def most_frequent(self, how_many: int) -> list[FrequentWord]:
        """The most frequent words, ties in alphabetical order."""
        ranked = sorted(self.frequencies.items(), key=lambda entry: (-entry[1], entry[0]))
        return [FrequentWord(word=word, count=count) for word, count in ranked[:how_many]]

    def _count(self, text: str, *, final: bool) -> None:
        found = text.split()
        self._tail = ""
        if found and not final and not text[-1].isspace() and len(found[-1]) <= _LONGEST_WORD:
            self._tail = found.pop()
            text = text[: -len(self._tail)]
        self.words += len(found)
        self.frequencies.update(word.casefold() for word in _LETTERS.findall(text))
        if len(self.frequencies) > 2 * _VOCABULARY_LIMIT:
            # A huge tree must not fill the memory; a word that rare will not be among the most frequent.
            self.frequencies = Counter(dict(self.frequencies.most_common(_VOCABULARY_LIMIT)))


def word_count(text: str) -> WordCount:
    """Count the characters, words and lines of a text. Answers at once.

    Args:
        text: Any text, also an empty one.
    """
    count = RunningCount()
    count.feed(text)
    count.end_of_text()
    return WordCount(characters=len(text), words=count.words, lines=count.lines)
