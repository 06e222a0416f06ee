"""Runs as tables for SQL: an in-memory database over their files, which can reach nothing else."""

from distbench.query.database import Answer, Database
from distbench.query.tables import Column, Table

__all__ = ["Answer", "Column", "Database", "Table"]
