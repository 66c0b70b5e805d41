"""Implements the task of the demo. A map task counts the words of files, and a reduce task adds up
counts.

The task uses only the standard library. It has two command lines:

- `wordcount.py map PARTS FILE...` writes one JSON object for each part: word -> count.
- `wordcount.py reduce` reads JSON objects of this form, one per line, and writes the sum of the
  counts.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable

WORD = re.compile(r"[A-Za-z]{3,}")


def count_words(paths: Iterable[str]) -> Counter[str]:
    """Returns the number of occurrences of each word in the files, in lower case."""
    words: Counter[str] = Counter()
    for path in paths:
        with open(path, encoding="utf-8") as file:
            words.update(word.lower() for word in WORD.findall(file.read()))
    return words


def part_of(word: str, parts: int) -> int:
    """Returns the number of the reducer of a word. Unlike `hash`, the function returns the same
    number in every process.
    """
    return zlib.crc32(word.encode()) % parts


def split(words: Counter[str], parts: int) -> list[Counter[str]]:
    """Splits the words by reducer."""
    result: list[Counter[str]] = [Counter() for _ in range(parts)]
    for word, count in words.items():
        result[part_of(word, parts)][word] = count
    return result


def main(arguments: list[str]) -> None:
    """Runs one map or one reduce task."""
    if arguments[0] == "map":
        for part in split(count_words(arguments[2:]), int(arguments[1])):
            print(json.dumps(part))
    else:
        total: Counter[str] = Counter()
        for line in sys.stdin:
            total.update(json.loads(line))
        print(json.dumps(total))


if __name__ == "__main__":
    main(sys.argv[1:])
