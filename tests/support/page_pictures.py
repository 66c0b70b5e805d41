"""Makes the pictures of the web page for the documentation.

`python -m tests.support.page_pictures` writes all of them. They show a simulated cluster, in a real
browser.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.support.browser import Browser, browsing
from tests.support.components import REPOSITORY
from tests.support.page_cluster import PageCluster
from tests.support.page_serving import serving

FOLDER = REPOSITORY / "docs" / "pictures"
WIDTH, COLORS = 1100, 64


@dataclass(frozen=True)
class Picture:
    """One picture: a view, a text that it shows when it is complete, and an element in it."""

    name: str
    path: str
    shows: str
    has: str = "h1"
    hosts: int = 5
    height: int = 720
    is_dark: bool = False


PICTURES = (
    Picture("web-cluster", "/?color=group", "rack r000", has=".host canvas"),
    Picture("web-racks", "/", "rack r024", has=".group canvas", hosts=1000),
    Picture(
        "web-host",
        "/executors/host-00000?slot=slot-0-1&task=task-slot-0-1",
        "step 20",
        has=".chart canvas",
        height=1150,
    ),
    Picture("web-graph", "/jobs/job-0001?chain=sink", "managed memory", has=".graph"),
    Picture("web-request", "/requests?explain=request-1", "Slots that have", has="dialog"),
    Picture(
        "web-group", "/groups?group=vision", "minimum (reserved)", has=".chart canvas", is_dark=True
    ),
)


def write(folder: Path, pictures: Sequence[Picture] = PICTURES) -> None:
    """Writes the pictures as files of few kilobytes."""
    folder.mkdir(exist_ok=True)
    for each in pictures:
        scheme = "dark" if each.is_dark else "light"
        with (
            serving(PageCluster(each.hosts)) as served,
            browsing(
                width=WIDTH, height=each.height, features={"prefers-color-scheme": scheme}
            ) as browser,
        ):
            browser.open(served.address(each.path))
            browser.shows(each.shows)
            browser.has(each.has)
            (folder / f"{each.name}.png").write_bytes(_small(browser))


def _small(browser: Browser) -> bytes:
    """Returns the page as a PNG with few colors."""
    image = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
    target = io.BytesIO()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


if __name__ == "__main__":
    write(FOLDER)
