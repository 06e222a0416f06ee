"""Typed tables as text, Markdown, CSV and JSON."""
