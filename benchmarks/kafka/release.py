"""Apache Kafka's released jars, and those of Spark's connector for it: fetched once into a cache beside the code.

Maven fetches them where there is one, because it knows the machine's mirrors; else Ivy does, which comes with PySpark.
"""

import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.java import find_java

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_SPARK_POM = _HERE.parents[1] / "tests" / "clients" / "java" / "spark" / "pom.xml"
CACHE = _HERE.parents[1] / ".cache"
_FETCH_TIMEOUT_S = 900


class NotFetchedError(Exception):
    """Kafka is not to be had here; says why in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Kafka's jars and the Java that runs them."""

    version: str
    jars: Path
    java: Path

    def command(self, main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        """How to start one of Kafka's classes."""
        return [str(self.java), *options, "-cp", f"{self.jars}/*", main_class, *arguments]


def fetch(cache: Path = CACHE) -> Release:
    """What the cache holds, downloaded first if need be. Raises NotFetchedError."""
    version = ET.parse(_POM).findtext(".//{*}kafka.version") or ""
    jars = cache / f"kafka-{version}"
    try:
        java = find_java()
    except PipelineError as error:
        raise NotFetchedError(str(error)) from error
    if not jars.is_dir():
        _download(java, _POM, jars, "kafka_*.jar")
    return Release(version=version, jars=jars, java=java)


def fetch_spark_connector(cache: Path = CACHE) -> Path:
    """The directory with the jars of Spark's own connector for Kafka, downloaded first if need be. The tests use the
    same versions. Raises NotFetchedError.
    """
    jars = cache / f"spark-kafka-{sha256(_SPARK_POM.read_bytes()).hexdigest()[:16]}"
    if not jars.is_dir():
        try:
            _download(find_java(), _SPARK_POM, jars, "spark-sql-kafka-*.jar")
        except PipelineError as error:
            raise NotFetchedError(str(error)) from error
    return jars


def _download(java: Path, pom: Path, jars: Path, expected: str) -> None:
    """Into a directory beside, renamed when it is complete. expected: a file that must come."""
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as temporary:
        arriving = Path(temporary) / "jars"
        try:
            subprocess.run(
                _download_command(java, pom, arriving),
                capture_output=True,
                text=True,
                check=True,
                timeout=_FETCH_TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            raise NotFetchedError(_reason(error)) from error
        except (OSError, subprocess.SubprocessError) as error:
            raise NotFetchedError(str(error)) from error
        if not any(arriving.glob(expected)):
            raise NotFetchedError(f"the download brought no {expected}")
        arriving.rename(jars)


def _reason(error: subprocess.CalledProcessError) -> str:
    """The first line of a failed download that tells of an error, without the terminal's colours."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", error.stdout + error.stderr).splitlines()
    told = [line.strip() for line in lines if "[ERROR]" in line or "unresolved dependency" in line]
    return told[0] if told else f"{Path(error.cmd[0]).name} could not download it"


def _download_command(java: Path, pom: Path, target: Path) -> list[str]:
    maven = shutil.which("mvn")
    if maven is not None:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        return [maven, "--quiet", "--batch-mode", f"--file={pom}", *goal]
    ivy = ["-ivy", str(pom), "-confs", "runtime", "-cache", str(target.with_name("ivy")), "-types", "jar", "bundle"]
    return [str(java), "-jar", str(_ivy()), *ivy, "-retrieve", f"{target}/[artifact]-[revision].[ext]", "-warn"]


def _ivy() -> Path:
    try:
        import pyspark
    except ImportError as error:
        raise NotFetchedError("neither Maven nor PySpark, which brings Ivy, is installed") from error
    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise NotFetchedError("there is no Maven, and this PySpark brings no Ivy")
    return found[-1]
