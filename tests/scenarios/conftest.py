"""`pytest tests/scenarios --rewrite` writes what came out into the files.

Commit only what you understand.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected output")
