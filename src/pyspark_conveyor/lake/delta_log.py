"""The commit log of a Delta lake, through the library `deltalake`.

Tasks write the Parquet files, and the driver commits them as add actions: no record passes through the driver. A commit
carries the lake's id and the batch number as an application transaction, so the table knows which batches it has.
Source: the Delta transaction protocol, "Transaction Identifiers" and "Add File and Remove File".
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark_conveyor.lake.lake_columns import lake_columns
from pyspark_conveyor.lake.lake_compaction import TARGET_BYTES, Compacted
from pyspark_conveyor.lake.lake_parts import PARTITION_COLUMNS, LakePart
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError


class DeltaLog:
    """The log of one Delta lake. application: the lake's id. schema: of its payloads, None without one."""

    def __init__(self, lake: Path, application: str, schema: PayloadSchema | None) -> None:
        self._lake = lake
        self._application = application
        self._payloads = schema

    def last_batch(self) -> int | None:
        """Return the number of the last committed batch, None without one."""
        table = self._table()
        version = None if table is None else table.transaction_version(self._application)
        return None if version is None else int(version)

    def paths(self) -> list[str]:
        """Return the paths of the committed files, relative to the lake."""
        table = self._table()
        uris = [] if table is None else table.file_uris()
        return [Path(unquote(urlparse(uri).path)).relative_to(self._lake).as_posix() for uri in uris]

    def commit(self, batch: int, added: Sequence[LakePart]) -> None:
        """Commit a batch: add published files, and note the number of the batch."""
        deltalake = require_deltalake()
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(self._application, batch)], max_commit_retries=0
        )
        table = self._table()
        actions = [self._action(part) for part in added]
        if table is not None:
            table.create_write_transaction(actions, mode="append", schema=table.schema(), commit_properties=properties)
        else:
            deltalake.transaction.create_table_with_add_actions(
                str(self._lake),
                self._schema(),
                actions,
                partition_by=list(PARTITION_COLUMNS),
                commit_properties=properties,
            )

    def compact(self, today: date) -> Compacted:
        """Merge the small files of all days before `today`. The table's earlier versions keep theirs."""
        table = self._table()
        if table is None:
            return Compacted(small_files=0, merged_files=0, records=0)
        found = table.optimize.compact(partition_filters=[("day", "<", today.isoformat())], target_size=TARGET_BYTES)
        return Compacted(small_files=found["numFilesRemoved"], merged_files=found["numFilesAdded"], records=0)

    def _table(self) -> Any:
        deltalake = require_deltalake()
        is_table = deltalake.DeltaTable.is_deltatable(str(self._lake))
        return deltalake.DeltaTable(str(self._lake)) if is_table else None

    def _action(self, part: LakePart) -> Any:
        directories = part.path.split("/")[:-1]
        return require_deltalake().transaction.AddAction(
            path=part.path,
            size=part.size_bytes,
            partition_values=dict(directory.split("=", 1) for directory in directories),
            modification_time=(self._lake / part.path).stat().st_mtime_ns // 1_000_000,
            data_change=True,
            stats=f'{{"numRecords":{part.records}}}',
        )

    def _schema(self) -> Any:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(lake_columns(self._payloads), timezone="UTC")
        return require_deltalake().Schema.from_arrow(pa.schema([field.with_nullable(True) for field in columns]))


def require_deltalake() -> Any:
    """Return the library. Raises PipelineError if it is not installed."""
    try:
        import deltalake
        import deltalake.transaction
    except ImportError as error:
        raise PipelineError("deltalake is not installed: pip install 'conveyor[delta]'") from error
    return deltalake
