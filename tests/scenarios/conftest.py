"""`pytest tests/scenarios --rewrite` writes the actual output into the stories.

Commit only output that you understand.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected output")
