"""Finds the version of the installed package, which programs report and compare."""

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


def software_version() -> str:
    """Returns the version of the installed package; "unknown" if it is not installed."""
    try:
        return version("finegrain")
    except PackageNotFoundError:
        return UNKNOWN
