"""Which argument cannot go to a worker process?"""

from multiprocessing.reduction import ForkingPickler
from typing import Any


def require_picklable(cause: BaseException, **arguments: Any) -> None:
    """Raise a TypeError from ``cause`` that names the first argument that cannot be pickled."""
    for name, value in arguments.items():
        try:
            ForkingPickler.dumps(value)
        except Exception:
            raise TypeError(
                f"{name} must be picklable to reach worker processes that are not forked, got "
                f"{value!r}. Make it a module-level function (functools.partial of one, or an "
                f"instance of a module-level class, is fine too), or use "
                f"multiprocessing_context='fork'"
            ) from cause
