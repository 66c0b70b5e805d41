"""Texts are written in plain English: words that `docs/style.md` asks to avoid do not come back."""

import re
from collections.abc import Iterator

import pytest

from tests.support.components import REPOSITORY
from tests.support.prose import Prose, files, prose

# Each pattern is a regular expression in small letters, for whole words; a space is any white
# space. Patterns must not match correct English: what only a reader can judge is for the review.
MANNERISMS = {
    r"whoever|whomever": "name the actor: any client that, the process that",
    r"whom": "name the actor, or 'which'",
    r"somebody|somebody's": "name the actor: another client, a user",
    # not the user of that name
    r"(?<!user\s)(?<!as\s)(?<!default:\s)(?<!\()nobody(?![\")\]])": "no request, no process, none",
    r"everybody": "all jobs, every user",
    r"he|him|his|himself": "it, its, itself",
    r"in vain": "without result",
    r"anew": "again",
    r"for ever": "indefinitely, forever",
    r"refuses? to know": "say what the module does",
    r"is not its business": "say which part is responsible",
    r"(?<!way\s)(?<!aim\s)(?<!goal\s)(?<!idea\s)(?<!purpose\s)(?<!task\s)(?:is|are|was|were) to "
    r"(?:be|become|come|do|get|go|grow|have|lie|say|stay)": "must, should, will",
    r"so many(?! \w+ that)": "name the number: count, N",
    r"for so long(?! that)": "for this time, or name the duration",
    r"likewise": "the same, also",
    r"(?:wish|wishes)(?!:)": "request",
    r"one's own|cpus? of (?:its|their) own": "dedicated",
    r"struck": "deleted",
    r"(?:the|its|their|own|no|whose|of|in|these|older|manager's|rm's) books": "state; ledger, "
    "where accounting is meant",
    r"(?:stand|wait)(?:s|ing)? in line|queue lines?": "queued, the job's queue",
    r"(?:its|whose|their) turn": "next in order",
    r"told(?! apart)": "reported, received; told to: ordered to, must",
    r"hears?|heard": "receives, received; knows",
    r"(?:is|are|was|were|been) said": "reported, shown, stated",
    r"(?<![.\w])(?:tally|tallies)(?!:)": "usage, or virtual time",
    r"service received": "usage",
    r"passed over": "starved; skipped, of a host",
    r"givers?": "allocator",
    r"levers?": "operation, option",
    r"roomy": "with free capacity",
    r"shall": "must, will",
    r"this very": "this",
    r"hence|henceforth|thereof|wherein|whereof|whence|hitherto": "so, of it, in which, until now",
}

_Z = (
    "authori|capitali|categori|customi|emphasi|equali|finali|generali|initiali|itemi|materiali|maximi|"
    "minimi|normali|optimi|organi|penali|prioriti|randomi|reali|recogni|seriali|speciali|stabili|"
    "standardi|summari|synchroni|unauthori|uninitiali|unrecogni|utili|visuali"
)
BRITISH = {
    rf"(?:{_Z})s(?:e|ed|es|er|ers|ing|ation|ations)": "-ize",
    r"acknowledgements?": "acknowledgment",
    r"ageing": "aging",
    r"analys(?:e|ed|ing)": "analyze",
    r"artefacts?": "artifact",
    r"behaviours?": "behavior",
    r"centres?": "center",
    r"colou(?:r|rs|red|ring)": "color",
    r"defences?": "defense",
    r"diall(?:ed|ing)": "dialed",
    r"favou(?:r|rs|red|rite)": "favor",
    r"fulfil|fulfils|fulfilment": "fulfill",
    r"grey": "gray",
    r"honou(?:r|rs|red)": "honor",
    r"judgements?": "judgment",
    r"(?:un|re)?labell(?:ed|ing)": "labeled",
    r"learnt": "learned",
    r"levell(?:ed|ing)": "leveled",
    r"licences?": "license",
    r"modell(?:ed|ing)": "modeled",
    r"neighbou(?:r|rs|ring)": "neighbor",
    r"programmes?": "program",
    r"signall(?:ed|ing)": "signaled",
    r"spelt": "spelled",
    r"totall(?:ed|ing)": "totaled",
    r"travell(?:ed|er|ers|ing)": "traveled",
    r"whilst|amongst": "while, among",
}
"""British spellings, with the American ones. "Cancelled" has two l, as in gRPC and asyncio."""

ALLOWED = {
    "docs/style.md": "lists the words to avoid",
}
"""Files that may have the words, with the reason."""

AVOIDED = MANNERISMS | BRITISH


def _pattern(words: str, space: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)".replace(" ", space))


def _found(piece: Prose) -> Iterator[str]:
    for words, replacement in AVOIDED.items():
        for match in _pattern(words, r"\s+").finditer(piece.text.lower()):
            line = piece.line + piece.text.count("\n", 0, match.start())
            yield f"{piece.path}:{line}: '{' '.join(match[0].split())}'; write: {replacement}"


@pytest.mark.needs("git")
def test_texts_have_none_of_the_words_that_the_style_guide_asks_to_avoid() -> None:
    # A quick look first: few files have any of the words, and comments take time to collect.
    any_of_them = _pattern("|".join(AVOIDED), r"[\s#/]+")
    found = [
        problem
        for path in files()
        if path not in ALLOWED
        if any_of_them.search((source := (REPOSITORY / path).read_text(encoding="utf-8")).lower())
        for piece in prose(path, source)
        for problem in _found(piece)
    ]
    assert found == [], "see docs/style.md:\n" + "\n".join(found)
