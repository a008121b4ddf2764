"""stand-in until the helper's file comes"""

from typing import Any

Average = Any


def make_average(arguments: Any, model: Any) -> Any:
    return None
