"""Runs as tables for SQL: an in-memory database over their files, which can reach nothing else."""

from distbench.query.database import Database, QueryResult
from distbench.query.tables import SqlColumn, SqlTable

__all__ = ["Database", "QueryResult", "SqlColumn", "SqlTable"]
