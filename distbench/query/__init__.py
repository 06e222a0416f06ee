"""SQL on runs: an in-memory database of their files that can access nothing else."""

from distbench.query.database import Database, QueryResult
from distbench.query.tables import SqlColumn, SqlTable

__all__ = ["Database", "QueryResult", "SqlColumn", "SqlTable"]
