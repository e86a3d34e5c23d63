"""A directory that looks like PySpark's own, for sessions whose Java starts Python processes on this machine."""

import atexit
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

_LEFT_OUT = ("python", "work")


def own_spark_home() -> Path:
    """Create a directory to set as SPARK_HOME, removed when this process exits.

    Without `python/lib/pyspark.zip`: Java puts it first in the path of Python processes, and each of them compiles its
    modules again, 0.4 s. They find the package that the driver uses. Without `work`: the workers of a `local-cluster`
    write their logs and archives there.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(tempfile.mkdtemp(prefix="conveyor-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in Path(spec.origin).parent.iterdir():
        if entry.name not in _LEFT_OUT:
            (home / entry.name).symlink_to(entry)
    return home
